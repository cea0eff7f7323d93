"""The environment of everything below the agent."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from .processes import MARKER

if TYPE_CHECKING:  # a shim starts faster without it
    from .spec import LaunchSpec

STOP_FILE = "stop.json"
FLIGHT = "flight"
"""Folder of NCCL's flight records."""
SOCKET = "ORCHESTRA_AGENT_SOCKET"
FOLDER = "ORCHESTRA_FOLDER"
GENERATION = "generation.json"
"""Which code the ranks run after a hot reload, and where it lies."""
LOCAL_RANK_WORD = "ORCHESTRA_LOCAL_RANK_WORD"
BROUGHT = "brought"
"""Folder of the modules that a launcher may lack."""
_CGROUP = Path("/sys/fs/cgroup")


def worker_environment(
    spec: LaunchSpec, inherited: Mapping[str, str], marker: str, socket_name: str, cores: int
) -> dict[str, str]:
    """What the launcher and the set-up command see. The user's own values win over our defaults."""
    env = {**inherited, **spec.env}
    defaults = {
        "OMP_NUM_THREADS": str(max(1, cores // max(1, spec.procs_per_node))),
        "PYTHONUNBUFFERED": "1",
        # Stacks of all threads when a rank crashes, and when the agent aborts one that hangs.
        "PYTHONFAULTHANDLER": "1",
    }
    if env.get("ORCHESTRA_BACKEND") == "nccl":
        defaults.update(_flight_recorder(spec.folder))
    for name, value in defaults.items():
        env.setdefault(name, value)
    env.update(
        {
            MARKER: marker,
            SOCKET: socket_name,
            FOLDER: str(spec.folder),
            "ORCHESTRA_JOB": spec.job,
            "ORCHESTRA_ATTEMPT": str(spec.attempt),
            "ORCHESTRA_NODE": str(spec.node),
            "ORCHESTRA_GRACE_PERIOD_SECONDS": f"{spec.grace_period_seconds:g}",
            "ORCHESTRA_STOP_FILE": str(spec.folder / STOP_FILE),
        }
    )
    env.pop(LOCAL_RANK_WORD, None)
    if spec.launcher == "deepspeed" and "--no_local_rank" not in spec.launcher_argv:
        env[LOCAL_RANK_WORD] = "1"
    return env


def with_brought(env: dict[str, str], agent: str) -> dict[str, str]:
    """The launcher's environment, with the modules we bring where it needs them: an etcd client for `etcd-v2`."""
    if env.get("PET_RDZV_BACKEND") not in ("etcd", "etcd-v2"):
        return env
    return {**env, "PYTHONPATH": os.pathsep.join(filter(None, [f"{agent}/{BROUGHT}", env.get("PYTHONPATH")]))}


def without_brought(env: Mapping[str, str]) -> dict[str, str]:
    """A rank's environment: what its launcher needed is not the user's. A script that is a launcher keeps it."""
    if "TORCHELASTIC_RUN_ID" not in env:
        return dict(env)
    path = [one for one in env.get("PYTHONPATH", "").split(os.pathsep) if one and not one.endswith(f"/{BROUGHT}")]
    kept = {name: value for name, value in env.items() if name != "PYTHONPATH"}
    return {**kept, "PYTHONPATH": os.pathsep.join(path)} if path else kept


def _flight_recorder(folder: Path) -> dict[str, str]:
    """NCCL's record of the last collectives. Older and newer names of the same settings."""
    dump = str(folder / FLIGHT / "rank_")
    settings = {
        "TORCH_NCCL_TRACE_BUFFER_SIZE": "2000",
        "TORCH_FR_BUFFER_SIZE": "2000",
        "TORCH_NCCL_DUMP_ON_TIMEOUT": "1",
        "TORCH_NCCL_DEBUG_INFO_TEMP_FILE": dump,
        "TORCH_FR_DUMP_TEMP_FILE": dump,
    }
    # torch aborts the rank where it cannot make this pipe: on some network file systems, say.
    return {**settings, "TORCH_NCCL_DEBUG_INFO_PIPE_FILE": dump} if _can_make_pipes(folder / FLIGHT) else settings


def _can_make_pipes(folder: Path) -> bool:
    probe = folder / "probe"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        os.mkfifo(probe)
        probe.unlink()
    except OSError:
        return False
    return True


def usable_cores() -> int:
    """Cores that this process may use: its affinity, and the quota of its control group."""
    cores = len(os.sched_getaffinity(0))
    quota = _quota()
    return max(1, min(cores, int(quota))) if quota else cores


def _quota() -> float | None:
    for folder in (_CGROUP, _CGROUP / _own_group("")):
        words = _text(folder / "cpu.max").split()
        if len(words) == 2 and words[0].isdigit():
            return int(words[0]) / int(words[1])
    for folder in (_CGROUP / "cpu", _CGROUP / "cpu" / _own_group("cpu")):
        quota, period = _text(folder / "cpu.cfs_quota_us").strip(), _text(folder / "cpu.cfs_period_us").strip()
        if quota.isdigit() and period.isdigit():
            return int(quota) / int(period)
    return None


def oom_kills() -> int:
    """How many processes the kernel has killed for want of memory: in this control group, else on this machine."""
    candidates = [
        (_CGROUP / _own_group("") / "memory.events", "oom_kill"),
        (_CGROUP / "memory.events", "oom_kill"),
        (_CGROUP / "memory" / _own_group("memory") / "memory.oom_control", "oom_kill"),
        (_CGROUP / "memory" / "memory.oom_control", "oom_kill"),
        (Path("/proc/vmstat"), "oom_kill"),
    ]
    for path, field in candidates:
        for line in _text(path).splitlines():
            name, _, value = line.partition(" ")
            if name == field and value.strip().isdigit():
                return int(value)
    return 0


def _own_group(controller: str) -> str:
    """Control group of this process, relative; `controller` is empty for version 2."""
    for line in _text(Path("/proc/self/cgroup")).splitlines():
        _, controllers, path = line.split(":", 2)
        if controller in controllers.split(","):
            return path.lstrip("/")
    return ""


def _text(path: Path) -> str:
    try:
        return path.read_text("utf-8", "replace")
    except OSError:
        return ""
