"""Made-up GPUs: an extended resource on the nodes' status, counted by scheduler and kubelet like real ones."""

from testbed.api import Api

RESOURCE = "nvidia.com/gpu"
_POINTER = RESOURCE.replace("/", "~1")


def set_gpus(api: Api, node: str, count: int) -> None:
    """Give a node this many GPUs; the kubelet keeps the number, also over its restart.

    Capacity and allocatable go in one request: a scheduler that saw only one of them would count wrong.
    """
    value = str(count)
    patch = [
        {"op": "add", "path": f"/status/{part}/{_POINTER}", "value": value} for part in ("capacity", "allocatable")
    ]
    api.patch(f"/api/v1/nodes/{node}/status", patch, kind="json")


def gpus(api: Api, node: str) -> int:
    """How many GPUs the node says it can give."""
    return int(api.get(f"/api/v1/nodes/{node}")["status"]["allocatable"].get(RESOURCE, "0"))
