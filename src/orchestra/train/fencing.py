"""Who may publish into a folder of checkpoints: the newest attempt, and readers need not trust the others. No torch.

Each attempt takes the next free number by a file that only one can create:

    checkpoints/fence/1         {"job": ..., "attempt": 1, "resumed": null, ...}
    checkpoints/fence/2         {"job": ..., "attempt": 2, "resumed": "step-00000032", ...}

and writes its number into every manifest. A reader begins with the highest number and follows what each attempt
resumed from. So what attempt 1 publishes after attempt 2 began is never read, even if attempt 1 does not look.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import secrets
import socket
import time
from dataclasses import dataclass
from pathlib import Path

from orchestra.train import environment

FENCES = "fence"
_LOCK = "lock"
_held: dict[Path, int] = {}
"""Locks of this process. Closing any descriptor of a file gives its lock back, so each is opened once and kept."""


class TakenOver(Exception):
    """A newer attempt trains into this folder; this one must not publish any more."""


class InUse(Exception):
    """Another training that still runs writes into this folder."""


@dataclass(frozen=True)
class Fence:
    """One attempt's right to publish."""

    number: int
    token: str
    resumed: str | None
    """The name of the checkpoint it went on from."""
    owner: str
    """Who it is, in words."""

    def check(self, folder: Path) -> None:
        """Raise `TakenOver` if a newer attempt has begun, or the folder is another training's now."""
        newest = highest(folder)
        if newest is None or newest.token != self.token:
            who = f"{newest.owner} took over" if newest else "the folder was moved away"
            raise TakenOver(f"nothing more is published into {folder}: {who}")


def numbers(folder: Path) -> list[int]:
    """All numbers that were ever taken here, also by those who were cut short."""
    return [int(path.name) for path in (folder / FENCES).glob("*") if path.name.isdigit()]


def fences(folder: Path) -> list[Fence]:
    """All attempts that ever began here, newest first."""
    found = (_read(folder / FENCES / str(number)) for number in sorted(numbers(folder), reverse=True))
    return [fence for fence in found if fence is not None]


def highest(folder: Path) -> Fence | None:
    """The newest attempt."""
    return next(iter(fences(folder)), None)


def take(folder: Path, number: int, resumed: str | None) -> Fence | None:
    """Take this number, or None if another was quicker: then look again what is newest, and try the next."""
    (folder / FENCES).mkdir(parents=True, exist_ok=True)
    fence = Fence(number, secrets.token_hex(8), resumed, _who())
    content = json.dumps({"token": fence.token, "resumed": resumed, "owner": fence.owner, **_identity()})
    path, draft = folder / FENCES / str(number), folder / FENCES / f"{fence.token}.tmp"
    try:
        draft.write_text(content)
        try:
            os.link(draft, path)  # create-only, and never seen half-written
        except FileExistsError:
            return None
        except OSError:  # a file system without links
            with path.open("x") as file:
                file.write(content)
        return fence
    except FileExistsError:
        return None
    finally:
        draft.unlink(missing_ok=True)


def is_seen(folder: Path, fence: Fence) -> bool:
    """Whether this process sees the fence that rank 0 took: whether they share the folder."""
    try:
        return bool(json.loads((folder / FENCES / str(fence.number)).read_text())["token"] == fence.token)
    except (OSError, ValueError, KeyError):
        return False


def refuse_company(folder: Path) -> None:
    """Raise `InUse` if another job's process that is alive holds this folder. An older attempt of this job may.

    By a lock: where the file system knows none, two jobs are not told apart, and the fence alone keeps order.
    """
    (folder / FENCES).mkdir(parents=True, exist_ok=True)
    path = (folder / FENCES / _LOCK).resolve()
    if path in _held and path.exists():
        return
    file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
    try:
        fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(file)
        newest = highest(folder)
        if newest is not None and _same_job(folder, newest):
            return
        raise InUse(
            f"{newest.owner if newest else 'another process'} is training into {folder}. Stop it first, or give this "
            "one another output folder."
        ) from None
    except OSError:
        os.close(file)
        return
    _held[path] = file


def _same_job(folder: Path, fence: Fence) -> bool:
    job = os.environ.get("ORCHESTRA_JOB")
    with contextlib.suppress(OSError, ValueError):
        return job is not None and bool(json.loads((folder / FENCES / str(fence.number)).read_text())["job"] == job)
    return False


def _read(path: Path) -> Fence | None:
    """None for one that was cut short: it published nothing, for it writes this first."""
    try:
        content = json.loads(path.read_text())
        return Fence(int(path.name), content["token"], content["resumed"], content["owner"])
    except (OSError, ValueError, KeyError, TypeError):
        return None


def _identity() -> dict[str, object]:
    restarts = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")
    job = os.environ.get("ORCHESTRA_JOB")
    return {"job": job, "attempt": environment.attempt(), "round": int(restarts), "time": time.time()}


def _who() -> str:
    job = os.environ.get("ORCHESTRA_JOB")
    name = f"job {job}, attempt {environment.attempt()}" if job else "a training without a job"
    return f"{name} (process {os.getpid()} on {socket.gethostname()})"
