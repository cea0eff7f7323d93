"""The sidecar's part of new code: hears of it from the store, brings it beside what runs, and tells the agent.

What the agent does (hold the ranks, stop them at one step, start them again) it does by orders over a Unix socket; what
needs the store or the folder (stage, flip) is done here, because the trainer's image has nothing of ours.
"""

from __future__ import annotations

import json
import socket
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec

from orchestra.sync import inplace
from orchestra.sync.board import Report
from orchestra.sync.client import DirectAsk, served_store
from orchestra.sync.errors import SyncError
from orchestra.sync.moving import Orders, say
from orchestra.sync.store import Store

POLL_SECONDS = 25
_HALF_WAY_SECONDS = 180.0
"""Between two orders of one change: a store that is gone for longer will not give the next one."""
_ANSWER_SECONDS = 600.0
_TICK = 0.05
_BY_AGENT = {"preload": "preloaded", "prepare": "prepared", "stop": "stopped", "start": "started", "abort": "aborted"}


class Agent:
    """The agent's socket. One order at a time; closed, the agent takes back what is half-way."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._connection: socket.socket | None = None
        self._rest = b""

    def ask(self, order: dict[str, Any], seconds: float, stopped: Callable[[], bool]) -> dict[str, Any]:
        """Gives an order and waits for its answer; `failed` where there is none."""
        try:
            connection = self._connected()
            connection.sendall(json.dumps(order).encode() + b"\n")
            until = time.monotonic() + seconds
            while not stopped():
                answer = self._answer(connection, order)
                if answer is not None:
                    return answer
                if time.monotonic() > until:
                    return _failed(f"the agent did not answer within {seconds:g} s")
        except OSError as error:
            self.leave()
            return _failed(f"the agent does not listen: {error.strerror or error}")
        return _failed("the pod is being ended")

    def leave(self) -> None:
        """Lets go."""
        if self._connection is not None:
            self._connection.close()
        self._connection, self._rest = None, b""

    def _connected(self) -> socket.socket:
        if self._connection is None:
            made = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
            made.settimeout(5.0)
            made.connect(str(self._path))
            made.settimeout(0.5)
            self._connection = made
        return self._connection

    def _answer(self, connection: socket.socket, order: dict[str, Any]) -> dict[str, Any] | None:
        try:
            data = connection.recv(65536)
        except TimeoutError:
            return None
        if not data:
            raise ConnectionResetError(104, "it has ended")
        *lines, self._rest = (self._rest + data).split(b"\n")
        for line in lines:
            told: dict[str, Any] = json.loads(line)
            same = told.get("generation") == order["generation"]
            if same and (told.get("state") == "failed" or told.get("order") == order["order"]):
                return told
        return None


class Follower:
    """Asks the store for orders until the pod ends."""

    def __init__(self, orders: Orders, stop: threading.Event) -> None:
        """`orders` name the store, the folder and this worker."""
        if orders.workspace is None or not orders.code_folder or not orders.socket:
            raise SyncError("the orders name no workspace store, no folder or no socket")
        self._orders, self._stop = orders, stop
        self._served, self._folder = orders.workspace, Path(orders.code_folder)
        token = Path(self._served.token_file)
        self._ask = DirectAsk(self._served.url, lambda: token.read_text().strip(), seconds=_HALF_WAY_SECONDS)
        self._agent = Agent(Path(orders.socket))
        self._half_way, self._until = False, 0.0
        self._seen, self._answer = "", dict[str, Any]()

    def run(self) -> int:
        """0 at the end of the pod. A store that is away is asked again: nothing depends on it while the job trains."""
        said = ""
        while not self._stop.is_set():
            try:
                order = self._next()
                said = ""
            except SyncError as error:
                if str(error) != said:
                    said = str(error)
                    say(f"no news of the code: {error}")
                self._let_go("the workspace store is gone")
                self._stop.wait(5.0)
                continue
            if order:
                self._seen = order["id"]
                self._answer = {"id": order["id"], **self._obey(order)}
        self._agent.leave()
        return 0

    def _next(self) -> dict[str, Any]:
        path = f"/v1/workers/{self._orders.uid}?wait={POLL_SECONDS}"
        found: dict[str, Any] = json.loads(self._ask("POST", path, msgspec.json.encode(self._report()), {}))
        if not found and self._half_way and time.monotonic() > self._until:
            self._let_go("nobody gave the next order")
        return found

    def _report(self) -> Report:
        here, orders = inplace.standing(self._folder), self._orders
        return Report(
            worker=orders.worker, attempt=orders.attempt, node=orders.node, snapshot=here.id if here else "",
            seen=self._seen, answer=self._answer, half_way=self._half_way,
        )  # fmt: skip

    def _obey(self, order: dict[str, Any]) -> dict[str, Any]:
        name, begun = order["order"], time.monotonic()
        try:
            if name == "prepare" and self._flips:
                staged = inplace.stage(self._store(), order["snapshot"], self._folder)
                changes = f"{len(staged.paths):,} changed, {len(staged.removed):,} removed"
                say(f"generation {order['generation']}: {changes}, staged in {time.monotonic() - begun:.2f} s")
            if name == "flip":
                if self._flips:
                    inplace.flip(self._folder, order["snapshot"])
                self._until = time.monotonic() + _HALF_WAY_SECONDS
                return {"state": "flipped"}
        except (SyncError, OSError) as error:
            say(f"generation {order['generation']}: {error}")
            return _failed(str(error))
        answer = self._told(order)
        self._half_way = name in ("prepare", "stop") and answer.get("state") == _BY_AGENT[name]
        self._until = time.monotonic() + _HALF_WAY_SECONDS
        if name == "start" and answer.get("state") == "started":
            say(f"generation {order['generation']} runs: snapshot {order['snapshot'][:12]}")
            threading.Thread(target=self._watch_first_step, args=(order,), daemon=True).start()
        return answer

    @property
    def _flips(self) -> bool:
        """A folder that all workers share is changed by the first."""
        return not self._orders.shared_code or self._orders.node == 0

    def _told(self, order: dict[str, Any]) -> dict[str, Any]:
        if order["id"] == "lost":  # the agent takes back what its giver leaves behind
            self._agent.leave()
            say("the workspace store was started anew: the change on its way is given up")
            return {"state": "aborted"}
        if order["order"] not in _BY_AGENT:
            return _failed(f"{order['order']} is not known here: the store is newer than this pod")
        about = {name: order[name] for name in ("order", "generation", "attempt", "warm")}
        seconds = float(order.get("grace") or 0) + 30 if order["order"] == "stop" else _ANSWER_SECONDS
        answer = self._agent.ask(about, seconds, self._stop.is_set)
        say(f"generation {order['generation']}: {order['order']}: {answer.get('message') or answer.get('state')}")
        return answer

    def _let_go(self, why: str) -> None:
        """Ranks that wait for the next order must not wait for ever."""
        if self._half_way and time.monotonic() > self._until:
            self._half_way = False
            say(f"new code is given up: {why}")
            self._agent.leave()

    def _store(self) -> Store:
        return served_store(self._served.url, Path(self._served.token_file))

    def _watch_first_step(self, order: dict[str, Any]) -> None:
        """Tells when a rank here first reports a step with the new code; the shims have removed what was there."""
        ranks = Path(self._orders.socket or "").parent / "ranks"
        while not self._stop.wait(_TICK) and self._seen == order["id"]:
            if any(_has_step(file) for file in ranks.glob("*/progress.json")):
                answer = {**self._answer, "id": order["id"], "state": "started", "stepped": True}
                told = msgspec.structs.replace(self._report(), answer=answer)
                try:
                    self._ask("POST", f"/v1/workers/{self._orders.uid}?wait=0", msgspec.json.encode(told), {})
                except SyncError:
                    return
                return


def _has_step(file: Path) -> bool:
    try:
        return json.loads(file.read_bytes()).get("step") is not None
    except (OSError, ValueError, AttributeError):
        return False


def _failed(message: str) -> dict[str, Any]:
    return {"state": "failed", "message": message}
