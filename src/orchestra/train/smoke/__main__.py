"""`python -m orchestra.train.smoke`, under torchrun or alone."""

from __future__ import annotations

import sys

from orchestra.train.options import parse
from orchestra.train.smoke.options import Options


def main() -> int:
    """Read the options, then train. Torch is imported in between: `--help` and mistakes answer at once."""
    options = parse(Options, sys.argv[1:], program="python -m orchestra.train.smoke")

    from torch.distributed.elastic.multiprocessing.errors import record

    from orchestra.train import Refused, SaveFailed
    from orchestra.train.smoke.training import Trainer

    @record  # leaves the traceback of the first failing rank where torchrun and the agent find it
    def run() -> None:
        Trainer(options).run()

    try:
        run()
    except (Refused, SaveFailed) as error:
        print(f"error: {error}", file=sys.stderr, flush=True)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
