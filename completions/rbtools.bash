_rb_complete_completion() {
    local IFS=$'\n'
    local response

    response=$(env COMP_WORDS="${COMP_WORDS[*]}" COMP_CWORD=$COMP_CWORD _RB_COMPLETE=bash_complete $1)

    for completion in $response; do
        IFS=',' read type value <<< "$completion"

        if [[ $type == 'dir' ]]; then
            COMPREPLY=()
            compopt -o dirnames
        elif [[ $type == 'file' ]]; then
            COMPREPLY=()
            compopt -o default
        elif [[ $type == 'plain' ]]; then
            COMPREPLY+=($value)
        fi
    done

    return 0
}

_rb_complete_completion_setup() {
    complete -o nosort -o default -F _rb_complete_completion rb-arch rb-train rb-attack rb-certify rb-corrupt rb-pr rb-ge rb-card rb-measure rb-score rb-rank rb-corr rb-convert rb-plot rb-search rb-store rb-verify
}

_rb_complete_completion_setup;
