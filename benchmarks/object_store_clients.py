"""Folders to a real S3 server and back, plain layout: our transfer against rclone, s5cmd and `aws s3 sync`.

Run it from the repository: `python benchmarks/object_store_clients.py [rounds]`. Whoever is on the PATH takes part, in
the same rounds, one after the other, against the same server. 2,000 small files (36 MB), 5 of them changed, 4 files of
256 MB. Target: at least the best of the others in each column. `ORCHESTRA_BENCH_BIG_MB=32` makes the large ones small.

Ours does more for it: it hashes what it sends, never sends a file that is still being written, writes a marker with all
hashes at the end, and checks a file that it has fetched before it gets its name.
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

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests"))

from orchestra.sync.blobs import Blobs
from orchestra.sync.index import Index
from orchestra.sync.remote import Remote
from orchestra.sync.snapshot import snapshot
from orchestra.sync.store import Store
from orchestra.sync.workspace import deliver
from testbed.object_store import ObjectStore

_FILES = 2_000
_BIG = 4
_BIG_MB = int(os.environ.get("ORCHESTRA_BENCH_BIG_MB", "256"))
_COLUMNS = ("small up", "small down", "5 changed", "big up", "big down")
_OURS = ("ours, plain", "ours, packs")
_SEND = """
import sys
from pathlib import Path
from orchestra.sync.index import Index
from orchestra.sync.remote import Remote
from orchestra.sync.transfer import down, up
verb, folder, url, index = sys.argv[1:]
if verb == "up":
    up(Path(folder), Remote(url), index=Index(Path(index), Path(folder)))
else:
    down(Remote(url), "", Path(folder))
"""


class Client:
    """A program that moves a folder up or down; each call is a process, as people call them."""

    def __init__(self, words: Callable[[str, Path, str], list[str]]) -> None:
        self._words = words

    def up(self, folder: Path, url: str) -> None:
        """Send what is not there."""
        subprocess.run(self._words("up", folder, url), check=True, stdout=subprocess.DEVNULL)

    def down(self, folder: Path, url: str) -> None:
        """Fetch everything."""
        folder.mkdir(parents=True)
        subprocess.run(self._words("down", folder, url), check=True, stdout=subprocess.DEVNULL)


class Packs:
    """How code goes (small files only): snapshots in packs, content-addressed.

    In this process: unlike the others it does not pay for the start of one, so its lead is flattered by that.
    """

    def __init__(self, work: Path) -> None:
        self._work, self._id = work, ""

    def up(self, folder: Path, url: str) -> None:
        """Look, and send what is missing."""
        taken = snapshot(folder, index=Index(self._work / "pack-index", folder))
        Store(Remote(url), self._work / "seen").push(taken)
        self._id = taken.id

    def down(self, folder: Path, url: str) -> None:
        """Fetch into an empty cache and stand the tree up."""
        deliver(Store(Remote(url)), self._id, Blobs(folder / "blobs", link=True), folder)


def ours(work: Path) -> Client:
    """Our own, as a process too."""
    script = work / "send.py"
    script.write_text(_SEND)
    return Client(lambda verb, folder, url: [sys.executable, str(script), verb, str(folder), url, str(work / "index")])


def rclone(verb: str, folder: Path, url: str) -> list[str]:
    """Rclone with as many transfers as we use, and no directory of its own."""
    there = f":s3,env_auth,provider=Other,endpoint='{os.environ['AWS_ENDPOINT_URL']}':{url.removeprefix('s3://')}"
    pair = [str(folder), there] if verb == "up" else [there, str(folder)]
    return ["rclone", "sync", "--config", "/dev/null", "--transfers", "32", "--checkers", "32", "-q", *pair]


def s5cmd(verb: str, folder: Path, url: str) -> list[str]:
    """S5cmd as it comes."""
    pair = [f"{folder}/", f"{url}/"] if verb == "up" else [f"{url}/*", f"{folder}/"]
    return ["s5cmd", "--endpoint-url", os.environ["AWS_ENDPOINT_URL"], "--log", "error", "sync", *pair]


def aws(verb: str, folder: Path, url: str) -> list[str]:
    """The AWS command line as it comes."""
    pair = [str(folder), url] if verb == "up" else [url, str(folder)]
    return ["aws", "s3", "sync", "--no-progress", "--only-show-errors", *pair]


def plant(folder: Path) -> None:
    """36 MB in files of 4 to 32 KB; and the large ones."""
    small, big = folder / "small", folder / "big"
    big.mkdir(parents=True)
    for number in range(_FILES):
        (small / f"d{number % 40}").mkdir(parents=True, exist_ok=True)
        (small / f"d{number % 40}" / f"{number}.bin").write_bytes(os.urandom(4096 + (number * 7919) % 28672))
    for number in range(_BIG):
        with (big / f"{number}.pt").open("wb") as file:
            for _ in range(_BIG_MB):
                file.write(os.urandom(1 << 20))


def seconds(action: Callable[[], object]) -> float:
    """How long it took."""
    began = time.perf_counter()
    action()
    return time.perf_counter() - began


def measure(client: Client | Packs, folder: Path, work: Path, url: str, row: dict[str, list[float]]) -> None:
    """One round of one client. The files that it changes are of another content each time."""
    row["small up"].append(seconds(lambda: client.up(folder / "small", f"{url}/small")))
    row["small down"].append(seconds(lambda: client.down(work / "small", f"{url}/small")))
    for number in range(5):
        (folder / "small" / "d0" / f"{number * 40}.bin").write_bytes(os.urandom(8000 + number))
    row["5 changed"].append(seconds(lambda: client.up(folder / "small", f"{url}/small")))
    if not isinstance(client, Packs):
        row["big up"].append(seconds(lambda: client.up(folder / "big", f"{url}/big")))
        row["big down"].append(seconds(lambda: client.down(work / "big", f"{url}/big")))
        if sum(path.stat().st_size for path in (work / "big").glob("*.pt")) != _BIG * _BIG_MB << 20:
            raise SystemExit("not all of it came back")
        shutil.rmtree(work / "big")
    shutil.rmtree(work / "small")


def main() -> None:
    """Measure and print."""
    rounds = int(sys.argv[1]) if len(sys.argv) > 1 else 3
    rows: dict[str, dict[str, list[float]]] = {}
    print(f"load before: {os.getloadavg()[0]:.1f}; {os.cpu_count()} cores; {rounds} rounds", flush=True)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name) / "folder"
        plant(folder)
        for number in range(rounds):
            work = Path(name) / f"work{number}"
            work.mkdir()
            clients: dict[str, Client | Packs] = {"ours, plain": ours(work), "ours, packs": Packs(work)}
            others = {"rclone": rclone, "s5cmd": s5cmd, "aws s3 sync": aws}
            clients |= {title: Client(words) for title, words in others.items() if shutil.which(title.split()[0])}
            with ObjectStore() as server:  # a new one: its disk is not left full of the last round
                os.environ |= server.environment() | {"AWS_DEFAULT_REGION": "us-east-1"}
                for title, client in clients.items():
                    row = rows.setdefault(title, {column: [] for column in _COLUMNS})
                    measure(client, folder, work, server.url(title.replace(" ", "-").replace(",", "")), row)
            print(f"round {number + 1} done, load {os.getloadavg()[0]:.1f}", flush=True)
    table = {title: {what: statistics.median(times) for what, times in row.items() if times}
             for title, row in rows.items()}  # fmt: skip
    print(f"\n| seconds, median of {rounds} | " + " | ".join(_COLUMNS) + " |\n|---|" + "---|" * len(_COLUMNS))
    for title, found in table.items():
        print(f"| {title} | " + " | ".join(f"{found[what]:.2f}" if what in found else "-" for what in _COLUMNS) + " |")
    rivals = [found for title, found in table.items() if title not in _OURS]
    if rivals:
        told = []
        for what in _COLUMNS:
            mine = min(table[title][what] for title in _OURS if what in table[title])
            told.append(f"{what} {min(one[what] for one in rivals) / mine:.2f}")
        print("\nthe best of the others against the better of ours (more than 1: ours is faster): " + ", ".join(told))
        plain = ", ".join(
            f"{what} {min(one[what] for one in rivals) / table['ours, plain'][what]:.2f}" for what in _COLUMNS
        )
        print(f"the same, plain layout only: {plain}")


if __name__ == "__main__":
    main()
