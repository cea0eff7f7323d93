"""Whatever is written into a job or a queue: the API server refuses it with a message, or the operator says clearly how
it stands. The operator never stops, never stumbles, and never leaves half a job.
"""

from __future__ import annotations

import collections
import contextlib
import os
import random
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from fuzz_objects import Fuzzer
from kai_crds import kai_installed
from operator_on_plane import Operator, path
from testbed.api import ApiError, Json
from testbed.control_plane import ControlPlane
from testbed.waiting import wait_until

QUEUES, JOBS = 20, 80
PATIENCE = 300
Tally = collections.Counter[str]


@pytest.mark.timeout(900)
def test_random_objects_are_refused_or_explained(running: Operator, control_plane: ControlPlane) -> None:
    campaign(running, control_plane, rounds=2)


@pytest.mark.soak
@pytest.mark.timeout(7200)
def test_ten_thousand_random_objects_are_refused_or_explained(running: Operator, control_plane: ControlPlane) -> None:
    campaign(running, control_plane, rounds=100)


def campaign(running: Operator, plane: ControlPlane, rounds: int) -> None:
    seed = int(os.environ.get("ORCHESTRA_FUZZ_SEED") or random.SystemRandom().randrange(10**9))
    print(f"\nseed {seed}")
    tally: Tally = collections.Counter()
    began, resident = time.monotonic(), 0
    with kai_installed(plane.admin) if seed % 2 else contextlib.nullcontext():
        for number in range(rounds):
            with plane.namespace("fuzz-") as namespace:
                try:
                    one_round(running, namespace, Fuzzer(seed + number), tally)
                finally:
                    print(f"round {number}: {dict(tally)}", flush=True)
                    clear(running, namespace)
            resident = memory_of(running.pid)
    queues = "/apis/torchrun.ai/v1alpha1/torchrunqueues"
    wait_until("no queue is left", lambda: not plane.admin.get(queues)["items"], timeout=300, interval=0.5)
    assert "Traceback" not in running.log(), running.log()[-6000:]
    seconds = time.monotonic() - began
    print(
        f"{rounds * (QUEUES + JOBS)} objects in {seconds:.0f} s; operator's memory {resident // 1024} MiB; {dict(tally)}"
    )


def one_round(running: Operator, namespace: str, fuzzer: Fuzzer, tally: Tally) -> None:
    """A hundred objects, what became of them, and some changes of the queues."""
    names = [f"q{number}" for number in range(QUEUES)]
    objects = [("torchrunqueue", fuzzer.queue(name)) for name in names]
    objects += [("torchrunjob", fuzzer.job(f"j{number}", names)) for number in range(JOBS)]
    with ThreadPoolExecutor(4) as pool:
        answers = list(pool.map(lambda one: submit(running, namespace, *one), objects))
    for kind, answer in answers:
        tally[f"{kind} {answer}"] += 1
    settled(running, namespace)
    changes = [(name, fuzzer.patch()) for name in names[:4]]
    for name, change in changes:
        with contextlib.suppress(ApiError):
            running.admin.patch(path("torchrunqueue", namespace, name), change)
            tally["queue changed"] += 1
    jobs = settled(running, namespace)
    for job in jobs:
        tally[f"job {job['status']['phase']}"] += 1


def submit(running: Operator, namespace: str, kind: str, body: Json) -> tuple[str, str]:
    refusal = None
    try:
        running.admin.create(path(kind, namespace), body)
    except ApiError as error:
        refusal = error
    if refusal is None:
        return kind, "accepted"
    assert refusal.status in (400, 409, 422), f"{refusal}: {body}"
    assert len(refusal.details.get("message", "")) > 20, body
    return kind, "refused"


def settled(running: Operator, namespace: str) -> list[Json]:
    """The jobs, once the operator has spoken about everything there is, and nothing is half done."""
    last = ""

    def look() -> list[Json] | None:
        nonlocal last
        assert running.running, running.log()[-6000:]
        queues = running.admin.get(path("torchrunqueue", namespace))["items"]
        jobs: list[Json] = running.admin.get(path("torchrunjob", namespace))["items"]
        pods = collections.Counter(
            (pod["metadata"]["labels"]["torchrun-job-name"], pod["metadata"]["labels"]["torchrun.ai/attempt"])
            for pod in running.admin.get(
                f"/api/v1/namespaces/{namespace}/pods", labelSelector="torchrun.ai/role=worker"
            )["items"]
        )
        unclear = [one for one in queues if not queue_is_clear(one)] + [
            one for one in jobs if not job_is_clear(one, pods)
        ]
        last = "\n".join(
            f"{one['kind']} {one['metadata']['name']}: {one.get('status')} {one['spec']}" for one in unclear[:5]
        )
        return (jobs or [{}]) if not unclear else None

    try:
        found = wait_until("everything is clear", look, timeout=PATIENCE, interval=0.5) or []
    except TimeoutError:
        raise AssertionError(f"not clear:\n{last}\n{running.log()[-4000:]}") from None
    return [job for job in found if job]


def queue_is_clear(queue: Json) -> bool:
    status = queue.get("status") or {}
    ready = [one for one in status.get("conditions", []) if one["type"] == "Ready" and one["message"]]
    return bool(ready) and "phase" in status and status["observedGeneration"] == queue["metadata"]["generation"]


def job_is_clear(job: Json, pods: collections.Counter[tuple[str, str]]) -> bool:
    """It says where it stands and why, and has all of its workers or none."""
    status = job.get("status") or {}
    said = [one for one in status.get("conditions", []) if one["type"] == "Phase" and one["reason"] and one["message"]]
    if not said or status.get("observedGeneration") != job["metadata"]["generation"]:
        return False
    attempt = str(status.get("attempt") or 0)
    there = pods[job["metadata"]["name"], attempt]
    if status["phase"] in ("Provisioning", "Running"):
        desired: int = (status.get("workers") or {}).get("desired", 1)
        return there >= desired >= 1
    return there == 0 or status["phase"] in ("Failed", "Succeeded")


def clear(running: Operator, namespace: str) -> None:
    """Nobody waits for the namespace's end, but its objects are not to fill the next round."""
    for kind in ("torchrunjob", "torchrunqueue"):
        running.admin.delete(path(kind, namespace))


def memory_of(pid: int) -> int:
    with open(f"/proc/{pid}/status") as file:  # noqa: PTH123
        return next(int(line.split()[1]) for line in file if line.startswith("VmRSS"))


@pytest.fixture(autouse=True)
def _roomy(control_plane: ControlPlane) -> Iterator[None]:
    """Classes that random queues may happen to name."""
    made = {"apiVersion": "scheduling.k8s.io/v1", "kind": "PriorityClass", "metadata": {"name": "train"}, "value": 7}
    where = "/apis/scheduling.k8s.io/v1/priorityclasses"
    control_plane.admin.create(where, made)
    yield
    control_plane.admin.delete(f"{where}/train")
