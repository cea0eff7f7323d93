"""A well-known Job, rendered from one TorchrunJob, with its bytes in a real bucket, trained to the end on two nodes."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from lent_queue import lent_queue_spec
from pod_bucket import SECRET, PodBucket, pod_bucket
from testbed import aws_cli, torch_mounts
from testbed.cluster import Cluster
from testbed.images import HOST

pytestmark = [pytest.mark.torch, pytest.mark.aws_cli, pytest.mark.timeout(900)]

TRAIN = """
import sys
from pathlib import Path
assert Path("data/words.txt").read_text() == "from the bucket", "data is beside the code"
sys.argv = ["smoke", "--epochs", "2", "--checkpoint-every", "8", "--output-dir", "out"]
from orchestra.train.smoke.__main__ import main
sys.exit(main())
"""


@pytest.fixture(scope="module")
def bucket(cluster: Cluster) -> Iterator[PodBucket]:
    assert cluster.nodes
    with pod_bucket() as made:
        yield made


def test_a_job_with_code_data_and_outputs_in_a_bucket(deployed: Any, bucket: PodBucket, tmp_path: Path) -> None:
    for name, file, text in (("code", "train.py", TRAIN), ("data", "words.txt", "from the bucket")):
        (tmp_path / name).mkdir()
        (tmp_path / name / file).write_text(text)
        bucket.upload(tmp_path / name, f"{deployed.namespace}/{name}")
    bucket.secret(deployed.cluster, deployed.namespace)
    place = bucket.url(deployed.namespace)
    queue = lent_queue_spec()
    lent = torch_mounts(Path(__file__).resolve().parents[3] / "src", aws_cli.folder())
    pod = queue["podTemplate"]["spec"]
    pod["volumes"] = [volume for volume in lent.volumes if volume["name"] != "shm"]
    mounts = [mount for mount in lent.mounts if mount["name"] != "shm"]
    pod["containers"][0]["volumeMounts"] = mounts
    path = {"name": "PATH", "value": f"{sys.prefix}/bin:{aws_cli.folder()}/bin:/usr/bin:/bin"}
    pod["initContainers"] = [
        {"name": "upload", "imagePullPolicy": "Never", "image": HOST, "volumeMounts": mounts, "env": [path]}
    ]
    queue["env"] = [path, {"name": "HOME", "value": "/tmp"}]
    del queue["storage"]  # outputs live in the pods, and in the bucket
    sync = {"code": f"{place}/code", "data": f"{place}/data", "output": f"{place}/output", "interval": 2,
            "secretName": SECRET}  # fmt: skip
    file = deployed.file("seed", "python train.py", queue=queue, sync=sync)
    deployed.orchestra("apply", "--target", "job", file)
    text = deployed.orchestra("logs", "-f", "seed")
    deployed.orchestra("wait", "seed", "--for", "Succeeded", "--timeout", "180s")
    assert "[DONE] steps=32 loss=0.0385" in text, text[-3000:]
    deployed.kubectl("wait", "job/seed", "--for=condition=complete", "--timeout=180s")
    keys = {item.key for item in bucket.remote(f"{deployed.namespace}/output").listing()}
    assert any(key.startswith("checkpoints/step-00000032/") for key in keys), keys
    assert not any("tmp-" in key for key in keys)
    told = deployed.kubectl("get", "pods,jobs,configmaps,events", "-o", "yaml")
    assert bucket.server.secret_key not in text + told
