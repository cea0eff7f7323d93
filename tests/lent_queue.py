"""A queue for pods on the testbed's nodes: they borrow this machine's Python, torch and our sources."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from testbed import torch_mounts
from testbed.images import HOST

_SOURCES = Path(__file__).resolve().parents[1] / "src"


def lent_queue_spec(gpus: int = 2) -> dict[str, Any]:
    """The spec of a TorchrunQueue whose nodes have `gpus` GPUs."""
    lent = torch_mounts(_SOURCES)
    volumes = [volume for volume in lent.volumes if volume["name"] != "shm"]  # the plan brings its own
    mounts = [mount for mount in lent.mounts if mount["name"] != "shm"]
    return {
        "nodeResources": {"gpus": gpus, "memory": "6Gi"},
        "image": HOST,
        "imagePullPolicy": "Never",
        "env": [{"name": "PATH", "value": f"{sys.prefix}/bin:/usr/bin:/bin"}, {"name": "HOME", "value": "/tmp"}],
        "storage": {"checkpoints": {"sizePerGPU": "100Mi", "retain": False}},
        "distributed": {"backend": "gloo"},
        "podTemplate": {"spec": {"volumes": volumes, "containers": [{"name": "trainer", "volumeMounts": mounts}]}},
    }
