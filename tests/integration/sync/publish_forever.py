"""A training that does nothing but save and publish, to be killed at any moment.

Says `fence <n>`, `resumed <name>` and, for each checkpoint that the store has reported as there, `published <name>`.
"""

import random
import sys
from pathlib import Path

from orchestra.sync.outputs import Holder, Outputs
from orchestra.sync.pace import Patience
from orchestra.sync.remote import Remote

_SIZES = (1000, 300_000, 17 << 20, 5)  # the third is uploaded in parts


def contents(n: int, step: int) -> dict[str, bytes]:
    """What a checkpoint holds; anybody can tell whether it is whole and all of one moment."""
    return {
        f"step-{step:08}/{number}.bin": random.Random(f"{n} {step} {number}").randbytes(size)
        for number, size in enumerate(_SIZES)
    }


def main() -> None:
    """Resume, take a fence, and publish until killed."""
    url, folder = sys.argv[1], Path(sys.argv[2])
    outputs = Outputs(Remote(url, patience=Patience(seconds=30)), index=folder.with_suffix(".index"))
    resumed = outputs.resume(folder)
    if resumed is not None:
        print("resumed", resumed.name, flush=True)
    holder = Holder("job", "uid", 1, resumed_from=str(resumed.name) if resumed else None)
    fence = outputs.take_fence(holder)
    print("fence", fence.n, flush=True)
    step = resumed.name.step if resumed else 0
    while True:
        step += 1
        files = contents(fence.n, step)
        for path, content in files.items():
            target = folder / path
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes(content)
        published = outputs.publish(folder, list(files), step, fence)
        print("published", published.name, flush=True)


if __name__ == "__main__":
    main()
