"""`completion`: a script for the shell that asks this program for candidates."""

from __future__ import annotations

import argparse

from orchestra.cli import exit_codes

EPILOG = """\
examples:
  source <({program} completion bash)
  {program} completion zsh > "${{fpath[1]}}/_orchestra"
  {program} completion fish > ~/.config/fish/completions/orchestra.fish

As a kubectl plugin nothing is needed: kubectl asks kubectl_complete-torchrun, which is installed beside it.
"""

_BASH = """\
_orchestra() {
    local line
    COMPREPLY=()
    while IFS= read -r line; do
        if [ "$line" = ":files" ]; then
            compopt -o default 2>/dev/null
        else
            COMPREPLY+=("$line")
        fi
    done < <(orchestra-complete "${COMP_WORDS[@]:1:COMP_CWORD}")
}
complete -F _orchestra orchestra
"""

_ZSH = """\
#compdef orchestra
_orchestra() {
    local -a candidates
    candidates=(${(f)"$(orchestra-complete "${(@)words[2,CURRENT]}")"})
    if [[ ${candidates[(r):files]} == ":files" ]]; then
        candidates=(${candidates:#:files})
        _files
    fi
    (( ${#candidates} )) && compadd -a candidates
}
compdef _orchestra orchestra
"""

_FISH = """\
function __orchestra_complete
    set -l words (commandline -opc) (commandline -ct)
    for line in (orchestra-complete $words[2..-1])
        if test "$line" = ":files"
            __fish_complete_path (commandline -ct)
        else
            echo $line
        end
    end
end
complete -c orchestra -f -a "(__orchestra_complete)"
"""

SCRIPTS = {"bash": _BASH, "zsh": _ZSH, "fish": _FISH}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declares the arguments."""
    parser.add_argument("shell", choices=sorted(SCRIPTS), help="which shell")


def run(args: argparse.Namespace) -> int:
    """Prints the script."""
    print(SCRIPTS[args.shell], end="")
    return exit_codes.OK
