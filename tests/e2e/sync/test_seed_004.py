"""The whole of a well-known script as one job on real nodes: code, data, requirements, checkpoints and log in a bucket.

The pod is deleted half-way, once with its grace period and once without; each time a new one, with empty folders, goes
on from the store, and the loss at the end is that of a run that nobody disturbed.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path
from typing import Any

import pytest
import yaml

from cluster_engine import ROOT, OnCluster, a_queue_spec
from orchestra.sync.outputs import Name, Outputs
from orchestra.train.gpt.corpus import write as write_corpus
from pod_bucket import SECRET, PodBucket, moving_containers
from testbed.images import HOST
from testbed.waiting import wait_until

pytestmark = [pytest.mark.torch, pytest.mark.timeout(900)]

STEPS = 60
SMALL = f"""
data:
  data_dir: data
  output_dir: out
model:
  vocab_size: 30
  block_size: 32
  n_layer: 2
  n_head: 2
  n_embd: 32
training:
  batch_size: 16
  max_steps: {STEPS}
  warmup_steps: 5
  eval_every: 0
  eval_batches: 4
  checkpoint_every: 5
  log_every: 5
"""
LAST = re.compile(rf"\[EVAL\] step {STEPS} val_loss=[0-9.]+")


@pytest.fixture
def code(tmp_path: Path) -> Path:
    """The example's folder, small, with a requirement that needs no index: a wheel beside it."""
    made = tmp_path / "code"
    shutil.copytree(ROOT / "examples" / "object-store", made)
    with zipfile.ZipFile(made / "tiny-1.0-py3-none-any.whl", "w") as wheel:
        wheel.writestr("tiny.py", "WORD = 'tiny is here'\n")
        wheel.writestr("tiny-1.0.dist-info/METADATA", "Metadata-Version: 2.1\nName: tiny\nVersion: 1.0\n")
        wheel.writestr("tiny-1.0.dist-info/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        wheel.writestr("tiny-1.0.dist-info/RECORD", "tiny.py,,\n")
    (made / "requirements.txt").write_text("./tiny-1.0-py3-none-any.whl\n")
    (made / "config").mkdir()
    (made / "config" / "conf.yaml").write_text(SMALL)
    text = (made / "train.py").read_text()
    (made / "train.py").write_text(f"import tiny\nprint(tiny.WORD, flush=True)\n{text}")
    return made


@pytest.fixture
def data(tmp_path: Path) -> Path:
    write_corpus(tmp_path / "data", train=20_000, validation=4_000)
    return tmp_path / "data"


def the_example(bucket: PodBucket, prefix: str) -> dict[str, Any]:
    """The example's job, on our bucket, with a small queue."""
    text = (ROOT / "examples" / "object-store.yaml").read_text()
    text = text.replace("s3://your-s3-bucket/path/to", bucket.url(prefix))
    queue, job = yaml.safe_load_all(text)
    spec = a_queue_spec()
    trainer = spec["podTemplate"]["spec"]["containers"][0]
    spec["podTemplate"]["spec"]["initContainers"] = moving_containers(HOST, trainer["volumeMounts"])
    del spec["storage"]
    queue["spec"] = spec | {"nodeResources": {"gpus": 4, "memory": "6Gi"}}
    job["spec"]["command"] = "python train.py --output_dir out --step-delay 0.15"  # the rest is in config/conf.yaml
    job["spec"]["sync"] |= {"interval": 1, "secretName": SECRET}
    job["spec"]["lifecycle"] = {"gracePeriodSeconds": 60}
    return {"queue": queue, "job": job}


def undisturbed(code: Path, data: Path, folder: Path) -> str:
    """The last line of the same training, at home, with nobody to disturb it."""
    shutil.copytree(code, folder)
    shutil.copytree(data, folder / "data")
    (folder / "tiny.py").write_text("WORD = 'at home'\n")
    line = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=4", "train.py",
            "--output_dir", "out"]  # fmt: skip
    done = subprocess.run(line, cwd=folder, capture_output=True, text=True, check=False, timeout=600)
    found = LAST.search(done.stdout)
    assert found is not None, done.stdout[-2000:] + done.stderr[-3000:]
    return found[0]


def test_the_whole_script_as_one_job(site: OnCluster, bucket: PodBucket, code: Path, data: Path) -> None:
    prefix = f"seed/{site.namespace}"
    bucket.upload(code, f"{prefix}/code")
    bucket.upload(data, f"{prefix}/data")
    bucket.secret(site.cluster, site.namespace)
    made = the_example(bucket, prefix)
    site.cluster.api.create(site.path("torchrunqueues"), made["queue"])
    site.cluster.api.create(site.path("torchrunjobs"), made["job"])
    outputs = Outputs(bucket.remote(f"{prefix}/output/checkpoints"))

    def newest() -> Name | None:
        return next(iter(outputs.names()), None)

    def beyond(last: int) -> bool:
        now = newest()
        return now is not None and now.step > last

    wait_until("a checkpoint is in the store", lambda: beyond(0), timeout=240)
    site.cluster.kubectl("-n", site.namespace, "delete", "pod", "customgpt-0", "--wait=false")
    site.wait("customgpt", lambda job: (job.status.attempt or 0) == 2)  # type: ignore[union-attr]
    wait_until("the first attempt's pod is gone", lambda: not [
        pod for pod in site.pods("customgpt") if pod["metadata"]["name"] == "customgpt-0"], timeout=240)  # fmt: skip
    saved = newest()
    assert saved is not None
    wait_until("the second attempt saves", lambda: beyond(saved.step), timeout=240)
    pod = "customgpt-0-r2"
    resumed = site.cluster.kubectl("-n", site.namespace, "logs", pod, "-c", "orchestra-fetch")
    assert f"(step {saved.step})" in resumed, "what was saved at the stop was sent, and came back"
    site.cluster.kubectl("-n", site.namespace, "delete", "pod", pod, "--grace-period=0", "--force")
    job = site.rest("customgpt")
    assert job.status is not None
    assert (job.status.phase, job.status.attempt) == ("Succeeded", 3), site.log("customgpt")

    output = bucket.remote(f"{prefix}/output")
    log = output.get("log.txt").decode()
    done = LAST.findall(log)
    assert log.count("tiny is here") == 4 * 3, "three attempts of four ranks, all in one log"
    expected = undisturbed(code, data, site.folder / "home")
    assert done == [expected]
    assert (newest() or saved).step == STEPS
    keys = {item.key for item in output.listing()}
    assert {"out/current_ckpt.pt", "out/_orchestra.json", "log.txt"} <= keys
    assert any(key.startswith("out/") and "tfevents" in key for key in keys), keys
    told = site.cluster.kubectl("-n", site.namespace, "get", "pods,events,torchrunjobs,configmaps", "-o", "yaml")
    assert bucket.server.secret_key not in told + log


def test_two_nodes_without_a_shared_disk_go_on_from_the_store(site: OnCluster, bucket: PodBucket) -> None:
    """Each node has an output folder of its own; the first one's checkpoints are everybody's after a pod was deleted."""
    prefix = f"two/{site.namespace}"
    bucket.secret(site.cluster, site.namespace)
    made = the_example(bucket, prefix)
    made["queue"]["spec"]["nodeResources"] = {"gpus": 2, "memory": "4Gi"}
    site.cluster.api.create(site.path("torchrunqueues"), made["queue"])
    sync = {"output": bucket.url(f"{prefix}/output"), "interval": 1, "secretName": SECRET}
    command = "python -m orchestra.train.smoke --epochs 2 --checkpoint-every 2 --step-delay 0.3"
    size = {"numNodes": 2, "gpusPerNode": 2}
    site.submit("two", command, jobQueue="buckets", sync=sync, lifecycle={"gracePeriodSeconds": 60}, **size)
    outputs = Outputs(bucket.remote(f"{prefix}/output/checkpoints"))
    wait_until("a checkpoint is in the store", lambda: outputs.names(), timeout=240)
    site.cluster.kubectl("-n", site.namespace, "delete", "pod", "two-1", "--wait=false")
    job = site.rest("two")
    assert job.status is not None
    assert (job.status.phase, job.status.attempt) == ("Succeeded", 2), site.log("two")
    output = bucket.remote(f"{prefix}/output")
    log = output.get("log.txt").decode()
    assert "resum" in log
    assert "[DONE] steps=32 loss=0.03854" in log, log[-3000:]
    assert "log-1.txt" in {item.key for item in output.listing()}


def test_what_cannot_be_fetched_fails_the_job_with_its_reason(site: OnCluster, bucket: PodBucket, code: Path) -> None:
    """Wrong credentials, and data that is not there: one refusal each, no second try, and nothing started."""
    prefix = f"wrong/{site.namespace}"
    bucket.upload(code, f"{prefix}/code")
    bucket.secret(site.cluster, site.namespace, **{"AWS_SECRET_ACCESS_KEY": "a-wrong-secret-0123456789"})
    bucket.secret(site.cluster, site.namespace, name="good-keys")
    made = the_example(bucket, prefix)
    site.cluster.api.create(site.path("torchrunqueues"), made["queue"])
    for name, secret in (("denied", SECRET), ("missing", "good-keys")):
        job = yaml.safe_load(yaml.safe_dump(made["job"]))
        job["metadata"]["name"] = name
        job["spec"]["sync"]["secretName"] = secret
        job["spec"]["sync"]["output"] += f"/{name}"
        site.cluster.api.create(site.path("torchrunjobs"), job)
    for name, words in (("denied", "access was denied"), ("missing", "there is nothing at s3://")):
        status = site.rest(name).status
        assert status is not None
        assert status.failure is not None
        assert (status.phase, status.attempt, status.failure.reason) == ("Failed", 1, "SyncRefused"), status
        assert words in (status.failure.message or "")
        assert words in site.cli("why", name, "-n", site.namespace).stdout
    told = site.cluster.kubectl("-n", site.namespace, "get", "pods,events,torchrunjobs", "-o", "yaml")
    assert "a-wrong-secret" not in told
    assert bucket.server.secret_key not in told
