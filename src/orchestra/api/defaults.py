"""Values of the template that apply when neither the queue nor the job gives one. One list for everybody.

Published as defaults in the TorchrunQueue CRD and filled in by the planner. A TorchrunJob's own blocks get none:
they would hide the queue's.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

TEMPLATE_DEFAULTS: Mapping[str, str | int | bool] = MappingProxyType(
    {
        "storage.workspace.sizePerGPU": "10Gi",
        "storage.workspace.mountPath": "/app",
        "storage.workspace.source": "local",
        "storage.datasets.mountPath": "/data",
        "storage.datasets.readOnly": True,
        "storage.checkpoints.sizePerGPU": "50Gi",
        "storage.checkpoints.mountPath": "/out",
        "storage.checkpoints.retain": True,
        "storage.models.sizePerGPU": "50Gi",
        "storage.models.mountPath": "/models",
        "storage.models.retain": True,
        "scheduling.gang": "auto",
        "distributed.rdzvBackend": "c10d",
        "distributed.port": 29500,
        "lifecycle.restartPolicy": "OnFailure",
        "lifecycle.maxRestarts": 3,
        "lifecycle.gracePeriodSeconds": 120,
        "lifecycle.nodeLostSeconds": 30,
        "lifecycle.gangTimeoutSeconds": 120,
    }
)
