"""What a job needs, checked from inside its own workers: the program of `orchestra doctor --job FILE`.

It is carried as text into images that have nothing of ours, so it imports torch and the standard library alone, and
runs on Python 3.8. Under torchrun, one process a rank; rank 0 prints one line `PREFLIGHT {...}` with everybody's facts.

    preflight.py SECONDS [FOLDER ...]      seconds for the bandwidth test; folders that must be writable
"""

from __future__ import annotations

import datetime
import json
import os
import socket
import sys
import time
import uuid
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

MARK = "PREFLIGHT "
_SIZES = (1 << 20, 16 << 20, 128 << 20)


def main(words: list[str]) -> None:
    """Look, tell the others, measure, print."""
    seconds, folders = float(words[0]), words[1:]
    cuda = torch.cuda.is_available()
    local = int(os.environ.get("LOCAL_RANK", "0"))
    if cuda and local < torch.cuda.device_count():
        torch.cuda.set_device(local)
    device = torch.device("cuda", local) if cuda else torch.device("cpu")
    dist.init_process_group("nccl" if cuda else "gloo", timeout=datetime.timedelta(seconds=max(120.0, 2 * seconds)))
    facts = look(folders)  # after the meeting: only now somebody listens at the master's port
    everybody: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(everybody, facts)
    speeds = bandwidth(device, seconds)
    if dist.get_rank() == 0:
        print(MARK + json.dumps({"ranks": everybody, "backend": dist.get_backend(), "bandwidth": speeds}), flush=True)
    dist.barrier()
    dist.destroy_process_group()


def look(folders: list[str]) -> dict[str, Any]:
    """What this rank sees of its own node."""
    shm = os.statvfs("/dev/shm") if Path("/dev/shm").exists() else None  # noqa: S108
    return {
        "rank": int(os.environ.get("RANK", "0")),
        "local": int(os.environ.get("LOCAL_RANK", "0")),
        "processes": int(os.environ.get("LOCAL_WORLD_SIZE", "1")),
        "node": int(os.environ.get("ORCHESTRA_NODE", os.environ.get("GROUP_RANK", "0"))),
        "host": socket.gethostname(),
        "python": ".".join(map(str, sys.version_info[:2])),
        "torch": torch.__version__,
        "nccl": nccl(),
        "gpus": torch.cuda.device_count(),
        "shmBytes": shm.f_blocks * shm.f_frsize if shm else 0,
        "master": reach(os.environ.get("MASTER_ADDR", ""), int(os.environ.get("MASTER_PORT", "0"))),
        "interface": interface(),
        "folders": {folder: writable(Path(folder)) for folder in folders},
    }


def nccl() -> str | None:
    """The version of NCCL, where there is a GPU to use it."""
    if not torch.cuda.is_available():
        return None
    return ".".join(map(str, torch.cuda.nccl.version()))  # type: ignore[no-untyped-call]


def reach(host: str, port: int) -> dict[str, Any]:
    """Whether the meeting point is found by its name, and answers. The store of torchrun listens there."""
    began = time.monotonic()
    try:
        with socket.create_connection((host, port), timeout=10):
            return {"name": host, "port": port, "seconds": round(time.monotonic() - began, 3)}
    except OSError as error:
        return {"name": host, "port": port, "problem": str(error)}


def interface() -> dict[str, Any]:
    """The network interface that was asked for, and whether it is there."""
    known = [name for _, name in socket.if_nameindex()]
    asked = os.environ.get("NCCL_SOCKET_IFNAME") or os.environ.get("GLOO_SOCKET_IFNAME") or ""
    wanted = asked.lstrip("=^").split(",")[0]
    there = not wanted or asked.startswith("^") or any(name.startswith(wanted) for name in known)
    return {"asked": asked, "there": there, "known": known}


def writable(folder: Path) -> str:
    """Empty when a file can be written there, else the reason."""
    probe = folder / f".preflight-{uuid.uuid4().hex}"
    try:
        probe.write_bytes(b"x")
        probe.unlink()
    except OSError as error:
        return str(error.strerror or error)
    return ""


def bandwidth(device: torch.device, seconds: float) -> list[dict[str, Any]]:
    """All-reduce of growing tensors, as many as fit into the time; bus bandwidth as nccl-tests counts it."""
    world = dist.get_world_size()
    if world == 1 or seconds <= 0:
        return []
    found = []
    for size in _SIZES:
        data = torch.ones(size // 4, device=device)
        dist.all_reduce(data)  # the first one connects
        took, rounds, until = 0.0, 0, time.monotonic() + seconds / len(_SIZES)
        while True:
            began = time.monotonic()
            dist.all_reduce(data)
            if device.type == "cuda":
                torch.cuda.synchronize()
            took, rounds = took + time.monotonic() - began, rounds + 1
            enough = torch.tensor([float(time.monotonic() > until or rounds >= 50)], device=device)
            dist.broadcast(enough, src=0)  # one clock decides for all: else somebody would wait for ever
            if enough.item():
                break
        rate = size * rounds / took * 2 * (world - 1) / world
        found.append({"bytes": size, "seconds": took / rounds, "busBytesPerSecond": rate})
        del data
    return found


if __name__ == "__main__":
    main(sys.argv[1:])
