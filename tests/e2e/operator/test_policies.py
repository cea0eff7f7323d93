"""What jobs are told to do, on real nodes: rest and go on, and end by the clock or by their budget."""

from __future__ import annotations

from typing import Any

import pytest

from gated_training import COMMAND, RESUMED, STEPS, finish, let, reach

pytestmark = [pytest.mark.torch, pytest.mark.timeout(900)]


def condition(status: dict[str, Any], kind: str) -> tuple[str, str]:
    (one,) = [one for one in status["conditions"] if one["type"] == kind]
    return one["reason"], one["message"]


def test_a_suspended_job_saves_one_agreed_step_leaves_no_pod_and_goes_on_from_there(
    site: Any, undisturbed: float
) -> None:
    """Saving takes longer than the rendezvous store would need to end: it goes last, and the next attempt has its own."""
    site.queue(gpus=8)
    site.job("rests", COMMAND, gpusPerNode=1, maxRestarts=0, env=[{"name": "SLOW_SAVE", "value": "6"}])
    let(site, "rests", 5)
    reach(site, "rests", 5)
    site.cluster.api.patch(site.path("torchrunjob", "rests"), {"spec": {"suspend": True}})
    site.wait("rests", lambda status: condition(status, "Phase")[0] == "Suspending")
    let(site, "rests", STEPS - 8, attempt=1)
    status = site.phase("rests", "Suspended", "Failed")
    assert status["phase"] == "Suspended", status
    saved = status["progress"]["checkpointStep"]
    assert 5 <= saved < STEPS - 8, "at the step they agreed on, and not when the training paused"
    assert condition(status, "Phase")[1] == f"saved at step {saved}"
    everything = f"/api/v1/namespaces/{site.namespace}/pods"
    assert site.cluster.api.get(everything, labelSelector="torchrun-job-name=rests")["items"] == []
    site.cluster.api.patch(site.path("torchrunjob", "rests"), {"spec": {"suspend": False}})
    status = finish(site, "rests", undisturbed)
    assert (status["attempt"], status["restarts"]) == (2, 0)
    resumed = [RESUMED.search(site.log(pod["metadata"]["name"])) for pod in site.pods("rests")]
    assert [int(one[1]) for one in resumed if one] == [saved]


def test_deadline_time_to_live_restart_budget_and_pending_timeout_do_what_they_say(site: Any) -> None:
    """Four jobs at once; none of them needs torch."""
    site.queue(gpus=1)
    small = {"launcher": "none", "numNodes": 1, "gpusPerNode": 1}
    site.job("late", ["sh", "-c", "echo begun; exec sleep 900"], activeDeadlineSeconds=4, **small)
    site.job("brief", ["true"], ttlSecondsAfterFinished=2, **small)
    site.job("unlucky", ["sh", "-c", "echo unlucky; exit 3"], maxRestarts=2, **small)
    site.job("stuck", ["true"], image="example.com/no-such:1", lifecycle={"pendingTimeoutSeconds": 4}, **small)

    status = site.phase("late", "Failed")
    assert condition(status, "Phase") == ("DeadlineExceeded", "it was active for more than 4 s")
    site.until("its pod has ended", lambda: [pod["status"]["phase"] for pod in site.pods("late")] == ["Failed"])
    assert "begun" in site.log("late-0"), "it stays for its log"
    assert (status["attempt"], status.get("restarts", 0)) == (1, 0)

    status = site.phase("stuck", "Failed")
    reason, message = condition(status, "Phase")
    assert reason == "PendingTimeout"
    assert "not running after 4 s: stuck-0: ErrImageNeverPull" in message
    site.until("its pods are gone", lambda: not site.pods("stuck"))

    status = site.phase("unlucky", "Failed")
    assert (status["attempt"], status["restarts"], status["failure"]["exitCode"]) == (3, 2, 3)

    site.gone("brief")
