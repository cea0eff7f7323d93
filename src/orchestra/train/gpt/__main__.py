"""`python -m orchestra.train.gpt`, under torchrun or alone."""

from __future__ import annotations

import sys
from pathlib import Path

from orchestra.train.configfile import words
from orchestra.train.gpt.options import Options
from orchestra.train.options import parse
from orchestra.train.world import Refused

_PROGRAM = "python -m orchestra.train.gpt"


def read_options(arguments: list[str]) -> Options:
    """The config file's values, then the command line's."""
    chosen = parse(Options, arguments, program=_PROGRAM)
    path = Path(chosen.config)
    if not path.exists() and chosen.config == Options.config:
        return chosen
    return parse(Options, [*words(path, Options), *arguments], program=_PROGRAM)


def main() -> int:
    """Read the options, then train. Torch is imported in between: `--help` and mistakes answer at once."""
    try:
        options = read_options(sys.argv[1:])
        from torch.distributed.elastic.multiprocessing.errors import record

        from orchestra.train.checkpoints import SaveFailed
        from orchestra.train.gpt.training import Trainer

        @record  # leaves the traceback of the first failing rank where torchrun and the agent find it
        def run() -> None:
            Trainer(options).run()

        try:
            run()
        except SaveFailed as error:
            print(f"error: {error}", file=sys.stderr, flush=True)
            return 2
    except Refused as error:
        print(f"error: {error}", file=sys.stderr, flush=True)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
