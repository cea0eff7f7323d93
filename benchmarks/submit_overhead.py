"""What a snapshot adds to `submit` on this machine: a folder of 5,000 files, new, unchanged and with five edits.

Run it from the repository: `python benchmarks/submit_overhead.py [runs]`. Target: under 100 ms unchanged. The anchor is
a copy of the folder, the simplest way to keep a job from later edits.
"""

import os
import shutil
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from orchestra.local.code import Codes
from orchestra.local.home import Home

_FILES = 5_000
_SETTLED_S = 2.5  # what is younger is read again, for the clock of a file system is coarse


def plant(folder: Path) -> None:
    """A code base: packages, and modules of a few kilobytes."""
    for number in range(_FILES):
        place = folder / f"pkg{number % 10}" / f"mod{number % 100}"
        place.mkdir(parents=True, exist_ok=True)
        (place / f"file_{number}.py").write_bytes(os.urandom(500 + number % 4000))


def milliseconds(action: Callable[[], object]) -> float:
    """How long it takes."""
    began = time.perf_counter()
    action()
    return (time.perf_counter() - began) * 1000


def cpu_milliseconds(action: Callable[[], object]) -> float:
    """What it costs on a machine that has nothing else to do: the time on a CPU."""
    began = time.process_time()
    action()
    return (time.process_time() - began) * 1000


def main() -> None:
    """Measure and print."""
    runs = int(sys.argv[1]) if len(sys.argv) > 1 else 7
    with tempfile.TemporaryDirectory() as name:
        folder, root = Path(name) / "code", Path(name)
        os.environ["XDG_CACHE_HOME"] = str(root / "cache")
        plant(folder)
        time.sleep(_SETTLED_S)
        codes = Codes(Home(root / "home"))
        new = milliseconds(lambda: codes.keep(folder))
        codes.keep(folder)
        unchanged = statistics.median(milliseconds(lambda: codes.keep(folder)) for _ in range(runs))
        cpu = statistics.median(cpu_milliseconds(lambda: codes.keep(folder)) for _ in range(runs))
        edited = []
        for run in range(runs):
            for number in range(5):
                (folder / f"pkg{number}" / f"mod{number}" / f"file_{number}.py").write_text(f"# {run}\n")
            edited.append(milliseconds(lambda: codes.keep(folder)))
        copies = []
        for run in range(3):
            target = root / f"copy-{run}"
            copies.append(milliseconds(lambda target=target: shutil.copytree(folder, target)))  # type: ignore[misc]
        copy = statistics.median(copies)
    print(f"snapshot of {_FILES:,} files for a job, median of {runs}:")
    print(f"  unchanged {unchanged:.0f} ms, five edits {statistics.median(edited):.0f} ms, new {new:.0f} ms; "
          f"a copy {copy:.0f} ms: unchanged is {copy / unchanged:.1f} times faster")  # fmt: skip
    print(f"  unchanged on the CPU {cpu:.0f} ms; load {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores")


if __name__ == "__main__":
    main()
