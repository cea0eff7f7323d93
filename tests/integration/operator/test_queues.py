"""TorchrunQueues on a real API server: checked, counted, kept while used, and KAI's queues made from them."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator

import pytest

from builders import a_queue
from kai_crds import kai_installed
from kube_parts import connect
from operator_on_plane import Operator, Site, condition, path
from orchestra.kube.cache import Cache
from orchestra.kube.objects import Key, Metadata
from orchestra.operator.kinds import JobObject
from orchestra.operator.queueing.kai_queues import KaiQueues
from orchestra.operator.queueing.kinds import KAI_QUEUES, KaiQueue
from orchestra.operator.queueing.lookup import QueueLookup
from testbed.api import Json
from testbed.control_plane import ControlPlane
from testbed.waiting import wait_until

SHARED = "orchestra-queues"
KAI = "/apis/scheduling.run.ai/v2/queues"


@pytest.fixture
def site(running: Operator, namespace: str) -> Site:
    return Site(running, namespace)


@pytest.fixture
def shared(site: Site) -> str:
    site.admin.apply(
        f"/api/v1/namespaces/{SHARED}", {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": SHARED}}
    )
    return SHARED


@pytest.fixture(scope="module")
def kai(running: Operator) -> Iterator[None]:
    with kai_installed(running.admin):
        yield


def kai_queue(site: Site, name: str) -> Json:
    return wait_until(f"KAI Queue {name}", lambda: site.admin.find(f"{KAI}/{name}")) or {}


def delete(site: Site, name: str, namespace: str = "") -> None:
    site.admin.delete(path("torchrunqueue", namespace or site.namespace, name))


def gone(site: Site, name: str, namespace: str = "") -> None:
    where = path("torchrunqueue", namespace or site.namespace, name)
    wait_until(f"{name} is gone", lambda: site.admin.find(where) is None, interval=0.1)


# ---- checks


def test_a_good_queue_is_ready_and_counts_its_jobs(site: Site) -> None:
    site.queue(resources={"gpu": {"quota": 16}})
    site.condition("torchrunqueue", "queue", "Ready", "True")
    site.job("a", 8)
    site.job("b", 16)
    site.job("c", 8, suspend=True)
    site.run("a")
    status = site.until("torchrunqueue", "queue", lambda status: status.get("jobs") == {"pending": 1, "running": 1})
    assert status["phase"] == "Ready"
    assert status["gpus"] == {"used": 24, "quota": 16}
    site.finish("a")
    site.finish("b")
    status = site.until("torchrunqueue", "queue", lambda status: status["jobs"] == {"pending": 0, "running": 0})
    assert status["gpus"]["used"] == 0
    assert status["observedGeneration"] == 1


def test_what_a_queue_names_and_is_not_there_is_told_and_found_when_it_comes(site: Site) -> None:
    name = f"train-{site.namespace}"
    site.queue(
        scheduling={"priorityClassName": name},
        storage={"checkpoints": {"storageClass": "nowhere"}, "models": {"storageClass": "unused", "enabled": False}},
    )
    said = site.condition("torchrunqueue", "queue", "ReferencesFound", "False")
    assert said["reason"] == "NotFound"
    assert f"spec.scheduling.priorityClassName: there is no PriorityClass {name}; create it" in said["message"]
    assert "spec.storage.checkpoints.storageClass: there is no StorageClass nowhere" in said["message"]
    assert "unused" not in said["message"]
    assert site.status("torchrunqueue", "queue")["phase"] == "Degraded"
    body = {"apiVersion": "scheduling.k8s.io/v1", "kind": "PriorityClass", "metadata": {"name": name}, "value": 5}
    site.admin.create("/apis/scheduling.k8s.io/v1/priorityclasses", body)
    site.until(
        "torchrunqueue", "queue", lambda status: "PriorityClass" not in condition(status, "ReferencesFound")["message"]
    )
    site.admin.patch(
        path("torchrunqueue", site.namespace, "queue"), {"spec": {"storage": {"checkpoints": {"storageClass": None}}}}
    )
    site.condition("torchrunqueue", "queue", "Ready", "True")
    site.admin.delete(f"/apis/scheduling.k8s.io/v1/priorityclasses/{name}")


@pytest.mark.parametrize(
    ("spec", "words"),
    [
        ({"podTemplate": {"spec": {"dnsPolicy": "Sometimes"}}}, "spec.dnsPolicy"),
        ({"podTemplate": {"spec": {"containers": [{"image": "no-name"}]}}}, "containers[0]: has no name"),
        ({"podTemplate": {"spec": "text"}}, "spec.podTemplate.spec: is not a map"),
        ({"podTemplate": {"spec": {"hostAliases": "text"}}}, "cannot be handled as a Pod"),
        ({"nodeResources": {"gpus": 8, "memory": "1e99"}}, "cannot be read"),
        ({"storage": {"datasets": {}}}, "datasets are on but no claim is named"),
    ],
)
def test_a_template_that_no_job_could_use_is_told_with_the_field(site: Site, spec: Json, words: str) -> None:
    site.queue(**spec)
    said = site.condition("torchrunqueue", "queue", "Valid", "False")
    assert words in said["message"]
    assert site.status("torchrunqueue", "queue")["phase"] == "Invalid"
    site.job("job")
    refused = site.until("torchrunjob", "job", lambda status: status.get("conditions"))
    assert refused["phase"] in ("Pending", "Queued", "Provisioning")
    assert not site.pods("job")


# ---- deletion


def test_a_queue_stays_while_unfinished_jobs_use_it_and_takes_no_new_ones(site: Site) -> None:
    site.queue()
    for number in range(7):
        site.job(f"j{number}", 8)
    site.phase("j6", "Provisioning")
    site.condition("torchrunqueue", "queue", "Ready", "True")
    delete(site, "queue")
    said = site.condition("torchrunqueue", "queue", "DeletionBlocked", "True")
    assert said["message"].startswith("7 unfinished jobs use this queue: j0, j1, j2, j3, j4 and 2 more;")
    assert site.status("torchrunqueue", "queue")["phase"] == "Deleting"
    leaving = site.admin.get(path("torchrunqueue", site.namespace, "queue"))["metadata"]["deletionTimestamp"]
    late = wait_until("the next second", lambda: _later_job(site, leaving))
    waits = site.until("torchrunjob", late, lambda status: status.get("conditions"))
    assert condition(waits, "Phase")["reason"] == "QueueNotFound"
    assert site.status("torchrunjob", "j3")["phase"] == "Provisioning", "those that were there before go on"
    for number in range(7):
        site.finish(f"j{number}")
    gone(site, "queue")
    site.queue()
    site.phase(late, "Provisioning")


def _later_job(site: Site, leaving: str) -> str:
    """A job that was created after the deletion: times are whole seconds."""
    name = f"late{len(site.admin.get(path('torchrunjob', site.namespace))['items'])}"
    made = site.job(name)
    if made["metadata"]["creationTimestamp"] > leaving:
        return name
    site.admin.delete(path("torchrunjob", site.namespace, name))
    return ""


def test_jobs_of_other_namespaces_use_a_shared_queue(site: Site, shared: str, control_plane: ControlPlane) -> None:
    name = site.namespace
    site.queue(name, namespace=shared, resources={"gpu": {"limit": 16}})
    with control_plane.namespace() as other:
        site.job("here", 8, queue=name)
        site.phase("here", "Provisioning")
        site.job("there", 8, queue=name, namespace=other)
        site.phase("there", "Provisioning", other)
        site.job("waits", 8, queue=name)
        site.phase("waits", "Queued")
        now = int(time.time())  # arrival is counted in whole seconds
        wait_until("the next second", lambda: time.time() >= now + 1)
        site.job("waits-too", 8, queue=name, namespace=other)
        told = site.until(
            "torchrunjob",
            "waits-too",
            lambda status: "number 2" in condition(status, "Phase").get("message", ""),
            other,
        )
        assert condition(told, "Phase")["message"].endswith(f"ahead: {site.namespace}/waits")
        delete(site, name, shared)
        said = site.condition("torchrunqueue", name, "DeletionBlocked", "True", namespace=shared)
        assert f"{other}/there" in said["message"]
        for where, job in ((site.namespace, "here"), (site.namespace, "waits"), (other, "there"), (other, "waits-too")):
            site.admin.delete(path("torchrunjob", where, job))
        gone(site, name, shared)


def test_a_queue_without_jobs_goes_at_once(site: Site) -> None:
    site.queue()
    site.condition("torchrunqueue", "queue", "Ready", "True")
    delete(site, "queue")
    gone(site, "queue")


# ---- KAI


def test_without_kai_a_queue_says_that_it_is_missing(site: Site) -> None:
    site.queue(kaiQueue=f"team-{site.namespace}")
    said = site.condition("torchrunqueue", "queue", "KaiQueueReady", "False")
    assert said["reason"] == "KaiNotInstalled"


@pytest.mark.usefixtures("kai")
def test_a_kai_queue_is_made_with_its_parent_and_follows_its_queue(site: Site) -> None:
    team, top = f"team-{site.namespace}", f"top-{site.namespace}"
    resources = {
        "gpu": {"quota": 4},
        "cpu": {"quota": "1500m", "limit": 8},
        "memory": {"limit": "1Gi", "overQuotaWeight": 3},
    }
    site.queue(kaiQueue=team, parentKaiQueue=top, resources=resources)
    site.condition("torchrunqueue", "queue", "KaiQueueReady", "True", "Kept")
    made, parent = kai_queue(site, team), kai_queue(site, top)
    assert made["spec"] == {
        "parentQueue": top,
        "resources": {
            "gpu": {"quota": 4, "limit": -1, "overQuotaWeight": 1},
            "cpu": {"quota": 1500, "limit": 8000, "overQuotaWeight": 1},
            "memory": {"quota": -1, "limit": 1074, "overQuotaWeight": 3},
        },
    }
    assert parent["spec"]["resources"] == {
        kind: {"quota": -1, "limit": -1, "overQuotaWeight": 1} for kind in ("gpu", "cpu", "memory")
    }
    assert site.status("torchrunqueue", "queue")["kaiQueue"] == team
    site.job("job", 16)
    site.phase("job", "Provisioning")
    (group,) = site.admin.get(f"/apis/scheduling.run.ai/v2alpha2/namespaces/{site.namespace}/podgroups")["items"]
    assert (group["spec"]["queue"], group["spec"]["minMember"]) == (team, 2)
    site.finish("job")
    site.admin.patch(path("torchrunqueue", site.namespace, "queue"), {"spec": {"resources": {"gpu": {"quota": 6}}}})
    wait_until("it follows", lambda: kai_queue(site, team)["spec"]["resources"]["gpu"]["quota"] == 6)
    site.admin.patch(f"{KAI}/{team}", {"spec": {"resources": {"gpu": {"quota": 99}}}})
    wait_until("it is put right", lambda: kai_queue(site, team)["spec"]["resources"]["gpu"]["quota"] == 6)
    site.admin.patch(f"{KAI}/{top}", {"spec": {"resources": {"gpu": {"quota": 7}}}})
    delete(site, "queue")
    gone(site, "queue")
    wait_until("the KAI Queue is gone", lambda: site.admin.find(f"{KAI}/{team}") is None)
    assert kai_queue(site, top)["spec"]["resources"]["gpu"]["quota"] == 7, "a parent is made once and then left alone"


@pytest.mark.usefixtures("kai")
def test_a_kai_queue_that_we_did_not_make_is_never_changed_or_deleted(site: Site) -> None:
    team = f"theirs-{site.namespace}"
    body = {
        "apiVersion": "scheduling.run.ai/v2",
        "kind": "Queue",
        "metadata": {"name": team},
        "spec": {"parentQueue": "x"},
    }
    before = site.admin.create(KAI, body)
    site.queue(kaiQueue=team, resources={"gpu": {"quota": 4}})
    site.condition("torchrunqueue", "queue", "KaiQueueReady", "True", "NotOurs")
    site.admin.patch(path("torchrunqueue", site.namespace, "queue"), {"spec": {"resources": {"gpu": {"quota": 6}}}})
    site.until("torchrunqueue", "queue", lambda status: status.get("gpus", {}).get("quota") == 6)
    delete(site, "queue")
    gone(site, "queue")
    after = kai_queue(site, team)
    assert after["metadata"]["resourceVersion"] == before["metadata"]["resourceVersion"]


@pytest.mark.usefixtures("kai")
def test_of_two_that_disagree_the_later_is_told_and_the_kai_queue_outlives_the_first(site: Site) -> None:
    team = f"both-{site.namespace}"
    site.queue("first", kaiQueue=team, resources={"gpu": {"quota": 4}})
    site.condition("torchrunqueue", "first", "KaiQueueReady", "True", "Kept")
    site.queue("second", kaiQueue=team, resources={"gpu": {"quota": 8}})
    said = site.condition("torchrunqueue", "second", "KaiQueueReady", "False", "Disagrees")
    assert f"kept by TorchrunQueue {site.namespace}/first, which wants gpu.quota 4 and not 8" in said["message"]
    site.queue("third", kaiQueue=team, resources={"gpu": {"quota": 4}})
    site.condition("torchrunqueue", "third", "KaiQueueReady", "True", "SharedWith")
    assert kai_queue(site, team)["spec"]["resources"]["gpu"]["quota"] == 4
    delete(site, "third")
    gone(site, "third")
    delete(site, "first")
    gone(site, "first")
    site.condition("torchrunqueue", "second", "KaiQueueReady", "True", "Kept")
    wait_until("the second's", lambda: kai_queue(site, team)["spec"]["resources"]["gpu"]["quota"] == 8)


@pytest.mark.usefixtures("kai")
def test_a_kai_queue_that_somebody_uses_is_not_deleted(site: Site) -> None:
    team = f"used-{site.namespace}"
    site.queue(kaiQueue=team)
    site.condition("torchrunqueue", "queue", "KaiQueueReady", "True", "Kept")
    group = {
        "apiVersion": "scheduling.run.ai/v2alpha2",
        "kind": "PodGroup",
        "metadata": {"name": "somebodys"},
        "spec": {"queue": team, "minMember": 1},
    }
    groups = f"/apis/scheduling.run.ai/v2alpha2/namespaces/{site.namespace}/podgroups"
    site.admin.create(groups, group)
    site.admin.patch(path("torchrunqueue", site.namespace, "queue"), {"spec": {"kaiQueue": f"other-{site.namespace}"}})
    kai_queue(site, f"other-{site.namespace}")
    site.until("torchrunqueue", "queue", lambda status: status.get("kaiQueue") == f"other-{site.namespace}")
    assert site.admin.find(f"{KAI}/{team}"), "its old KAI Queue is in use"
    site.admin.delete(f"{groups}/somebodys")
    delete(site, "queue")
    gone(site, "queue")
    wait_until(
        "all are gone", lambda: not [q for q in site.admin.get(KAI)["items"] if site.namespace in q["metadata"]["name"]]
    )


@pytest.mark.usefixtures("kai")
def test_where_namespaces_are_tenants_only_shared_queues_make_kai_queues(
    site: Site, control_plane: ControlPlane
) -> None:
    team = f"tenant-{site.namespace}"
    known: Cache[KaiQueue] = Cache()
    jobs: Cache[JobObject] = Cache()
    spec = a_queue(kaiQueue=team).spec

    async def found() -> list[str]:
        async with connect(control_plane.admin_kubeconfig) as client:
            lookup = QueueLookup(jobs, Cache(), SHARED)
            kept = KaiQueues(client, known, lookup, jobs, made_from="shared")
            tenant = await kept.ensure(Metadata(name="q", namespace=site.namespace, uid="u"), spec)
            assert site.admin.find(f"{KAI}/{team}") is None
            shared = await kept.ensure(Metadata(name="q", namespace=SHARED, uid="v"), spec)
            known.put(await client.get(KAI_QUEUES, Key("", team), KaiQueue))
            after = await kept.ensure(Metadata(name="q", namespace=site.namespace, uid="u"), spec)
            return [one.reason for one in (tenant, shared, after) if one is not None]

    assert asyncio.run(found()) == ["NotFromHere", "Kept", "NotOurs"]
    site.admin.delete(f"{KAI}/{team}")
