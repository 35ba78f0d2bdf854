#!/bin/sh
# Stands for `git` while a project is built. Its sources, submodules too, are here without their repository, and the lock knows their
# commit. It answers what a setup.py asks for a version; anything else is for the environment's own git, if it has one.
# `extension.py` writes the commit: of a folder of this machine 40 zeros, git's own name for none, and nothing for an sdist.
commit=COMMIT

while :; do
    case ${1-} in
        -C | -c | --git-dir | --work-tree) shift 2 ;;
        --no-pager | --git-dir=* | --work-tree=*) shift ;;
        *) break ;;
    esac
done
words=$*
case ${commit:+known}:$words in
    *:--version | *:version) echo "git version 2.39.5" ;;
    known:rev-parse*--abbrev-ref*) echo HEAD ;;
    known:rev-parse*--is-inside-work-tree*) echo true ;;
    known:rev-parse*--show-toplevel*) echo /space/src ;;
    known:rev-parse*--short=*HEAD*)
        digits=${words#*--short=}
        echo "$commit" | cut -c "1-${digits%% *}"
        ;;
    known:rev-parse*--short*HEAD* | known:describe*--always* | known:log*%h* | known:show*%h*) echo "$commit" | cut -c 1-7 ;;
    known:rev-parse*HEAD* | known:log*%H* | known:show*%H*) echo "$commit" ;;
    known:submodule* | known:status* | known:diff* | known:update-index*) ;; # all there, nothing changed
    *)
        [ ! -x /usr/bin/git ] || exec /usr/bin/git "$@"
        echo "fatal: there is no git repository and no network in a build: git $words" >&2
        exit 128
        ;;
esac
