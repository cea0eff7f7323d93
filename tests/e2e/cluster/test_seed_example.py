"""The example that the project began with, as its users type it: their queue, their job, `kubectl torchrun`."""

from __future__ import annotations

import re
from typing import Any

import pytest
import yaml

from cluster_engine import ROOT, OnCluster, a_queue_spec

pytestmark = [pytest.mark.torch, pytest.mark.timeout(900)]
SEED = ROOT / "examples" / "seed"
PLUGIN = ("kubectl", "torchrun")
PRIORITY = "/apis/scheduling.k8s.io/v1/priorityclasses/gpu-priority"


def example(name: str) -> dict[str, Any]:
    """A file of the seed's, word for word."""
    read: dict[str, Any] = yaml.safe_load((SEED / name).read_text())
    return read


def test_the_seeds_example_trains_and_kubectl_shows_it(site: OnCluster) -> None:
    api = site.cluster.api
    queue, job = example("gpu-training-queue.yaml"), example("training-job.yaml")
    # What a testbed of two small nodes cannot have: eight real GPUs, 96 CPUs, CUDA's image, KAI.
    here = a_queue_spec()
    queue["spec"] |= {name: here[name] for name in ("image", "imagePullPolicy", "env", "podTemplate")}
    queue["spec"]["nodeResources"] = {"gpus": 2, "memory": "4Gi"}
    queue["spec"]["scheduling"]["scheduler"] = "default-scheduler"
    del queue["spec"]["kaiQueue"]
    job["spec"] |= {"numGPUs": 4, "command": "python -m orchestra.train.smoke --epochs 2"}
    job["spec"]["distributed"] = {"backend": "gloo", "rdzvBackend": "c10d"}
    priority = {"apiVersion": "scheduling.k8s.io/v1", "kind": "PriorityClass", "metadata": {"name": "gpu-priority"}}
    api.apply(PRIORITY, {**priority, "value": 1000})
    site.cluster.kubectl("-n", site.namespace, "apply", "-f", "-", text=yaml.safe_dump(queue))
    (site.folder / "job.yaml").write_text(yaml.safe_dump(job))
    here_flags = ["-n", site.namespace]

    submitted = site.cli("submit", "job.yaml", "-d", *here_flags, program=PLUGIN)
    assert "training-job submitted to queue gpu-training-queue" in submitted.stdout, submitted.stderr
    assert f"next: kubectl torchrun logs -f training-job -n {site.namespace}" in submitted.stdout
    followed = site.cli(
        "logs", "-f", *here_flags, program=PLUGIN
    )  # the newest job of this folder, before its pods are there
    waited = site.cli("wait", "training-job", *here_flags, program=PLUGIN)
    assert waited.returncode == 0, (waited, followed)

    header, row = site.cluster.kubectl("-n", site.namespace, "get", "torchrunjobs").splitlines()
    assert header.split()[:6] == ["NAME", "QUEUE", "GPUS", "NODES", "PHASE", "PROGRESS"]
    assert re.match(r"training-job +gpu-training-queue +4 +2 +Succeeded +\d+/\d+ 100%", row), row

    lines = followed.stdout.splitlines()
    assert {f"[r{rank}]" for rank in range(4)} <= {line.split(" ")[0] for line in lines}, followed.stdout
    assert any("[DONE]" in line for line in lines)
    again = site.cli("logs", "training-job", *here_flags, program=PLUGIN).stdout
    assert sorted(again.splitlines()) == sorted(lines), "what was followed is what there is"
    only = site.cli("logs", "training-job", "--rank", "3", *here_flags, program=PLUGIN).stdout.splitlines()
    assert {line.split(" ")[0] for line in only} == {"[r3]"}
    last = site.cli("logs", "training-job", "--tail", "2", "--grep", "step", *here_flags, program=PLUGIN).stdout
    assert len(last.splitlines()) == 2

    shown = site.cli("status", "training-job", *here_flags, program=PLUGIN)
    assert shown.returncode == 0
    assert "2 x 2 processes, attempt 1" in shown.stdout
    assert "claim training-job-checkpoints (kept when the job is deleted)" in shown.stdout
    offered = site.cli("__complete", "torchrun", "logs", *here_flags, "", program=("kubectl",)).stdout.splitlines()
    assert offered[0] == "training-job", offered
    deleted = site.cli("delete", "training-job", "--purge", *here_flags, program=PLUGIN)
    assert deleted.stdout == "training-job deleted\n", deleted.stderr
    assert not site.pods()
