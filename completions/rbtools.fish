function _rb_complete_completion;
    set -l response (env _RB_COMPLETE=fish_complete COMP_WORDS=(commandline -cp) COMP_CWORD=(commandline -t) (commandline -opc)[1]);

    for completion in $response;
        set -l metadata (string split "," $completion);

        if test $metadata[1] = "dir";
            __fish_complete_directories $metadata[2];
        else if test $metadata[1] = "file";
            __fish_complete_path $metadata[2];
        else if test $metadata[1] = "plain";
            echo $metadata[2];
        end;
    end;
end;

complete --no-files --command rb-arch --arguments "(_rb_complete_completion)";
complete --no-files --command rb-train --arguments "(_rb_complete_completion)";
complete --no-files --command rb-attack --arguments "(_rb_complete_completion)";
complete --no-files --command rb-certify --arguments "(_rb_complete_completion)";
complete --no-files --command rb-corrupt --arguments "(_rb_complete_completion)";
complete --no-files --command rb-pr --arguments "(_rb_complete_completion)";
complete --no-files --command rb-ge --arguments "(_rb_complete_completion)";
complete --no-files --command rb-card --arguments "(_rb_complete_completion)";
complete --no-files --command rb-measure --arguments "(_rb_complete_completion)";
complete --no-files --command rb-score --arguments "(_rb_complete_completion)";
complete --no-files --command rb-rank --arguments "(_rb_complete_completion)";
complete --no-files --command rb-corr --arguments "(_rb_complete_completion)";
complete --no-files --command rb-convert --arguments "(_rb_complete_completion)";
complete --no-files --command rb-plot --arguments "(_rb_complete_completion)";
complete --no-files --command rb-search --arguments "(_rb_complete_completion)";
complete --no-files --command rb-store --arguments "(_rb_complete_completion)";
complete --no-files --command rb-verify --arguments "(_rb_complete_completion)";
