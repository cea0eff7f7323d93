"""Checkpoints that are complete or not there: saving, keeping the last few, resuming from the newest."""

from __future__ import annotations

import logging
import shutil
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

from orchestra.train import environment, fencing, pieces, staging
from orchestra.train.background import Order, Outcome, Writer
from orchestra.train.manifest import Position, chain, choose, highest_fence, left_behind, positions, set_aside
from orchestra.train.publishing import NotWritten, Task, count, perform, write_state
from orchestra.train.reporting import phase, progress, reporter
from orchestra.train.world import Refused

_log = logging.getLogger("orchestra.train")
_HALF_AN_HOUR = 1800.0
_SEEN_LATE = 60.0  # what one node writes, another sees at once, or when its cache of a network's folder has run out
_WRITE_ERRORS = (
    OSError,
    RuntimeError,
    NotWritten,
    fencing.TakenOver,
)  # torch turns some write errors into RuntimeError


class SaveFailed(Exception):
    """A checkpoint could not be written. The ones before it are untouched."""


@dataclass(frozen=True)
class Loaded:
    """A checkpoint read back."""

    step: int
    path: Path
    state: dict[str, Any]


@dataclass
class SaveTimes:
    """What saving costs, in seconds. Stall: how long the training stood still."""

    first_stall: float | None = None
    later_stall: float | None = None
    """The longest of the later ones."""
    save: float | None = None
    """The last save, from its beginning to the published folder."""


class Checkpoints:
    """The checkpoints of one training, in one folder that all ranks see.

    `save`, `save_async`, `wait` and `load` are called on all ranks alike. Under DDP all ranks hold the same state and
    rank 0 writes; a state with distributed tensors (FSDP2) is written by all ranks, each its own part. A process killed
    at any moment leaves the newest complete checkpoint as it was.

    Fenced: once a newer attempt has loaded, what an older one still publishes is never read (fencing.py). A second
    job that is alive on the same folder is refused.
    """

    def __init__(
        self, folder: str | Path, *, keep: int = 3, timeout: float = _HALF_AN_HOUR, asynchronous: bool = False
    ) -> None:
        if keep < 1:
            raise ValueError(f"keep={keep}: at least the newest checkpoint must be kept")
        self.folder = Path(folder).absolute()
        self.times = SaveTimes()
        self._keep = keep
        self._limit = timeout
        self._ranks = _Ranks(timeout)
        self._newest: Loaded | None = None
        self._fence: fencing.Fence | None = None
        self._writer = Writer(self._on_outcome) if asynchronous else None
        self._arena: staging.Arena | None = None
        self._shared = False
        self._in_flight: int | None = None
        self._handed_over = False
        self._warned: set[str] = set()

    def save(
        self, step: int, state: Mapping[str, Any], *, metric: float | None = None, exports: Sequence[Path] = ()
    ) -> Path:
        """Write the state after this step and return its folder, which is complete and on disk by then.

        `metric` (lower is better) decides what `best` points at. `exports` are files to make of it: the same state,
        unsharded, in one file for torch.load. What was already saved (or loaded) by this process for this step is not
        written again. Raises `SaveFailed` on all ranks if any could not write.
        """
        if self._in_flight is not None:
            self.wait()
        if self._newest is not None and self._newest.step == step:
            return self._newest.path
        sharded = pieces.is_sharded(state)
        task = self._task(step, sharded, metric, exports)
        content = pieces.own_part(state, task.rank) if sharded else pieces.replaced(state, lambda leaf: leaf)
        return self._save_now(task, write_state(content, task.rank, sharded))

    def save_files(self, step: int, write: Callable[[Path], None], *, metric: float | None = None) -> Path:
        """Like `save`, for those who write their own files: `write` is called on all ranks with the folder to fill."""
        if self._in_flight is not None:
            self.wait()
        if self._newest is not None and self._newest.step == step:
            return self._newest.path
        task = self._task(step, sharded=False, metric=metric, exports=())
        task.draft.mkdir(parents=True, exist_ok=True)
        error = None
        with phase("save", self._limit):
            try:
                write(task.draft)
            except _WRITE_ERRORS as failure:
                error = f"rank {self._ranks.rank}: {failure}"
            errors = [reason for reason in self._ranks.gather(error) if reason]
            if errors:
                if self._ranks.rank == 0:
                    shutil.rmtree(task.draft, ignore_errors=True)
                raise SaveFailed(f"checkpoint of step {step} not written to {self.folder}: {errors[0]}")
        return self._save_now(task, count)

    def save_async(
        self, step: int, state: Mapping[str, Any], *, metric: float | None = None, exports: Sequence[Path] = ()
    ) -> None:
        """Like `save`, but the training waits only until the state is copied; the writer process does the rest.

        If the last save is still being written, waits for it first. Its failure is raised here, on all ranks. Saves
        like `save` where there is no writer, or no memory for the copy: then it says so, once.
        """
        begun = time.monotonic()
        if self._in_flight is not None:
            self.wait()
        if self._newest is not None and self._newest.step == step:
            return
        sharded = pieces.is_sharded(state)
        task = self._task(step, sharded, metric, exports)
        writes = task.rank < task.writers
        content: Any = None
        if writes:
            content = pieces.own_part(state, task.rank) if sharded else state
        skeleton, copies, size = staging.plan(content)
        if self._writer is None or not self._all_have_room(size if writes else 0):
            self.save(step, state, metric=metric, exports=exports)
        else:
            self._handed_over = writes and self._arena is not None
            if writes and self._arena is not None:
                staging.copy_into(self._arena, copies)
                self._writer.submit(Order(task, skeleton, sharded), self._arena)
            self._in_flight = step
        self._count_stall(time.monotonic() - begun)

    def wait(self) -> Path | None:
        """Wait until the save begun last is on disk. Returns the newest checkpoint's folder, if there is any."""
        if self._in_flight is not None:
            step, self._in_flight = self._in_flight, None
            with phase("save", self._limit):
                mine = self._writer.outcome() if self._writer is not None and self._handed_over else Outcome(step)
                self._agree(step, mine)
        return self._newest.path if self._newest else None

    def reserve(self, size: int) -> bool:
        """Take the memory for asynchronous saves of up to `size` bytes a rank now, not in the first save.

        False, with a word in the log, if there is not enough: saves will then be synchronous.
        """
        return self._all_have_room(size) if self._writer is not None else False

    def load(self, map_location: Any = "cpu", *, into: Any = None) -> Loaded | None:
        """The newest complete checkpoint, the same on all ranks, or None where there is none.

        From here on this training is the one that publishes into the folder. (To only look, use `last_complete`.)
        Newer ones that are not complete are set aside under another name, with the reason in the log.

        With `into`, a state of the same form (or a function that makes one, called only if there is something to
        load), its tensors are filled and returned in the places of the saved ones. They may be distributed, and over
        another number of ranks than the saved ones were. Without it sharded checkpoints come whole.
        """
        with phase("load", self._limit):
            self._begin(check=True)
            if self._fence is None or self._fence.resumed is None:
                return None
            path = self.folder / self._fence.resumed
            state = pieces.read(path, map_location)
            state = pieces.whole(state) if into is None else pieces.fill(into() if callable(into) else into, state)
            step = int(path.name.removeprefix("step-").partition(".")[0])
        return self._remember(Loaded(step, path, state))

    def start_over(self) -> Path | None:
        """Move all checkpoints that are there out of the way. Returns where they are now, if there were any."""
        old = [self.folder.with_name(f"{self.folder.name}.old-{number}") for number in range(1, 1000)]
        moved = None
        if self._ranks.rank == 0 and positions(self.folder):
            moved = self.folder.rename(next(path for path in old if not path.exists()))
        self._ranks.share(None)
        return moved

    def close(self) -> None:
        """Let the writer process go. `wait` first, if the last save matters."""
        if self._writer is not None:
            self._writer.close()
        if self._arena is not None:
            self._arena.close()
        self._writer = self._arena = None

    def _save_now(self, task: Task, write: Callable[[Path], Any]) -> Path:
        begun = time.monotonic()
        outcome = Outcome(task.step)
        with phase("save", self._limit):
            if task.rank < task.writers:
                try:
                    name = perform(task, write)
                    outcome = Outcome(task.step, name, None, time.monotonic() - begun)
                except _WRITE_ERRORS as failure:
                    outcome = Outcome(task.step, error=str(failure))
            return self._agree(task.step, outcome)

    def _agree(self, step: int, outcome: Outcome) -> Path:
        """All ranks learn rank 0's outcome: it knows of the others' failures, too."""
        agreed: Outcome = self._ranks.share(outcome)
        error = agreed.error or (outcome.error if self._ranks.rank != 0 else None)
        if error:
            raise SaveFailed(f"checkpoint of step {step} not written to {self.folder}: {error}")
        self.times.save = agreed.seconds
        self._warn_of_short_grace()
        return self._remember(Loaded(step, self.folder / agreed.name, {})).path

    def _on_outcome(self, outcome: Outcome) -> None:
        """On the thread that hears the writer: people see the new checkpoint before the next save."""
        if outcome.error is None and outcome.name:
            progress(checkpoint_step=outcome.step)

    def _remember(self, newest: Loaded) -> Loaded:
        self._newest = Loaded(newest.step, newest.path, {})
        progress(checkpoint_step=newest.step)
        return newest

    def _task(self, step: int, sharded: bool, metric: float | None, exports: Sequence[Path]) -> Task:
        self._begin(check=False)
        assert self._fence is not None  # noqa: S101 - begun
        if sharded:
            self._refuse_folders_apart()
        writers = self._ranks.size if sharded else 1
        attempt, files = environment.attempt(), tuple(Path(path).absolute() for path in exports)
        rank, size = self._ranks.rank, self._ranks.size
        return Task(
            self.folder, step, self._fence, rank, writers, size, attempt, self._keep, self._limit, metric, files
        )

    def _begin(self, check: bool) -> None:
        """Become the attempt that publishes here, unless it is already."""
        if self._fence is not None and not check:
            return
        begun: fencing.Fence | str | None = None
        if self._ranks.rank == 0:
            try:
                fencing.refuse_company(self.folder)
                begun = self._take_fence(check)
            except fencing.InUse as error:
                begun = str(error)
            except OSError as error:
                begun = f"the checkpoint folder {self.folder} cannot be used: {error}"
        begun = self._ranks.share(begun)
        if isinstance(begun, str):
            raise Refused(begun)
        self._fence = begun

    def _refuse_folders_apart(self) -> None:
        """Parts meet in one folder: rank 0 would wait until the time limit for those it cannot see."""
        if self._shared or self._fence is None:
            return
        until = time.monotonic() + _SEEN_LATE
        while not (seen := fencing.is_seen(self.folder, self._fence)) and time.monotonic() < until:
            time.sleep(0.5)
        apart = [rank for rank, sees in enumerate(self._ranks.gather(seen)) if not sees]
        if apart:
            raise Refused(
                f"{self.folder} is not one folder for all nodes (rank {apart[0]} does not see what rank 0 writes): a "
                "sharded state needs one; give the job storage.checkpoints that all nodes mount, or use DDP"
            )
        self._shared = True

    def _take_fence(self, check: bool) -> fencing.Fence:
        while True:
            position = self._select() if check else next(iter(chain(self.folder)), None)
            name = position.name if position else None
            taken = fencing.take(self.folder, highest_fence(self.folder) + 1, name)
            if taken is not None:
                return taken

    def _select(self) -> Position | None:
        choice = choose(self.folder)
        for position, reason in choice.unfit.items():
            aside = set_aside(self.folder, position)
            _log.warning("checkpoint %s is not used and now called %s: %s", position.name, aside.name, reason)
        for path in left_behind(self.folder):
            shutil.rmtree(path, ignore_errors=True)
        return choice.position

    def _all_have_room(self, size: int) -> bool:
        """Whether all ranks have the memory: a save is asynchronous on all of them or on none."""
        reason = None
        if size and (self._arena is None or self._arena.size < size):
            if self._arena is not None:
                self._arena.close()
                self._arena = None
            try:
                import torch

                uses_cuda: bool = torch.cuda.is_initialized()  # type: ignore[no-untyped-call]
                self._arena = staging.Arena(size, pin=uses_cuda)
            except (staging.NoRoom, OSError, ValueError) as error:
                reason = f"rank {self._ranks.rank}: {error}"
        reasons = [one for one in self._ranks.gather(reason) if one]
        if reasons:
            self._warn(f"checkpoints are saved synchronously: {reasons[0]}")
        return not reasons

    def _count_stall(self, seconds: float) -> None:
        times = self.times
        if times.first_stall is None:
            times.first_stall = seconds
        else:
            times.later_stall = max(times.later_stall or 0.0, seconds)
        progress(first_stall_seconds=times.first_stall, stall_seconds=times.later_stall)

    def _warn_of_short_grace(self) -> None:
        grace, save = environment.grace_seconds(), self.times.save
        step = reporter().step_seconds() or 0.0
        if grace is not None and save is not None and grace < step + save:
            self._warn(
                f"the grace period of {grace:g} s is shorter than a step ({step:.1f} s) and a save ({save:.1f} s): a "
                "stop may lose the work since the last checkpoint. Give a longer gracePeriodSeconds."
            )

    def _warn(self, text: str) -> None:
        if self._ranks.rank == 0 and text not in self._warned:
            self._warned.add(text)
            _log.warning("%s", text)


class _Ranks:
    """What ranks tell each other about saves, on a CPU group of its own: it may outlast the training's time limit."""

    def __init__(self, timeout: float) -> None:
        import torch.distributed as dist

        joined = dist.is_available() and dist.is_initialized()
        self.rank = dist.get_rank() if joined else 0
        self.size = dist.get_world_size() if joined else 1
        self._group: Any = dist.new_group(backend="gloo", timeout=timedelta(seconds=timeout)) if self.size > 1 else None

    def share(self, thing: Any) -> Any:
        """Rank 0's thing, on all ranks."""
        if self._group is None:
            return thing
        import torch.distributed as dist

        told = [thing]
        dist.broadcast_object_list(told, src=0, group=self._group)
        return told[0]

    def gather(self, thing: Any) -> list[Any]:
        """Every rank's thing, on all ranks."""
        if self._group is None:
            return [thing]
        import torch.distributed as dist

        told: list[Any] = [None] * self.size
        dist.all_gather_object(told, thing, group=self._group)
        return told
