"""`sync`: changed files to every worker of a running job, and a restart in place from the last step."""

from __future__ import annotations

import argparse
import signal
import sys
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING

from orchestra.cli import exit_codes

if TYPE_CHECKING:
    from collections.abc import Iterator

    from orchestra.api.reloaded import Reloaded
    from orchestra.cluster.engine import KubernetesEngine
    from orchestra.local.engine import LocalEngine

    Reloads = LocalEngine | KubernetesEngine

EPILOG = """\
The changed files are staged for all workers, and all change or none: the ranks stop at one agreed step, save, and
start again in place with the new code. -w does it after every edit, until ^C, with the next processes already
waiting. Changed requirements restart the workers as a whole.

examples:
  {program} sync
  {program} sync train -w
"""
_FIRST_STEP_SECONDS = 120.0


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declares the arguments."""
    from orchestra.cli.engines import add_job_argument

    add_job_argument(parser)
    parser.add_argument("-w", "--watch", action="store_true", help="after every edit, until ^C")
    parser.add_argument("--include", action="append", default=[], metavar="PATH", help="ship this although ignored")
    parser.add_argument("--no-wait", action="store_true", help="do not wait for the first step with the new code")


def run(args: argparse.Namespace) -> int:
    """0 when the job runs the folder's code, 1 when it was refused."""
    from orchestra.api.engine import EngineError
    from orchestra.local.submitted_code import snapshot_of
    from orchestra.plan.status import status_of

    engine, name = chosen(args)
    progress = status_of(engine.get(name)).progress
    if status_of(engine.get(name)).phase == "Running" and (progress is None or progress.step is None):
        print(f"{name} reports no steps: it restarts from its own last checkpoint, if it writes any", file=sys.stderr)
    if not args.watch:
        return _once(args, engine, name)
    code, generation, ended = exit_codes.OK, "", _interrupted()
    for _ in _edits(engine.folder(name), 1 if engine.name == "local" else 10, ended):
        if status_of(engine.get(name)).phase != "Running":
            print(f"{name} is {status_of(engine.get(name)).phase}")
            return code
        now = snapshot_of(engine.get(name)) or ""
        try:
            if now != generation:
                engine.preload(name)  # the successors of those that run now
                generation = now
            code = _once(args, engine, name, quiet=True)
        except EngineError as error:  # a folder that is being edited all the while: the next look may do
            print(error, file=sys.stderr)
        engine.look()
    return code


def chosen(args: argparse.Namespace) -> tuple[Reloads, str]:
    """The engine and the job, where jobs can be given new code."""
    from orchestra.api.engine import EngineError
    from orchestra.cli.engines import choose
    from orchestra.local.engine import LocalEngine

    engine, name = choose(args)
    if isinstance(engine, LocalEngine):
        return engine, name
    from orchestra.cluster.engine import KubernetesEngine
    from orchestra.cluster.rendered import RenderedEngine

    if isinstance(engine, RenderedEngine) or not isinstance(engine, KubernetesEngine):
        mend = f"{args.program} cp, then {args.program} restart {name}"
        raise EngineError(f"{name} was rendered: nothing in its pods follows the workspace store; {mend}")
    return engine, name


def _once(args: argparse.Namespace, engine: Reloads, name: str, *, quiet: bool = False) -> int:
    from orchestra.cli.engines import next_line

    begun = time.time()
    answer = engine.sync(name, args.include)
    if answer is None:
        if not quiet:
            print(f"{name} has this folder's code already")
        return exit_codes.OK
    if answer.state == "refused":
        print(f"{name} keeps its code: {answer.message}", file=sys.stderr)
        return exit_codes.ERROR
    if answer.state != "reloaded":
        print(answer.message)
        return exit_codes.OK
    for rank, reason in sorted(answer.cold.items()):
        print(f"rank {rank} was started cold: {reason}")
    _report(answer, None if args.no_wait else _first_step(engine, name, begun))
    print(next_line(args, f"logs {name} -f"), flush=True)
    return exit_codes.OK


def _report(answer: Reloaded, first_step: float | None) -> None:
    at = f" at step {answer.step}" if answer.step is not None else ""
    saved = "" if answer.saved else " (nothing was saved: it goes on from its own last checkpoint)"
    print(f"new code in all workers{at}{saved}")
    phases = dict(answer.seconds)
    if first_step is not None:
        phases["import, load, first step"] = max(0.0, first_step - answer.total)
    for phase, seconds in phases.items():
        print(f"  {phase:<26}{seconds:8.2f} s")
    print(f"  {'in all':<26}{sum(phases.values()):8.2f} s")


def _first_step(engine: Reloads, name: str, begun: float) -> float | None:
    """Seconds from the request to the first step with the new code; None where none is reported."""
    from orchestra.plan.status import RESTING, status_of

    before = status_of(engine.get(name)).progress
    until = time.time() + _FIRST_STEP_SECONDS
    while before is not None and before.step is not None and time.time() < until:
        at = engine.stepped_at(name)
        if at is not None:
            return max(0.0, at - begun)
        if status_of(engine.get(name)).phase in RESTING:
            return None
        time.sleep(0.05)
    return None


def _interrupted() -> threading.Event:
    """Set by ^C. Python drops an exception that falls into some callback, and with it a user's only ^C."""
    ended = threading.Event()

    def interrupt(*_: object) -> None:
        ended.set()
        raise KeyboardInterrupt

    signal.signal(signal.SIGINT, interrupt)
    return ended


def _edits(folder: Path, idle: int, ended: threading.Event) -> Iterator[None]:
    """Once at the beginning, after every edit, and also without one every `idle` seconds."""
    yield None
    print(f"watching {folder}; ^C ends it", flush=True)
    try:
        from watchfiles import watch
    except ImportError:
        while not ended.wait(0.5):  # an unchanged folder costs milliseconds to look at
            yield None
        return
    # Also without news once a second: an edit just before the watch began tells nothing, and looking costs little.
    quiet = 0
    for found in watch(
        folder, step=20, debounce=200, rust_timeout=1000, yield_on_timeout=True, raise_interrupt=False, stop_event=ended
    ):
        quiet = 0 if found else quiet + 1
        if quiet % idle == 0:
            yield None
