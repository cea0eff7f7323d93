"""What `submit` pays for a folder that has not changed: a snapshot of 5,000 files, against `tar` and a copy.

Run it from the repository: `python benchmarks/sync_unchanged.py [runs]`. Target: under 100 ms.
"""

import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from orchestra.sync.index import Index
from orchestra.sync.snapshot import snapshot

_FILES = 5_000
_SETTLED_S = 2.5  # what is younger is read again, for the clock of a file system is coarse


def plant(folder: Path) -> None:
    """A code base: packages, modules of a few kilobytes, and a .gitignore."""
    for number in range(_FILES - 1):
        place = folder / f"pkg{number % 10}" / f"mod{number % 100}"
        place.mkdir(parents=True, exist_ok=True)
        (place / f"file_{number}.py").write_bytes(os.urandom(500 + number % 4000))
    (folder / ".gitignore").write_text(
        "*.log\nbuild/\n/dist\n*.egg\n.coverage\nhtmlcov/\n*.so\ndata/raw/**\n!keep.log\n"
    )


def median(action: Callable[[], object], runs: int) -> float:
    """Its usual time in milliseconds."""
    taken = []
    for _ in range(runs):
        began = time.perf_counter()
        action()
        taken.append(time.perf_counter() - began)
    return statistics.median(taken) * 1000


def main() -> None:
    """Measure and print."""
    runs = int(sys.argv[1]) if len(sys.argv) > 1 else 7
    with tempfile.TemporaryDirectory() as name:
        folder, archive = Path(name) / "code", Path(name) / "code.tar"
        plant(folder)
        time.sleep(_SETTLED_S)
        file = Path(name) / "index"
        began = time.perf_counter()
        first = snapshot(folder, index=Index(file, folder))
        cold = (time.perf_counter() - began) * 1000
        unchanged = median(lambda: snapshot(folder, index=Index(file, folder)), runs)
        if snapshot(folder, index=Index(file, folder)).id != first.id:
            raise SystemExit("the unchanged folder has another name")

        def tar_and_copy() -> None:
            subprocess.run(["tar", "-cf", archive, "-C", folder, "."], check=True)
            shutil.copyfile(archive, archive.with_suffix(".copy"))

        baseline = median(tar_and_copy, runs)
        print(f"snapshot of {first.manifest.files:,} files ({first.manifest.bytes / 2**20:.0f} MiB), median of {runs}:")
        print(f"  unchanged {unchanged:.0f} ms (first time {cold:.0f} ms); tar and a copy {baseline:.0f} ms: "
              f"{baseline / unchanged:.1f} times faster")  # fmt: skip


if __name__ == "__main__":
    main()
