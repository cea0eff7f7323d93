"""A launch line of someone else, less what Orchestra fills in itself."""

from __future__ import annotations

from dataclasses import dataclass, field

from orchestra.api.problem import Problem
from orchestra.plan.command import Command, understand

_FILLED_IN = (
    "node-rank",
    "rdzv-id",
    "local-addr",
    "master-addr",
    "hostfile",
    "no-ssh",
    "standalone",
    "num-nodes",
)
_OUR_CONF = "keep_alive_interval=1,keep_alive_max_attempt=3"


@dataclass
class LaunchLine:
    """The command that remains, and what its flags said."""

    words: list[str]
    launcher: str = "none"
    nodes: str | None = None
    procs: int | None = None
    port: int | None = None
    backend: str | None = None
    endpoint: str | None = None
    max_restarts: int | None = None
    dropped: list[str] = field(default_factory=list)
    """Flags that are filled in again when the job is planned."""
    problem: str | None = None


def read_launch_line(words: list[str]) -> LaunchLine:
    """Reads the words of `torchrun ...`, `deepspeed ...`, `python ...` or anything else."""
    understood = understand(words, "auto")
    if isinstance(understood, Problem):
        return LaunchLine(words, problem=understood.words)
    if understood.launcher == "none":
        return LaunchLine(words)
    if not understood.options.taken and understood.options.program and words[0] not in ("torchrun", "deepspeed"):
        plain_python = not any(
            "torch.distributed" in word or "deepspeed" in word for word in understood.executable[2:3]
        )
        if plain_python and words[: len(understood.executable)] != understood.executable:
            return LaunchLine(words, launcher=understood.launcher)
    line = LaunchLine([], launcher=understood.launcher)
    kept: list[str] = []
    for name, taken in understood.options.taken:
        if not _note(line, name, understood.options.given.get(name)):
            kept += taken
        else:
            line.dropped.append(taken[0].partition("=")[0])
    line.words = [*understood.executable, *kept, *_program(understood)]
    return line


def _program(command: Command) -> list[str]:
    return command.options.program


def _note(line: LaunchLine, name: str, value: str | None) -> bool:
    """Takes one flag in. False for one that must stay on the line."""
    number = int(value) if value is not None and value.isdigit() else None
    if name in _FILLED_IN:
        if name == "standalone":
            line.nodes = "1"
        if name == "num-nodes" and value:
            line.nodes = value
        return True
    if name == "nnodes":
        line.nodes = value
        return True
    if name in ("nproc-per-node", "num-gpus", "num-accelerators"):
        line.procs = number
        return number is not None
    if name in ("master-port",):
        line.port = number
        return True
    if name == "rdzv-backend":
        line.backend = value
        return value in ("c10d", "etcd-v2", "static")
    if name == "rdzv-endpoint":
        line.endpoint = value
        return True
    if name == "launcher" and value == "openmpi":
        return True  # deepspeed over MPI; here each node starts its own
    if name == "max-restarts":
        line.max_restarts = number
        return number is not None
    return name == "rdzv-conf" and value is not None and value.endswith(_OUR_CONF)
