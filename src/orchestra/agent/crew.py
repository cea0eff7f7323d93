"""The agent's end of the connections to its shims: turns their messages into the view of the ranks."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from .channel import Channel, parse_line
from .environment import oom_kills
from .files import read_json
from .hang import Watch
from .logbook import Logbook
from .processes import descendants, process_table
from .ranks import Rank, Round

_MEMORY_KILL_SECONDS = 10.0


class Crew:
    """All shims that have called, of this round and of those before."""

    def __init__(self, folder: Path, procs: int, log: Logbook, announce: Callable[[str], None]) -> None:
        """`announce` writes a line of the agent's own."""
        self.round = Round(procs)
        self._folder = folder / "ranks"
        self._log = log
        self._announce = announce
        self._by_channel: dict[Channel, Rank | None] = {}
        self._memory_kills = oom_kills()
        self._memory_kill_at = float("-inf")
        self.lost_shims = 0

    def add(self, channel: Channel) -> None:
        """A shim has connected."""
        self._by_channel[channel] = None

    def tell(self, what: str, more: Mapping[str, Any] | None = None) -> None:
        """Sends every shim with a running or held rank an order."""
        for channel, rank in self._by_channel.items():
            if rank is not None and (rank.running or rank.held):
                self.tell_one(channel, what, more)

    def tell_one(self, channel: Channel, what: str, more: Mapping[str, Any] | None = None) -> None:
        """Sends one shim an order: `stop`, `stacks`, `end`, or one of a hot reload."""
        channel.send({"do": what, **(more or {})})
        channel.flush()

    def hear(self, channel: Channel) -> str | None:
        """Takes in what a shim sent. Returns `hello` if its rank is new, `gone` if the connection has ended."""
        news = None
        for message in channel.receive():
            if message[:1] == b"L":
                self._line(self._by_channel[channel], message)
            elif message[:1] == b"J":
                news = self._message(channel, json.loads(message[1:].decode())) or news
        if channel.closed:
            self._gone(channel)
            return "gone"
        return news

    def _line(self, rank: Rank | None, message: bytes) -> None:
        if rank is not None:
            stream, when, text = parse_line(message)
            self._log.write(when, f"r{rank.rank}", text)
            rank.take_line(stream, text)
            rank.watch.output(time.monotonic())

    def _message(self, channel: Channel, message: dict[str, Any]) -> str | None:
        kind, rank = message.get("kind"), self._by_channel[channel]
        if kind == "hello":
            self._by_channel[channel] = self._join(message)
            return "hello"
        if kind == "started" and rank is not None:
            rank.main_pid = message["main"]
        elif kind == "preloaded" and rank is not None:
            rank.preloaded = (bool(message["ready"]), str(message["reason"]))
        elif kind == "running" and rank is not None:
            rank.running_at = float(message["time"])
        elif kind == "exit" and rank is not None:
            rank.take_exit(message)
            self._look_at(rank, time.monotonic())
            self.watch_memory()
            rank.memory_kill = time.monotonic() - self._memory_kill_at < _MEMORY_KILL_SECONDS
        return None

    def _join(self, hello: dict[str, Any]) -> Rank:
        rank = Rank(
            rank=hello["rank"],
            local_rank=hello["localRank"],
            round=hello["round"],
            shim_pid=hello["pid"],
            launcher_pid=hello["launcherPid"],
            local_world_size=hello["localWorldSize"],
            watch=Watch(time.monotonic()),
            generation=int(hello.get("generation", 0)),
        )
        before = max((one.generation for one in self.round.ranks), default=rank.generation)
        new = self.round.join(rank)
        if new and rank.generation > before:
            self._announce(f"ranks start again with new code (generation {rank.generation})")
        elif new:
            failure = self.round.last_failure
            why = f"rank {failure.rank} failed: {failure.reason}, {failure.message}" if failure else "the nodes changed"
            self._announce(f"ranks start again (restart {rank.round}): {why}")
        return rank

    def _gone(self, channel: Channel) -> None:
        rank = self._by_channel.pop(channel)
        channel.close()
        if rank is not None and rank.running:
            rank.how, rank.ended = "lost", time.time()
            self._look_at(rank, time.monotonic())
            self.lost_shims += 1

    def watch_memory(self) -> None:
        """Notes when the kernel last killed something for want of memory."""
        count = oom_kills()
        if count > self._memory_kills:
            self._memory_kill_at = time.monotonic()
        self._memory_kills = count

    def look(self, now: float) -> None:
        """Reads the files of the running ranks."""
        for rank in self.round.running():
            self._look_at(rank, now)

    def look_for_results(self, now: float) -> bool:
        """Only the results, which must be seen soon. Returns whether a rank has stopped."""
        for rank in self.round.running():
            self._look_for_result(rank, now)
        return any(rank.result and rank.stopped for rank in self.round.ranks)

    def _look_at(self, rank: Rank, now: float) -> None:
        progress = read_json(self._folder / str(rank.rank) / "progress.json")
        if progress is not None:
            rank.watch.report(progress, now)
        self._look_for_result(rank, now)

    def _look_for_result(self, rank: Rank, now: float) -> None:
        if rank.result is None:
            result = read_json(self._folder / str(rank.rank) / "result.json")
            if result is not None and result.get("state") in ("stopped", "done"):
                rank.result, rank.result_seen = result, now

    def measure_cpu(self, now: float) -> None:
        """CPU time of each running rank's processes, for ranks that report nothing."""
        table = process_table()
        for rank in self.round.running():
            below = descendants(rank.shim_pid, table)
            rank.watch.used_cpu(sum(table[pid].cpu_seconds for pid in below), now)

    def watches(self) -> dict[int, Watch]:
        """Of the running ranks, by global rank."""
        return {rank.rank: rank.watch for rank in self.round.running()}

    def channels(self) -> list[Channel]:
        """All that are open."""
        return list(self._by_channel)
