"""What a hanging worker can still tell before it is ended: stacks, and NCCL's record of its last collectives."""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Callable
from pathlib import Path

from .crew import Crew
from .environment import FLIGHT
from .failure import LINES_KEPT, Failure
from .hang import Hang, find_missing
from .tracebacks import Frame, main_stack

_STACK_SECONDS = 5.0
_FLIGHT_SECONDS = 15.0  # torch loads its compiler, of all things, before it writes the record


def examine(crew: Crew, folder: Path, turn: Callable[[float], None], seconds: float) -> tuple[Hang, Failure]:
    """Collects the stacks of all running ranks, which ends them, and names the missing one.

    The launcher is halted first: it would clear the other ranks as soon as the first one is gone.
    """
    ranks = crew.round.running()
    _dump_flight_records(folder / FLIGHT, [rank.rank for rank in ranks], turn)
    for pid in {rank.launcher_pid for rank in ranks} - {os.getpid()}:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGSTOP)
    for rank in ranks:
        rank.stacks = []
    watches = crew.watches()
    crew.tell("stacks")
    deadline = time.monotonic() + _STACK_SECONDS
    while any(rank.running for rank in ranks) and time.monotonic() < deadline:
        turn(0.05)
    stacks: dict[int, list[Frame]] = {rank.rank: main_stack(rank.stacks or []) for rank in ranks}
    hang = find_missing(watches, stacks, seconds)
    culprit = next((rank for rank in ranks if rank.rank in hang.missing), None)
    shown = culprit or next((rank for rank in ranks if stacks[rank.rank]), ranks[0])
    stack_lines = [line for line in shown.stacks or [] if line.strip() and not line.startswith("Extension modules:")]
    return hang, Failure(
        "Hang",
        hang.message,
        (stack_lines or list(shown.lines))[-LINES_KEPT:],
        rank=culprit.rank if culprit else None,
        local_rank=culprit.local_rank if culprit else None,
        time=time.time(),
    )


def _dump_flight_records(folder: Path, ranks: list[int], turn: Callable[[float], None]) -> None:
    """Asks NCCL, through the pipes it listens on, for its records. Without NCCL there are none."""
    asked = []
    for rank in ranks:
        with contextlib.suppress(OSError):
            pipe = os.open(folder / f"rank_{rank}.pipe", os.O_WRONLY | os.O_NONBLOCK)
            os.write(pipe, b"1\n")
            os.close(pipe)
            asked.append(folder / f"rank_{rank}")
    deadline = time.monotonic() + _FLIGHT_SECONDS
    while not all(_written(path) for path in asked) and time.monotonic() < deadline:
        turn(0.05)


def _written(path: Path) -> bool:
    try:
        return path.stat().st_size > 0
    except OSError:
        return False
