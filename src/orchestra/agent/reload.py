"""Hot reload in one worker: new code for the ranks, in place, without the launcher noticing.

The engine writes an order into `reload.json`; the worker answers in `reloaded.json`. In a pod orders and answers go
through a socket as well (orders.py), and the ranks start again where they were. In order: `preload` (have
successors ready), `prepare` (the code is there; keep the shims when their ranks stop), `stop`, `start`. The engine
gives the next order only when every worker has answered the last one, so that all change or none; `abort` takes it
back.
"""

from __future__ import annotations

import contextlib
import os
import selectors
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from .crew import Crew
from .environment import GENERATION, STOP_FILE
from .files import read_json, remove, write_json
from .orders import OrderSocket
from .ranks import Rank
from .spec import LaunchSpec

ORDER = "reload.json"
ANSWER = "reloaded.json"
REASON = "Reload"


class Reload:
    """The worker's part. `turn` is called by the agent's loop."""

    def __init__(self, spec: LaunchSpec, crew: Crew, say: Callable[[str], None]) -> None:
        """What an earlier attempt left is not an order."""
        self._spec, self._crew, self._say = spec, crew, say
        self._socket: OrderSocket | None = None
        self._given: list[dict[str, Any]] = []
        for name in (ORDER, ANSWER, GENERATION):
            remove(spec.folder / name)
        if spec.code_generation:  # a worker that joins others, which have had new code before
            write_json(spec.folder / GENERATION, {"generation": spec.code_generation, "workingDir": None})
        self._seen = 0
        self._order: dict[str, Any] = {}
        self._answered = ""
        self._deadline = 0.0
        self._ended = False
        self.holding = False
        """From `prepare` to `start`: ranks that stop have not ended the worker."""

    def turn(self, now: float) -> None:
        """Looks for an order, and for the moment when the last one is carried out."""
        self._look(now)
        step = {"preload": self._preloading, "prepare": self._preparing, "stop": self._stopping,
                "start": self._starting}.get(self._order.get("order", ""))  # fmt: skip
        if step is not None and self._answered != self._order["order"]:
            step(now)

    def broken(self) -> bool:
        """Whether a rank has ended on its own while new code was on its way: then the worker is judged as always."""
        return any(not rank.running and not rank.held for rank in self._crew.round.ranks)

    def give_up(self, why: str, stopping: bool) -> None:
        """Back to normal; held ranks end. `stopping`: a stop request that lies there is the worker's own."""
        if self.holding:
            self.holding = False
            if not stopping:
                remove(self._spec.folder / STOP_FILE)
            self._crew.tell("release")
            self._answer("failed", message=why)
            self._say(f"new code was not taken: {why}")
        self._order = {}

    def listen(self, path: Path, selector: selectors.BaseSelector) -> None:
        """Takes orders by a socket too."""
        try:
            self._socket = OrderSocket(path, selector, self._given.append, self._giver_gone)
        except OSError as error:
            self._say(f"no orders can be taken at {path}: {error.strerror or error}; new code needs a restart")

    def _giver_gone(self) -> None:
        """Whoever gave the order cannot give the next one: ranks must not wait for it."""
        if self.holding:
            self._given.append({"order": "abort", **{key: self._order.get(key) for key in ("generation", "attempt")}})

    def _look(self, now: float) -> None:
        while self._given:
            order = self._given.pop(0)
            if order.get("attempt") == self._spec.attempt:
                self._obey(order, now)
        try:
            about = (self._spec.folder / ORDER).stat()
        except OSError:
            return
        if about.st_mtime_ns == self._seen:
            return
        found = read_json(self._spec.folder / ORDER)
        if found is None or found.get("attempt") != self._spec.attempt:
            return
        self._seen = about.st_mtime_ns
        self._obey(found, now)

    def _obey(self, order: dict[str, Any], now: float) -> None:
        self._order, self._answered = order, ""
        begin = {"preload": self._preload, "prepare": self._prepare, "stop": self._stop, "start": self._start,
                 "abort": self._abort}.get(order.get("order", ""))  # fmt: skip
        if begin is not None:
            begin(now)

    # --- the orders

    def _preload(self, _now: float) -> None:
        self._crew.tell("preload")

    def _preparing(self, now: float) -> None:
        self._preloading(now)

    def _preloading(self, _now: float) -> None:
        ranks = self._crew.round.ranks
        if not self._all_there() or any(rank.preloaded is None for rank in ranks):
            return
        cold = {str(rank.rank): rank.preloaded[1] for rank in ranks if rank.preloaded and not rank.preloaded[0]}
        self._answer("prepared" if self.holding else "preloaded", cold=cold)

    def _prepare(self, _now: float) -> None:
        folder = self._order.get("workingDir")
        if folder and not Path(folder).is_dir():
            self._answer("failed", message=f"the new code is not at {folder}")
            self._order = {}
            return
        self.holding = True
        self._crew.tell("hold")
        self._crew.tell("preload")

    def _stop(self, now: float) -> None:
        grace = self._spec.grace_period_seconds
        self._deadline, self._ended = now + grace, False
        request = {"reason": REASON, "deadline": time.time() + grace, "attempt": self._spec.attempt}
        with contextlib.suppress(OSError):
            write_json(self._spec.folder / STOP_FILE, request)
        self._say(f"stop requested (Reload), {grace:g} s to save")
        self._crew.tell("stop")

    def _stopping(self, now: float) -> None:
        ranks = self._crew.round.ranks
        if self._all_there() and all(rank.held for rank in ranks):
            remove(self._spec.folder / STOP_FILE)
            saved = [rank.result for rank in ranks if rank.result]
            step = next((result.get("step") for result in saved), None)
            self._answer("stopped", step=step, saved=len(saved) == len(ranks))
        elif self._all_there() and not self._ended and all(rank.result for rank in ranks):
            self._ended = True  # a result is a rank's last word: nobody waits for its interpreter to go
            self._crew.tell("end")
        elif now > self._deadline:
            self._deadline = now + 5.0
            self._say("a rank did not stop within the grace period and is ended")
            self._crew.tell("end")

    def _start(self, _now: float) -> None:
        told = {"generation": int(self._order["generation"]), "workingDir": self._order.get("workingDir")}
        write_json(self._spec.folder / GENERATION, told)  # also for ranks that a launcher starts later
        self._crew.tell("start", told)

    def _starting(self, _now: float) -> None:
        ranks, generation = self._crew.round.ranks, int(self._order["generation"])
        began = [rank.generation == generation and self._begun(rank) for rank in ranks]
        if not self._all_there() or not all(began):
            return
        self.holding = False
        at = [rank.running_at for rank in ranks if rank.running_at is not None]
        self._answer("started", running=max(at) if len(at) == len(ranks) else None)

    def _begun(self, rank: Rank) -> bool:
        """A process is there; one that was a preloader has told that it runs the program."""
        warm = rank.running_at is not None or not self._order.get("warm")
        return rank.main_pid is not None and (warm or not rank.running)

    def _abort(self, _now: float) -> None:
        if self.holding:
            self._say("new code was not taken: not all workers could")
        self.holding = False
        remove(self._spec.folder / STOP_FILE)
        self._crew.tell("release")
        self._answer("aborted")

    def _all_there(self) -> bool:
        return len(self._crew.round.ranks) >= self._crew.round.expected

    def _answer(self, state: str, **more: Any) -> None:
        self._answered = self._order.get("order", "")
        told = {"generation": self._order.get("generation"), "order": self._answered, "state": state,
                "attempt": self._spec.attempt, "time": time.time(), "pid": os.getpid(), **more}  # fmt: skip
        with contextlib.suppress(OSError):
            write_json(self._spec.folder / ANSWER, told)
        if self._socket is not None:
            self._socket.tell(told)
