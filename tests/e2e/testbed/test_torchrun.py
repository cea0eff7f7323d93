"""A real distributed training on real nodes: two pods, two processes each, gloo over a headless Service."""

import re

from testbed import pods
from testbed.api import Json
from testbed.cluster import Cluster
from testbed.host_mounts import program, torch_mounts

TRAIN = """\
import os

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

dist.init_process_group("gloo")
torch.manual_seed(0)
torch.set_num_threads(1)
model = DistributedDataParallel(torch.nn.Linear(8, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
data = torch.Generator().manual_seed(dist.get_rank())
for step in range(100):
    x = torch.randn(16, 8, generator=data)
    loss = ((model(x) - x.sum(1, keepdim=True)) ** 2).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
weights = sum(p.double().sum().item() for p in model.parameters())
# Written in one piece: print writes the end of the line on its own, and the ranks of a pod share one log.
os.write(1, f"DONE rank={dist.get_rank()}/{dist.get_world_size()} weights={weights:.9f}\\n".encode())
dist.barrier()
dist.destroy_process_group()
"""


def trainer(index: int) -> Json:
    lent = torch_mounts()
    command = [
        program("torchrun"),
        "--nnodes=2",
        "--nproc-per-node=2",
        "--rdzv-backend=c10d",
        "--rdzv-id=job",
        "--rdzv-endpoint=train-0.train:29400",
        "/script/train.py",
    ]
    return pods.pod(
        f"train-{index}",
        command,
        mounts=lent,
        node=f"n{index}",
        gpus=2,
        labels={"job": "train"},
        environment={"OMP_NUM_THREADS": "1", "PYTHONUNBUFFERED": "1"},
        hostname=f"train-{index}",
        subdomain="train",
        volumes=[{"name": "script", "configMap": {"name": "train"}}],
        volumeMounts=[{"name": "script", "mountPath": "/script"}],
    )


def test_torchrun_trains_across_both_nodes_to_the_end(cluster: Cluster, cluster_namespace: str) -> None:
    core = f"/api/v1/namespaces/{cluster_namespace}"
    service = {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {"name": "train"},
        "spec": {"clusterIP": "None", "selector": {"job": "train"}, "publishNotReadyAddresses": True},
    }
    cluster.api.create(f"{core}/services", service)
    script = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "train"}, "data": {"train.py": TRAIN}}
    cluster.api.create(f"{core}/configmaps", script)

    pods.create(cluster.api, cluster_namespace, trainer(0), trainer(1))

    for index in (0, 1):
        pods.wait_for_phase(cluster.api, cluster_namespace, f"train-{index}", "Succeeded", timeout=200)
    logs = "".join(cluster.kubectl("logs", "-n", cluster_namespace, f"train-{index}") for index in (0, 1))
    done = re.findall(r"DONE rank=(\d)/4 weights=(\S+)", logs)
    assert sorted(rank for rank, _ in done) == ["0", "1", "2", "3"]
    assert len({weights for _, weights in done}) == 1, "all ranks must end with the same weights"
