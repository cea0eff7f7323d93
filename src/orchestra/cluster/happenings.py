"""What happened to jobs, from the events that a cluster keeps for about an hour."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Literal, cast

from orchestra.api.engine import Event, Run
from orchestra.api.job import Phase, TorchrunJob, TorchrunJobSpec
from orchestra.api.kubernetes import ObjectMeta
from orchestra.api.labels import JOB_LABEL
from orchestra.cluster.kinds import CORE_EVENTS, JOBS, ClusterEvent
from orchestra.kube.client import Client
from orchestra.kube.listing import Selection
from orchestra.kube.objects import PODS, VOLUME_CLAIMS, MetadataOnly
from orchestra.plan import status

_PHASES = ("Pending", "Syncing", "Queued", "Provisioning", "Running", "Suspended", "Succeeded", "Failed")


async def events_of(client: Client, job: TorchrunJob, namespace: str) -> list[Event]:
    """The job's own events, and the warnings about its pods and claims. That it was submitted, its own stamp tells."""
    uid = job.metadata.uid or ""
    own = await client.list_all(CORE_EVENTS, ClusterEvent, Selection(namespace, fields=f"involvedObject.uid={uid}"))
    found = [_event(one) for one in own]
    warnings = await warnings_of(client, job, namespace)
    found += [_event(one, f"{one.involved_object.name}: ") for one in warnings]
    found.sort(key=lambda event: event.time)
    created = status.seconds_of(job.metadata.creation_timestamp) or 0.0
    return [Event(created, "Normal", "Submitted", f"to {namespace}"), *found]


async def warnings_of(client: Client, job: TorchrunJob, namespace: str) -> list[ClusterEvent]:
    """Warnings about the pods and claims of a job that are there."""
    mine: set[str] = set()
    for resource in (PODS, VOLUME_CLAIMS):
        listed = await client.list_all(resource, MetadataOnly, Selection(namespace, f"{JOB_LABEL}={job.metadata.name}"))
        mine |= {one.metadata.uid for one in listed}
    warnings = await client.list_all(CORE_EVENTS, ClusterEvent, Selection(namespace, fields="type=Warning"))
    return [one for one in warnings if one.involved_object.uid in mine]


def _event(one: ClusterEvent, about: str = "") -> Event:
    kind: Literal["Normal", "Warning"] = "Warning" if one.type == "Warning" else "Normal"
    times = f" (x{one.series.count})" if one.series and one.series.count > 1 else ""
    return Event(one.time, kind, one.reason, f"{about}{one.message}{times}")


async def gone_runs(client: Client, namespace: str | None, living: set[str | None]) -> list[Run]:
    """Runs whose job is gone but whose events are not. Their spec went with them."""
    selection = Selection(namespace, fields=f"involvedObject.kind={JOBS.kind}")
    by_uid: dict[str, list[ClusterEvent]] = {}
    for event in await client.list_all(CORE_EVENTS, ClusterEvent, selection):
        if event.involved_object.uid and event.involved_object.uid not in living:
            by_uid.setdefault(event.involved_object.uid, []).append(event)
    return [_run(uid, events) for uid, events in by_uid.items()]


def _run(uid: str, events: Iterable[ClusterEvent]) -> Run:
    ordered = sorted(events, key=lambda event: event.time)
    first, last = ordered[0], ordered[-1]
    about = first.involved_object
    meta = ObjectMeta(
        name=about.name, namespace=about.namespace, uid=uid, creation_timestamp=status.timestamp(first.time)
    )
    job = TorchrunJob(metadata=meta, spec=TorchrunJobSpec(job_queue="", command=""))
    told = next((one for one in reversed(ordered) if one.message.partition(":")[0] in _PHASES), None)
    if told is not None:
        phase, _, message = told.message.partition(": ")
        job = status.in_phase(job, cast("Phase", phase), told.reason, message, told.time)
    return Run(job, last.time)
