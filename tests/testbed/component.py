"""One program of the control plane, to be stopped, killed and brought back by a test."""

import signal
from collections.abc import Callable

from testbed.processes import ProcessError, Processes
from testbed.waiting import PATIENCE, wait_until


class ComponentDiedError(Exception):
    """A program ended when it should have become ready; the message holds the end of its log."""

    def __init__(self, name: str, log_tail: str) -> None:
        self.log_tail = log_tail
        super().__init__(f"{name} ended while it was starting. The end of its log:\n{log_tail}")


class Component:
    """A started program and the question by which one knows that it is ready."""

    def __init__(self, processes: Processes, name: str, ready: Callable[[], bool]) -> None:
        self.name = name
        self._processes = processes
        self._ready = ready

    @property
    def pid(self) -> int:
        """Its process id, or that of its last run."""
        return self._processes.record(self.name).pid

    def alive(self) -> bool:
        """Whether the process runs."""
        return self._processes.alive(self.name)

    def stop(self, timeout: float = 10.0) -> None:
        """End it the polite way. An API server with open watches uses up the whole timeout, then it is
        killed.
        """
        self._processes.stop(self.name, timeout)

    def kill9(self) -> None:
        """End it without a chance to say anything to anybody."""
        self._processes.kill9(self.name)

    def restart(self, timeout: float = PATIENCE) -> None:
        """Start it again (after killing it, where it still runs) as it was; returns when it is ready."""
        self._processes.kill9(self.name)
        self._processes.restart(self.name)
        self.wait_ready(timeout)

    def was_started(self) -> bool:
        """Whether it belongs to this control plane at all, dead or alive."""
        return any(record.name == self.name for record in self._processes.records())

    def repair(self) -> None:
        """Start it again where it is dead, let it go on where it is paused."""
        if self.alive():
            self.resume()
        else:
            self.restart()

    def pause(self) -> None:
        """SIGSTOP: it holds its connections and its port, and does nothing."""
        self._signal(signal.SIGSTOP)

    def resume(self) -> None:
        """SIGCONT: it goes on as if no time had passed."""
        self._signal(signal.SIGCONT)

    def wait_ready(self, timeout: float = PATIENCE) -> None:
        """Wait until it is ready; ComponentDiedError as soon as it has ended instead."""

        def ready() -> bool:
            if not self.alive():
                raise ComponentDiedError(self.name, self._processes.log_tail(self.name))
            return self._ready()

        try:
            wait_until(f"{self.name} is ready", ready, timeout=timeout)
        except TimeoutError as error:
            tail = self._processes.log_tail(self.name)
            raise TimeoutError(f"{error}. The end of its log:\n{tail}") from None

    def _signal(self, number: signal.Signals) -> None:
        if not self._processes.signal(self.name, number):
            raise ProcessError(f"{self.name} does not run, so it cannot be sent {number.name}")
