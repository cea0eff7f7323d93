"""`render(queue, job, target)`: one job as the objects of another deployment. Pure."""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from orchestra.api.job import TorchrunJob
from orchestra.api.problem import Invalid, Problem
from orchestra.api.queue import TorchrunQueue
from orchestra.plan.model import Plan
from orchestra.plan.planner import plan
from orchestra.render import batch_job, mpi_runtime, pytorchjob, statefulset, trainjob
from orchestra.render.draft import Draft
from orchestra.render.launch import launching
from orchestra.render.model import Manifest, Options, Rendered, Target
from orchestra.render.site import Site
from orchestra.render.torchrunjob import torchrunjob
from orchestra.render.unexpressed import unexpressed

_WRITERS: dict[str, Callable[[Draft], list[Manifest]]] = {
    "statefulset": statefulset.statefulset,
    "job": batch_job.batch_job,
    "pytorchjob": pytorchjob.pytorchjob,
    "trainjob": trainjob.trainjob,
}


def render(
    queue: TorchrunQueue, job: TorchrunJob, target: Target, options: Options | None = None, strict: bool = False
) -> Rendered:
    """The objects for a job and what they cannot express.

    Raises `Invalid` when the job cannot be planned or has no image, and, if `strict`, when anything would be lost.
    """
    options = options or Options()
    first = plan(queue, job)
    if target == "torchrunjob":
        return Rendered(torchrunjob(queue, job))
    if first.template.image is None:
        if options.image is None:
            mend = "name it in the queue or the job, or give --image"
            raise Invalid([Problem("spec.image", "a cluster needs an image", mend)])
        job = msgspec.structs.replace(job, spec=msgspec.structs.replace(job.spec, image=options.image))
    mpi = target == "trainjob" and mpi_runtime.wants_mpi(first.launch.launcher, first.node_count, options.ssh)
    long = trainjob.too_long(first.job, first.node_count, mpi) if target == "trainjob" else None
    if long is not None:
        raise Invalid([long])
    site = _site(target, first, mpi)
    port = int(first.nodes[0].env["MASTER_PORT"])
    where = site.where(first.job, first.node_count, port, first.rendezvous.backend)
    planned = plan(queue, job, where)
    warnings = unexpressed(queue, job, planned, target, options.plain)
    if strict and warnings:
        raise Invalid(list(warnings))
    draft = Draft(queue, job, planned, site, launching(planned, job, site), options)
    return Rendered(_WRITERS[target](draft), warnings, _notes(planned, options.ssh and not mpi))


def _site(target: Target, planned: Plan, mpi: bool) -> Site:
    name = planned.job
    if target == "statefulset":
        return statefulset.site(name)
    if target == "job":
        return batch_job.site(name)
    if target == "pytorchjob":
        return pytorchjob.site(name, planned.elastic)
    if mpi:
        return mpi_runtime.site(name, trainjob.site(name))
    return trainjob.site(name)


def _notes(planned: Plan, ssh_in_vain: bool) -> list[str]:
    notes = list(planned.notes)
    if ssh_in_vain:
        notes.append("--ssh changes nothing here: it is for deepspeed on several nodes with --target trainjob")
    if planned.rendezvous.backend == "etcd-v2":
        notes.append("etcd-v2 needs python-etcd in the image; c10d needs nothing")
    if planned.sync is not None:
        notes.append("the object store is reached with the `aws` program, which must be in the image")
    return notes
