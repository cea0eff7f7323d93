"""`python -m orchestra.train.sft`, under torchrun, deepspeed or alone."""

from __future__ import annotations

import sys

from orchestra.train.options import parse
from orchestra.train.sft.options import Options
from orchestra.train.world import Refused


def main() -> int:
    """Read the options, then train. Torch is imported in between: `--help` and mistakes answer at once."""
    options = parse(Options, sys.argv[1:], program="python -m orchestra.train.sft")
    try:
        options.refuse_nonsense()
    except Refused as error:
        return _refused(error)

    from torch.distributed.elastic.multiprocessing.errors import record

    from orchestra.train import SaveFailed
    from orchestra.train.sft.training import Trainer

    @record  # leaves the traceback of the first failing rank where torchrun and the agent find it
    def run() -> None:
        Trainer(options).run()

    try:
        run()
    except (Refused, SaveFailed) as error:
        return _refused(error)
    return 0


def _refused(error: Exception) -> int:
    print(f"error: {error}", file=sys.stderr, flush=True)
    return 2


if __name__ == "__main__":
    sys.exit(main())
