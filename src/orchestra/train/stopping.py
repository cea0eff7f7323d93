"""Stopping all ranks at one agreed step, when any one of them is asked to stop."""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import threading
from datetime import timedelta
from pathlib import Path
from typing import Any

from orchestra.train import environment
from orchestra.train.reporting import collective

_HALF_AN_HOUR = 1800.0


class Stop:
    """Whether training must stop, agreed between all ranks.

    `agreed()` is called at numbered points that all ranks pass equally often: after each optimizer step, say. It
    answers the same on all ranks, so that all of them save the same step, even if only one was asked. The ranks
    exchange their wishes at point k in the background and read them at point k+1: nobody waits for an answer, and
    a stop takes effect one point after it was first seen.

    Make it on all ranks, after `init` and loading: until then a SIGTERM ends the process, for there is nothing to
    save. From then on a SIGTERM asks for a stop if the agent's stop file exists. If not, it is torchrun clearing
    away the survivors of a crash, and ends the process at once, as if nobody had listened.

    It does not promise that the point comes soon: a rank that waits for data finishes its batch first. `timeout`
    is how long a rank waits for the others' answer before it raises.
    """

    def __init__(self, timeout: float = _HALF_AN_HOUR) -> None:
        self.point = 0
        """The number of points passed."""
        self.requested_by: int | None = None
        """A rank that asked for the stop, once it is agreed."""
        self._timeout = timeout
        self._request = _Request(environment.stop_file())
        self._group = _own_group(timeout)
        self._exchange: _Exchange | None = None

    def agreed(self) -> bool:
        """Pass the next point. True: stop here, like all other ranks."""
        self.point += 1
        if self._group is None:
            if self._request.made():
                self.requested_by = 0
            return self.requested_by is not None
        collective()
        self._read()
        if self.requested_by is None:
            self._exchange = _Exchange(self._group, wish=self._request.made())
        return self.requested_by is not None

    def close(self) -> None:
        """Wait until all ranks are here, and give SIGTERM back. Call it after the last step, or after the last save.

        A rank whose agent ends it while others still hear from it would make them fail. Once all have come this far
        nothing can be lost any more, so that errors no longer matter.
        """
        if self._group is not None:
            with contextlib.suppress(RuntimeError):
                self._read()
                _Exchange(self._group, wish=False).answer()
        self._request.forget()

    def _read(self) -> None:
        if self._exchange is None:
            return
        try:
            self.requested_by = self._exchange.answer()
        except RuntimeError as error:
            raise RuntimeError(
                f"the ranks could not agree whether to stop: point {self.point - 1} was not answered by all of them "
                f"within {self._timeout:g} s, or one of them is gone ({error})"
            ) from error
        self._exchange = None


class _Exchange:
    """One question to all ranks: who wants to stop?"""

    def __init__(self, group: Any, wish: bool) -> None:
        import torch
        import torch.distributed as dist

        self._highest = torch.tensor([dist.get_rank() if wish else -1])
        self._work: Any = dist.all_reduce(self._highest, op=dist.ReduceOp.MAX, group=group, async_op=True)

    def answer(self) -> int | None:
        """The highest rank that wants to stop."""
        self._work.wait()
        rank = int(self._highest.item())
        return rank if rank >= 0 else None


def _own_group(timeout: float) -> Any:
    """A group of CPU tensors that shares neither its order of calls nor its time limit with the training's own."""
    import torch.distributed as dist

    if not (dist.is_available() and dist.is_initialized() and dist.get_world_size() > 1):
        return None
    return dist.new_group(backend="gloo", timeout=timedelta(seconds=timeout))


class _Request:
    """The wish of this process's agent, told by a file that exists, and by SIGTERM to look at once."""

    def __init__(self, file: Path | None) -> None:
        self._file = file
        self._seen = False
        self._mask = threading.local()  # a mask belongs to the thread that forks
        self._listening = file is not None and threading.current_thread() is threading.main_thread()
        if self._listening:
            self._listen()

    def made(self) -> bool:
        """Was a stop requested? Looks at the file too: the signal may have come before we listened."""
        self._seen = self._seen or (self._file is not None and self._file.exists())
        return self._seen

    def forget(self) -> None:
        """Leave SIGTERM to its default action again."""
        if self._listening:
            _default_sigterm()
            self._listening = False

    def _listen(self) -> None:
        # Python runs a handler only when the main thread is back in Python, and a rank that waits in a collective
        # for a dead peer is not. So the signal also goes to a thread, by the wake-up descriptor.
        reading, writing = os.pipe()
        os.set_blocking(writing, False)
        threading.Thread(target=self._watch, args=(reading,), name="orchestra-stop", daemon=True).start()
        signal.signal(signal.SIGTERM, lambda *_: self._on_sigterm())
        signal.set_wakeup_fd(writing, warn_on_full_buffer=False)
        # A forked child would write its own signals into our pipe, and that would end us: it does not get any
        # before it has left the pipe alone.
        os.register_at_fork(
            before=self._hold_back_signals, after_in_parent=self._let_signals_in, after_in_child=self._forget_in_child
        )

    def _hold_back_signals(self) -> None:
        self._mask.before_fork = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})

    def _let_signals_in(self) -> None:
        signal.pthread_sigmask(signal.SIG_SETMASK, self._mask.before_fork)

    def _forget_in_child(self) -> None:
        self.forget()
        self._let_signals_in()

    def _watch(self, reading: int) -> None:
        while True:
            if signal.SIGTERM in os.read(reading, 64):
                self._on_sigterm()

    def _on_sigterm(self) -> None:
        if self._listening and not self.made():
            _die_of_sigterm()


def _default_sigterm() -> None:
    signal.set_wakeup_fd(-1)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)


def _die_of_sigterm() -> None:
    # By way of libc, because signal.signal() is for the main thread only, which may never come back.
    set_action = ctypes.CDLL(None).signal
    set_action.argtypes = [ctypes.c_int, ctypes.c_void_p]
    set_action(signal.SIGTERM, int(signal.SIG_DFL))
    os.kill(os.getpid(), signal.SIGTERM)
