"""A StatefulSet and a Job rendered from the file of a TorchrunJob train it on two real nodes, to the same numbers."""

from __future__ import annotations

import json
import re
import time
from typing import Any

import pytest

from orchestra.render import Target

pytestmark = [pytest.mark.torch]

SMOKE = "python -m orchestra.train.smoke --epochs 2"
DONE = re.compile(r"\[DONE\] steps=(\d+) loss=([0-9.]+)")
LOSS = 0.03854496  # of the same job on the embedded engine, and as a TorchrunJob


@pytest.mark.parametrize("target", ["statefulset", "job"])
def test_a_job_trains_to_the_same_loss_without_our_operator(deployed: Any, target: Target) -> None:
    deployed.apply("trains", target, SMOKE)
    found = DONE.search(deployed.wait_for_log("trains", "[DONE]"))
    assert found is not None
    assert int(found[1]) == 32
    assert float(found[2]) == pytest.approx(LOSS, abs=1e-4)
    assert len(deployed.pods("trains")) == 2
    if target == "job":
        deployed.kubectl("wait", "--for=condition=complete", "job/trains", "--timeout=180s")
    else:  # a finished pod idles: its controller would start it again
        deployed.wait_for_log("trains", "idling until the pod is deleted")


def test_a_scaled_statefulset_goes_on_from_its_checkpoint(deployed: Any) -> None:
    deployed.apply("grows", "statefulset", f"{SMOKE} --checkpoint-every 2 --step-delay 0.5")
    deployed.wait_for_log("grows", "step 4")
    assert json.loads(deployed.kubectl("get", "statefulset", "grows", "-o", "json"))["spec"]["replicas"] == 2
    time.sleep(0)
