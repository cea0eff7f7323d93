"""Following a job: phases as they pass, rank-tagged lines, and one line of progress that moves below them."""

from __future__ import annotations

import queue
import sys
import threading
import time

from orchestra.api.engine import Engine, EngineError, LogLine, LogQuery
from orchestra.api.job import Progress, TorchrunJob, TorchrunJobStatus
from orchestra.cli import exit_codes
from orchestra.cli.job_view import progress_line
from orchestra.cli.terminal import Paint, is_terminal, width
from orchestra.plan.status import at_rest, phase_condition

_TICK = 0.1
_QUIET = "launcher"  # torchrun's own chatter: in the log, not on the screen


class _Screen:
    """Lines above, one moving line below; plain lines where nobody is looking."""

    def __init__(self) -> None:
        self.live = is_terminal(sys.stdout)
        self.below = ""

    def line(self, text: str) -> None:
        if self.live and self.below:
            sys.stdout.write("\r\x1b[2K")
        print(text, flush=not self.live)
        self._draw()

    def moving(self, text: str) -> None:
        if self.live and text != self.below:
            sys.stdout.write("\r\x1b[2K")
            self.below = text
            self._draw()

    def _draw(self) -> None:
        if self.live and self.below:
            sys.stdout.write(self.below[: width() - 1])
            sys.stdout.flush()

    def done(self) -> None:
        if self.live and self.below:
            sys.stdout.write("\r\x1b[2K")
            sys.stdout.flush()
        self.below = ""


def follow(engine: Engine, name: str, program: str, paint: Paint) -> int:
    """Shows a job until it comes to rest; ^C leaves it running. Returns the exit code for its end."""
    screen = _Screen()
    lines: queue.SimpleQueue[LogLine] = queue.SimpleQueue()
    reader = threading.Thread(target=_read, args=(engine, name, lines), daemon=True)
    reader.start()
    shown = ""
    try:
        while True:
            finished = not reader.is_alive()
            job = engine.get(name)
            shown = _show_phase(job, shown, screen, paint)
            while not lines.empty():
                line = lines.get()
                if line.source != _QUIET:
                    screen.line(f"{paint.source(line.source)} {line.text}")
            screen.moving(progress_line((job.status or TorchrunJobStatus()).progress or Progress()))
            if finished and at_rest(job):
                break
            _pause(engine.tick, lines)
    except KeyboardInterrupt:
        screen.done()
        print(f"\n{name} goes on without you; {program} logs {name} -f follows it, {program} cancel {name} stops it")
        return exit_codes.NOT_FINISHED
    screen.done()
    _show_phase(engine.get(name), shown, screen, paint)
    return exit_code(engine.get(name))


def _read(engine: Engine, name: str, lines: queue.SimpleQueue[LogLine]) -> None:
    try:
        for line in engine.again().logs(name, LogQuery(follow=True)):
            lines.put(line)
    except EngineError as error:  # phases and progress are shown without them
        lines.put(LogLine(time.time(), "logs", f"cannot be read: {error}"))


def _pause(seconds: float, lines: queue.SimpleQueue[LogLine]) -> None:
    """Until it is time to look again, or a line is there."""
    end = time.monotonic() + seconds
    while lines.empty() and time.monotonic() < end:
        time.sleep(min(_TICK, seconds))


def _show_phase(job: TorchrunJob, shown: str, screen: _Screen, paint: Paint) -> str:
    said = phase_condition(job)
    phase = (job.status or TorchrunJobStatus()).phase
    now = f"{phase}: {said.message}" if said else ""
    if now and now != shown:
        screen.line(f"{paint('●', 'bold')} {paint.phase(phase)}{now[len(phase or '') :]}")
    return now or shown


def exit_code(job: TorchrunJob) -> int:
    """What a finished, suspended or unfinished job means for a script."""
    status = job.status or TorchrunJobStatus()
    said = phase_condition(job)
    if status.phase == "Succeeded":
        return exit_codes.OK
    if status.phase == "Suspended" or (said is not None and said.reason in ("Cancelled", "Deleted")):
        return exit_codes.CANCELLED
    return exit_codes.JOB_FAILED if status.phase == "Failed" else exit_codes.NOT_FINISHED
