#!/bin/sh
# make install, make uninstall: puts rbtools into a prefix, and takes out again what it put there.
#
#   sh install.sh install PREFIX        sh install.sh uninstall PREFIX
#
# PREFIX/lib/rbtools is a virtual environment of its own with pinned versions, so that nothing here is
# needed any more; PREFIX/bin has links into it. Man pages and completions go where shells look for them.
# PYTHON names the Python that it is made with.
set -eu

fail() {
    echo "make $what: $*" >&2
    exit 1
}

what=$1
case $2 in
    /*) prefix=${2%/} ;;
    *) prefix=$PWD/${2%/} ;;
esac
lib=$prefix/lib/rbtools
list=$lib/installed-files

uninstall() {
    [ -f "$list" ] || fail "nothing of rbtools is installed in $prefix (there is no $list)."
    while IFS= read -r file; do
        rm -f "$prefix/$file" || fail "cannot remove $prefix/$file. Run it as one who may."
    done <"$list"
    rm -rf "$lib"
    # Folders that are empty now were ours, or nobody misses them; the prefix itself stays.
    for folder in bin lib share/man/man1 share/man/man5 share/man/man7 share/man \
        share/bash-completion/completions share/bash-completion share/zsh/site-functions share/zsh \
        share/fish/vendor_completions.d share/fish share; do
        rmdir "$prefix/$folder" 2>/dev/null || true
    done
}

writable() {
    for folder in bin lib/rbtools share/man/man1 share/man/man5 share/man/man7 \
        share/bash-completion/completions share/zsh/site-functions share/fish/vendor_completions.d; do
        mkdir -p "$prefix/$folder" 2>/dev/null && [ -w "$prefix/$folder" ] || fail \
            "cannot write $prefix/$folder. Name a prefix of yours (make install PREFIX=\$HOME/.local)," \
            "or run it as one who may write there."
    done
}

# The environment counts as whole when it has the versions of this constraints.txt.
environment() {
    [ -x "$lib/bin/python" ] || "${PYTHON:-python3}" -m venv "$lib" || fail "cannot make $lib."
    cmp -s constraints.txt "$lib/constraints.txt" && return
    echo "Installing what the tools need in $lib (once; several hundred MB) ..."
    pip --constraint constraints.txt "$(sed -n 's/^\(torch==[^ ;]*\).*/\1/p' constraints.txt)" setuptools
    (cd "$build" && pip --constraint constraints.txt --no-build-isolation .)
    cp constraints.txt "$lib/constraints.txt"
}

pip() {
    "$lib/bin/python" -m pip --disable-pip-version-check --no-input --quiet install "$@" ||
        fail "pip failed; its words are above. Mend that and run the same again: it goes on from there."
}

# place FILE FOLDER NAME: copy a file there, and note it.
place() {
    rm -f "$prefix/$2/$3"
    cp "$1" "$prefix/$2/$3"
    chmod 644 "$prefix/$2/$3"
    echo "$2/$3" >>"$list.new"
}

# alias_of TARGET FOLDER NAME: a link there, and a note of it.
alias_of() {
    ln -sf "$1" "$prefix/$2/$3"
    echo "$2/$3" >>"$list.new"
}

# Built in a copy, so that this folder stays as it is.
copied() {
    build=$(mktemp -d)
    trap 'rm -rf "$build"' EXIT INT TERM
    cp -R rbtools man completions pyproject.toml constraints.txt README.md LICENSE "$build"
}

tools() {
    rm -rf "$lib"/bin/rb-* "$lib"/lib/python*/site-packages/rbtools "$lib"/lib/python*/site-packages/rbtools-*
    (cd "$build" && pip --no-deps --no-build-isolation --ignore-installed .)
    for tool in "$lib"/bin/rb-*; do
        alias_of "$tool" bin "${tool##*/}"
    done
}

pages_and_completions() {
    for page in man/*.[157]; do
        place "$page" "share/man/man${page##*.}" "${page#man/}"
    done
    # bash and fish look for a file named as the command, zsh reads the names in the file.
    place completions/_rbtools share/zsh/site-functions _rbtools
    place completions/rbtools.bash share/bash-completion/completions rbtools.bash
    place completions/rbtools.fish share/fish/vendor_completions.d rbtools.fish
    for page in man/*.1; do
        tool=$(basename "$page" .1)
        alias_of rbtools.bash share/bash-completion/completions "$tool"
        alias_of rbtools.fish share/fish/vendor_completions.d "$tool.fish"
    done
}

case $what in
    install)
        writable
        copied
        environment
        : >"$list.new"
        tools
        pages_and_completions
        if [ -f "$list" ]; then # what a former version had, and this one has not
            grep -vxFf "$list.new" "$list" | while IFS= read -r file; do rm -f "$prefix/$file"; done || true
        fi
        mv "$list.new" "$list"
        echo "Installed in $prefix. Tools: $prefix/bin; manual: man -M $prefix/share/man rbtools"
        ;;
    uninstall) uninstall ;;
    *) echo "usage: sh install.sh install|uninstall PREFIX" >&2 && exit 2 ;;
esac
