"""What it costs: CPU and memory of processes, and what the API server counted."""

from __future__ import annotations

import os
import re
from collections import Counter
from pathlib import Path

from testbed.control_plane import ControlPlane

_TICKS = os.sysconf("SC_CLK_TCK")
_WRITES = ("POST", "PUT", "PATCH", "DELETE", "APPLY")
_REQUEST = re.compile(r"^apiserver_request_total\{(.*)\} (\S+)$", re.MULTILINE)
_WEBHOOK = re.compile(r"^apiserver_admission_webhook_request_total\{.*\} (\S+)$", re.MULTILINE)
_LABEL = re.compile(r'(\w+)="([^"]*)"')


def cpu_seconds(pids: dict[str, int]) -> dict[str, float]:
    """CPU each process has used so far, by name."""
    return {name: _cpu(pid) for name, pid in pids.items()}


def control_plane_pids(plane: ControlPlane) -> dict[str, int]:
    """Its processes, and this one, which posts and watches."""
    pids = {record.name: record.pid for record in plane.processes.records() if plane.processes.alive(record.name)}
    return pids | {"this client": os.getpid()}


def memory_mib(pid: int, what: str = "VmRSS") -> float:
    """Memory of one process now; `VmHWM` for the most it ever had."""
    found = re.search(rf"^{what}:\s+(\d+) kB", Path(f"/proc/{pid}/status").read_text(), re.MULTILINE)
    return int(found[1]) / 1024 if found else 0.0


def requests(plane: ControlPlane) -> tuple[Counter[str], float]:
    """Writes the API server has served so far, by verb and kind (leases apart), and its calls of webhooks."""
    _, text = plane.admin.raw("GET", "/metrics")
    said = text.decode()
    counted: Counter[str] = Counter()
    for labels, value in _REQUEST.findall(said):
        label = dict(_LABEL.findall(labels))
        if label["verb"] in _WRITES and label["resource"] not in ("leases", "subjectaccessreviews", "tokenreviews"):
            what = label["resource"] + (f"/{label['subresource']}" if label.get("subresource") else "")
            dry = " (dry run)" if label.get("dry_run") else ""
            counted[f"{label['verb']} {what}{dry}"] += int(float(value))
    return counted, sum(float(value) for value in _WEBHOOK.findall(said))


def _cpu(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / _TICKS
