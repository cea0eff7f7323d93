"""Entry point of `orchestra` and `kubectl torchrun`."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from pathlib import PurePath

from orchestra import __version__
from orchestra.cli import exit_codes
from orchestra.cli.verbs import TAKE_A_COMMAND, TAKE_WORDS, VERBS, load_verb

DESCRIPTION = "Run distributed PyTorch training: the same job file on this machine or on a Kubernetes cluster."


def program_name(argv0: str) -> str:
    """The name users typed: as a kubectl plugin this program is `kubectl torchrun`."""
    return "kubectl torchrun" if PurePath(argv0).name.startswith("kubectl-torchrun") else "orchestra"


def build_parser(program: str, verb: str | None) -> argparse.ArgumentParser:
    """The parser; only `verb`, if any, knows its arguments."""
    parser = argparse.ArgumentParser(
        prog=program,
        description=DESCRIPTION,
        epilog=f'Try: {program} run "python train.py"',
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--version", action="version", version=f"{program} {__version__}")
    commands = parser.add_subparsers(title="commands", dest="verb", metavar="COMMAND")
    for name, summary in VERBS.items():
        command = commands.add_parser(
            name,
            help=summary,
            description=summary[0].upper() + summary[1:] + ".",
            formatter_class=argparse.RawDescriptionHelpFormatter,
        )
        if name == verb:
            module = load_verb(name)
            module.add_arguments(command)
            command.epilog = module.EPILOG.format(program=program)
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """Runs one command and gives its exit code."""
    words = list(sys.argv[1:] if argv is None else argv)
    program = program_name(sys.argv[0])
    verb = next((word for word in words if not word.startswith("-")), None)
    parser = build_parser(program, verb)
    rest: list[str] = []
    if verb in TAKE_A_COMMAND and "--" in words:  # argparse has its own ideas about what follows options
        at = words.index("--")
        words, rest = words[:at], words[at + 1 :]
    args, more = parser.parse_known_args(words)
    if more and (verb not in TAKE_WORDS or any(word.startswith("-") for word in more)):
        parser.error(f"unrecognized arguments: {' '.join(more)}")
    elif more:  # argparse takes such words only in one piece, and people put options between them
        args.words += more
    args.rest = rest
    if args.verb is None:
        parser.print_help()
        return exit_codes.OK
    args.program = program
    try:
        return load_verb(args.verb).run(args)
    except BrokenPipeError:
        # The reader (head, less) has seen enough. Python would complain while flushing at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return exit_codes.OK
    except KeyboardInterrupt:
        print(file=sys.stderr)
        return 130
    except Exception as error:
        code = _told(error)
        if code is None:
            raise
        return code


def _told(error: Exception) -> int | None:
    """Tells the user what is theirs to mend; None for what is ours."""
    from orchestra.api.engine import EngineError, NotFound
    from orchestra.api.problem import Invalid

    if not isinstance(error, EngineError | Invalid):
        return None
    print(error, file=sys.stderr)
    return exit_codes.NOT_FOUND if isinstance(error, NotFound) else exit_codes.ERROR


if __name__ == "__main__":
    sys.exit(main())
