"""Why a rank failed. Only what the evidence shows: where it shows nothing, the exit code and the last lines."""

from __future__ import annotations

import json
import re
import signal
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from .tracebacks import Raised, last_traceback

LINES_KEPT = 30
_LINE_CHARACTERS = 400

_CUDA_MEMORY = re.compile(r"CUDA out of memory|CUDA error: out of memory|cudaErrorMemoryAllocation")
_NCCL_TIMEOUT = re.compile(r"Watchdog caught collective operation timeout")
_PORT = re.compile(r"EADDRINUSE|[Aa]ddress already in use")
_NO_GPU = re.compile(
    r"No CUDA GPUs are available|Found no NVIDIA driver|Torch not compiled with CUDA enabled|no CUDA-capable device"
    r"|invalid device ordinal|no GPUs found|CUDA driver initialization failed"
)
_NO_SCRIPT = re.compile(r"can't open file '?(?P<file>[^']*)'?: \[Errno 2\]")
_NO_MODULE = re.compile(
    r"^\S*python[\d.]*: (?:Error while finding module specification for|No module named) (?P<module>\S+)"
)
# What a rank reports when another one is gone: true, but never the beginning.
_PEER_LOST = re.compile(
    r"Connection (?:closed|reset) by peer|[Bb]roken pipe|Connection was likely closed|remote process (?:has )?exited"
    r"|ncclRemoteError|Connection refused|failed to recv|Read error|Connection timed out"
)


@dataclass(frozen=True)
class Evidence:
    """What is known about the end of one process."""

    exit: int | None
    """Negative: the signal. None: nobody saw it end."""
    errors: Sequence[str]
    """The last lines of its standard error."""
    lines: Sequence[str]
    """The last lines of both its streams."""
    started: bool = True
    """Whether the program could be started at all."""
    error_file: str | None = None
    """What torch's `@record` wrote."""
    memory_kill: bool = False
    """Whether the kernel killed something of this worker for want of memory just then."""


@dataclass(frozen=True)
class Failure:
    """As in the result file."""

    reason: str
    message: str
    lines: Sequence[str] = ()
    rank: int | None = None
    local_rank: int | None = None
    exit: int | None = None
    time: float | None = None
    peer_lost: bool = False
    """The evidence only says that another rank went away."""

    def as_json(self) -> dict[str, Any]:
        """The `failure` object of the contract."""
        return {
            "rank": self.rank,
            "localRank": self.local_rank,
            "exitCode": self.exit,
            "reason": self.reason,
            "message": self.message,
            "lines": [line[:_LINE_CHARACTERS] for line in self.lines][-LINES_KEPT:],
            "time": self.time,
            "peerLost": self.peer_lost,
        }


def explain(evidence: Evidence) -> Failure:
    """The reason, in one word, and a message for a person."""
    raised = _raised(evidence)
    text = "\n".join(evidence.errors[-60:])
    reason, message = _reason(evidence, raised, text)
    lines = raised.lines if raised and reason not in ("Killed", "ExitCode", "OutOfMemory") else evidence.lines
    peer_lost = bool(raised and reason == "Exception" and _PEER_LOST.search(raised.message))
    return Failure(reason, message, list(lines)[-LINES_KEPT:], exit=evidence.exit, peer_lost=peer_lost)


def first(failures: Sequence[Failure]) -> Failure | None:
    """The one that began it: the earliest that is not merely the loss of another rank."""
    own = [failure for failure in failures if not failure.peer_lost]
    return min(own or failures, key=lambda failure: failure.time or 0.0, default=None)


def _reason(evidence: Evidence, raised: Raised | None, text: str) -> tuple[str, str]:
    code = evidence.exit
    if not evidence.started:
        return "FileNotFound", evidence.errors[-1] if evidence.errors else "the program could not be started"
    if evidence.memory_kill and (code in (-signal.SIGKILL, 137) or "killed by signal: Killed" in text):
        return "OutOfMemory", "the kernel killed it because the memory of this worker was used up"
    if _NCCL_TIMEOUT.search(text):
        return "NcclTimeout", _line_with(_NCCL_TIMEOUT, evidence.errors)
    if raised is not None:
        known = _known_exception(raised)
        if known:
            return known
    if code is not None and code < 0:
        return "Killed", f"ended by signal {-code} ({_signal_name(-code)})"
    script = _NO_SCRIPT.search(text)
    if code == 2 and script:
        return "FileNotFound", f"there is no file {script.group('file')}"
    module = next((match for match in map(_NO_MODULE.match, evidence.errors) if match), None)
    if code == 1 and module:
        return "ImportError", f"there is no module {module.group('module')}"
    # An uncaught exception ends Python with 1. Another code was chosen by the program, whatever it printed before.
    if raised is not None and code == 1:
        return "Exception", f"{raised.type}: {raised.message}" if raised.message else raised.type
    if code is None:
        return "Killed", "its shim was killed"
    shell = f" (a shell's word for {_signal_name(code - 128)})" if 128 < code < 160 else ""
    return "ExitCode", f"exited with code {code}{shell}"


def _known_exception(raised: Raised) -> tuple[str, str] | None:
    shown = f"{raised.name}: {raised.message}"
    if raised.name == "OutOfMemoryError" or _CUDA_MEMORY.search(raised.message):
        return "CudaOutOfMemory", raised.message or shown
    if raised.name in ("SyntaxError", "IndentationError", "TabError"):
        return "SyntaxError", f"{shown} ({_place(raised)})"
    if raised.name in ("ImportError", "ModuleNotFoundError"):
        return "ImportError", raised.message
    if _PORT.search(raised.message):
        return "PortInUse", raised.message
    if _NO_GPU.search(raised.message):
        return "NoGPU", raised.message
    return None


def explain_launcher(name: str, evidence: Evidence, ranks_started: bool) -> Failure:
    """Why the launcher itself ended, where no rank of this node failed."""
    text = "\n".join(evidence.errors)
    lines = list(evidence.lines)[-LINES_KEPT:]
    if not ranks_started and re.search(r"No module named '?(torch|deepspeed)\b", text):
        return Failure("LauncherMissing", f"{name} is not installed here", lines, exit=evidence.exit)
    if _PORT.search(text) and not ranks_started:
        return Failure("PortInUse", _line_with(_PORT, evidence.errors), lines, exit=evidence.exit)
    code = evidence.exit or 0
    if code < 0:
        message = f"{name} was ended by signal {-code} ({_signal_name(-code)})"
        return Failure("Killed", message, lines, exit=code)
    message = f"{name} exited with code {code}; no rank of this node failed"
    return Failure("ExitCode", message, lines, exit=code)


def _raised(evidence: Evidence) -> Raised | None:
    try:
        message = json.loads(evidence.error_file or "null")["message"]
        stack: list[str] = message["extraInfo"]["py_callstack"].splitlines()
    except (ValueError, KeyError, TypeError, AttributeError):
        return last_traceback(evidence.errors)
    return last_traceback(stack) or last_traceback(evidence.errors)


def _place(raised: Raised) -> str:
    places = [line.strip() for line in raised.lines if line.lstrip().startswith('File "')]
    return places[-1] if places else "source"


def _line_with(pattern: re.Pattern[str], lines: Sequence[str]) -> str:
    return next((line.strip()[:1000] for line in reversed(lines) if pattern.search(line)), "")


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return "unknown"
