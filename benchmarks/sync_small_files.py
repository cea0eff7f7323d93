"""2,000 small files to a real S3 server and back, and five of them changed: our packs against the plain ways.

Run it from the repository: `python benchmarks/sync_small_files.py [runs]`. The baselines, in the same run and against
the same server: obstore file by file on 32 threads, and one `tar` archive. Target: at least the best in each column.
"""

import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests"))

from orchestra.sync.blobs import Blobs
from orchestra.sync.index import Index
from orchestra.sync.remote import Remote
from orchestra.sync.snapshot import snapshot
from orchestra.sync.store import Store
from orchestra.sync.workspace import deliver
from testbed.object_store import ObjectStore

_FILES = 2_000
_THREADS = 32

Row = dict[str, list[float]]


def plant(folder: Path) -> None:
    """36 MB in files of 4 to 32 KB."""
    for number in range(_FILES):
        (folder / f"d{number % 40}").mkdir(parents=True, exist_ok=True)
        (folder / f"d{number % 40}" / f"{number}.bin").write_bytes(os.urandom(4096 + (number * 7919) % 28672))


def edit(folder: Path) -> None:
    """Five other files each time."""
    for number in range(5):
        (folder / "d0" / f"{number * 40}.bin").write_bytes(os.urandom(8000))


def seconds(action: Callable[[], object]) -> float:
    """How long it took."""
    began = time.perf_counter()
    action()
    return time.perf_counter() - began


class Ours:
    """Snapshot, packs, and a tree that flips; everything a `submit` does."""

    def __init__(self, url: str, work: Path) -> None:
        self._remote, self._work = Remote(url), work
        self._id = ""

    def up(self, folder: Path) -> None:
        """Look, and send what is missing."""
        taken = snapshot(folder, index=Index(self._work / "index", folder))
        Store(self._remote, self._work / "seen").push(taken)
        self._id = taken.id

    def down(self, target: Path) -> None:
        """Fetch into an empty cache and stand the tree up."""
        deliver(Store(self._remote), self._id, Blobs(target / "blobs", link=True), target)


class FileByFile:
    """obstore on 32 threads; knows what changed from its own list of times."""

    def __init__(self, store: Any) -> None:
        self._store = store
        self._seen: dict[str, int] = {}

    def up(self, folder: Path) -> None:
        """Send each file that is new or has another time."""
        import obstore

        files = {p.relative_to(folder).as_posix(): p.stat().st_mtime_ns for p in folder.rglob("*") if p.is_file()}
        changed = [path for path, stamp in files.items() if self._seen.get(path) != stamp]
        with ThreadPoolExecutor(_THREADS) as pool:
            list(pool.map(lambda path: obstore.put(self._store, path, (folder / path).read_bytes()), changed))
        self._seen = files

    def down(self, target: Path) -> None:
        """Fetch each file."""
        import obstore

        keys = [found["path"] for chunk in obstore.list(self._store) for found in chunk]
        for key in keys:
            (target / key).parent.mkdir(parents=True, exist_ok=True)
        with ThreadPoolExecutor(_THREADS) as pool:
            list(pool.map(lambda key: (target / key).write_bytes(obstore.get(self._store, key).bytes()), keys))


class Archive:
    """One tar archive, all of it each time."""

    def __init__(self, store: Any, work: Path) -> None:
        self._store, self._file = store, work / "all.tar"

    def up(self, folder: Path) -> None:
        """Pack and send."""
        import obstore

        subprocess.run(["tar", "-cf", self._file, "-C", folder, "."], check=True)
        obstore.put(self._store, "all.tar", self._file)

    def down(self, target: Path) -> None:
        """Fetch and unpack."""
        import obstore

        target.mkdir(parents=True, exist_ok=True)
        (target / "all.tar").write_bytes(obstore.get(self._store, "all.tar").bytes())
        subprocess.run(["tar", "-xf", target / "all.tar", "-C", target], check=True)


def measure(way: Ours | FileByFile | Archive, folder: Path, target: Path, row: Row) -> None:
    """One round: everything up, everything down, five files changed and up."""
    row["up"].append(seconds(lambda: way.up(folder)))
    row["down"].append(seconds(lambda: way.down(target)))
    edit(folder)
    row["5 changed"].append(seconds(lambda: way.up(folder)))
    shutil.rmtree(target)


def main() -> None:
    """Measure and print."""
    from obstore.store import from_url

    runs = int(sys.argv[1]) if len(sys.argv) > 1 else 3
    rows: dict[str, Row] = {name: {"up": [], "down": [], "5 changed": []} for name in ("packs", "file by file", "tar")}
    with tempfile.TemporaryDirectory() as name, ObjectStore() as server:
        os.environ |= server.environment()
        folder = Path(name) / "code"
        plant(folder)
        for run in range(runs):
            work = Path(name) / f"work{run}"
            work.mkdir()
            base = server.url(f"run{run}")
            ways: dict[str, Ours | FileByFile | Archive] = {
                "packs": Ours(f"{base}/packs", work),
                "file by file": FileByFile(from_url(f"{base}/files", client_options={"allow_http": True})),
                "tar": Archive(from_url(f"{base}/tar", client_options={"allow_http": True}), work),
            }
            for title, way in ways.items():
                measure(way, folder, work / "target", rows[title])
    print(f"{_FILES:,} small files, seconds, median of {runs}")
    medians = {title: {what: statistics.median(times) for what, times in row.items()} for title, row in rows.items()}
    for title, row in medians.items():
        print(f"  {title:<14}" + "".join(f"{what} {value:6.3f}   " for what, value in row.items()))
    best = {what: min(medians[title][what] for title in medians if title != "packs") for what in medians["packs"]}
    ratios = ", ".join(f"{what} {best[what] / value:.1f} times faster" for what, value in medians["packs"].items())
    print(f"  packs against the best of the others: {ratios}")


if __name__ == "__main__":
    main()
