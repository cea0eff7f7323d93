"""The same verbs for rendered jobs: StatefulSets, Jobs, PyTorchJobs and TrainJobs that `render` wrote."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from typing import Any

from orchestra.api.engine import Cause, EngineError, NotFound, Submission
from orchestra.api.job import TorchrunJob
from orchestra.cluster import happenings
from orchestra.cluster.applying import apply_rendered
from orchestra.cluster.engine import KubernetesEngine
from orchestra.cluster.foreign import Json
from orchestra.cluster.foreign_jobs import ForeignJobs
from orchestra.cluster.kinds import Claim, Node, Pod
from orchestra.cluster.observing import allowed
from orchestra.cluster.why import Observed, causes
from orchestra.kube.listing import Selection
from orchestra.kube.objects import NODES, PODS, VOLUME_CLAIMS
from orchestra.plan import status


class RenderedEngine(KubernetesEngine):
    """Rendered jobs of one namespace. No operator of ours is needed, and none looks at them."""

    def holds(self, name: str) -> bool:
        """Whether there is such a rendered job."""
        return self.do(self._jobs_without_operator().find(name)) is not None

    def submit(self, submission: Submission) -> TorchrunJob:
        """Rendered jobs are applied, not submitted."""
        raise EngineError(f"{submission.job.metadata.name}: apply --target creates rendered jobs")

    def suspend(self, name: str) -> TorchrunJob:
        """Ends the pods, which save first, and keeps everything else."""
        self._active(name, "suspended")
        return self.do(self._set_suspended(name, suspended=True))

    def resume(self, name: str, changes: dict[str, Any]) -> TorchrunJob:
        """Starts the pods again; they go on from the last checkpoint."""
        if changes:
            raise EngineError("a rendered job keeps its spec; render it anew with the change and apply that")
        if status.status_of(self.get(name)).phase != "Suspended":
            raise EngineError(f"{name} is not Suspended; there is nothing to resume")
        return self.do(self._set_suspended(name, suspended=False))

    def cancel(self, name: str) -> TorchrunJob:
        """Not for these: their controllers know no such end."""
        raise EngineError(f"{name} is a rendered job: suspend keeps it, delete ends it")

    def apply(self, objects: Sequence[Json], say: Callable[[str], None]) -> None:
        """Creates or updates rendered objects."""
        self.do(apply_rendered(self.client, self.namespace, objects, say))

    def scale(self, name: str, nodes: int) -> TorchrunJob:
        """Another number of nodes: all pods end, then all start."""
        return self.do(self._scale(name, nodes))

    def why(self, name: str) -> list[Cause]:
        """Why the job is where it is."""
        return self.do(self._why(name))

    # ---- within

    def _jobs_without_operator(self) -> ForeignJobs:
        return ForeignJobs(self.client, self.namespace)

    async def _get(self, name: str) -> TorchrunJob:
        found = await self._jobs_without_operator().get(name)
        if found is None:
            raise NotFound(f"there is no rendered job {name} in {self.where}")
        return found

    async def _workload(self, name: str) -> Json:
        found = await self._jobs_without_operator().find(name)
        if found is None:
            raise NotFound(f"there is no rendered job {name} in {self.where}")
        return found

    async def _jobs(self, labels: str) -> list[TorchrunJob]:
        return await self._jobs_without_operator().all(None if self.everywhere else self.namespace, labels)

    async def _workers(self, name: str, uid: str | None) -> list[Pod]:  # noqa: ARG002 -- controllers of others own them
        return await self._jobs_without_operator().pods(name)

    async def _has_ended(self, name: str, uid: str | None) -> bool:
        job = await self._jobs_without_operator().get(name)
        return job is None or job.metadata.uid != uid or status.at_rest(job)

    async def _set_suspended(self, name: str, *, suspended: bool) -> TorchrunJob:
        await self._jobs_without_operator().suspend(await self._workload(name), suspended)
        return await self._get(name)

    async def _scale(self, name: str, nodes: int) -> TorchrunJob:
        await self._jobs_without_operator().scale(await self._workload(name), nodes)
        return await self._get(name)

    async def _delete(self, name: str, purge: bool) -> None:
        await self._jobs_without_operator().delete(await self._workload(name), purge)

    async def _why(self, name: str) -> list[Cause]:
        client, job = self.client, await self._get(name)
        pods, claims, nodes, placed, warnings = await asyncio.gather(
            self._jobs_without_operator().pods(name),
            allowed(client.list_all(VOLUME_CLAIMS, Claim, Selection(self.namespace))),
            allowed(client.list_all(NODES, Node)),
            allowed(client.list_all(PODS, Pod, Selection(None, fields="spec.nodeName!="))),
            happenings.warnings_of(client, job, self.namespace),
        )
        return causes(
            Observed(
                job=job,
                namespace=self.namespace,
                now=time.time(),
                pods=tuple(pods),
                claims=tuple(claims or ()),
                events=tuple(warnings),
                nodes=None if nodes is None else tuple(nodes),
                placed=None if placed is None else tuple(placed),
            )
        )
