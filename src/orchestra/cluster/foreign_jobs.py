"""Rendered jobs in a cluster: found by our labels, watched and changed without an operator of ours."""

from __future__ import annotations

import asyncio
from typing import Any

import msgspec

from orchestra.api.engine import EngineError
from orchestra.api.job import TorchrunJob
from orchestra.api.labels import JOB_LABEL
from orchestra.cluster.agents import page_of
from orchestra.cluster.foreign import MANAGED, WORKER, WORKLOADS, Json, as_job, pod_order
from orchestra.cluster.kinds import Pod
from orchestra.kube.client import Client
from orchestra.kube.errors import ApiError
from orchestra.kube.listing import Selection
from orchestra.kube.objects import PODS, VOLUME_CLAIMS, Key, MetadataOnly, Resource

_GONE_SECONDS = 600.0
_TICK_SECONDS = 0.3
_HIDDEN = (403, 404)
"""A kind that this cluster does not serve, or that we may not read."""

_PARTS = (
    *WORKLOADS.values(),
    Resource("trainer.kubeflow.org", "v1alpha1", "TrainingRuntime", "trainingruntimes"),
    Resource("apps", "v1", "Deployment", "deployments"),
    Resource("", "v1", "Service", "services"),
    Resource("", "v1", "ConfigMap", "configmaps"),
    Resource("scheduling.x-k8s.io", "v1alpha1", "PodGroup", "podgroups"),
    Resource("scheduling.run.ai", "v2alpha2", "PodGroup", "podgroups"),
)
"""Everything that `render` writes for one job, the workload first: without it nothing makes new pods."""


class ForeignJobs:
    """The rendered jobs of one namespace."""

    def __init__(self, client: Client, namespace: str) -> None:
        self._client, self._namespace = client, namespace

    # ---- reading

    async def find(self, name: str) -> Json | None:
        """The workload of a job."""
        found = await self._workloads(self._namespace, f"{JOB_LABEL}={name},{MANAGED}")
        return found[0] if found else None

    async def get(self, name: str) -> TorchrunJob | None:
        """A job, with a status read from its workload, pods and agents."""
        workload = await self.find(name)
        return await self._seen(workload) if workload is not None else None

    async def all(self, namespace: str | None, labels: str = "") -> list[TorchrunJob]:
        """All of a namespace, or of all."""
        found = await self._workloads(namespace, ",".join(filter(None, [MANAGED, labels])))
        return list(await asyncio.gather(*map(self._seen, found)))

    async def pods(self, name: str) -> list[Pod]:
        """A job's workers: launcher and master first."""
        return await self._pods(self._namespace, name)

    async def _seen(self, workload: Json) -> TorchrunJob:
        meta = workload["metadata"]
        pods = await self._pods(meta["namespace"], (meta.get("labels") or {}).get(JOB_LABEL, meta["name"]))
        pages = await asyncio.gather(*(page_of(self._client, pod) for pod in pods))
        return as_job(workload, pods, {pod.metadata.name: page for pod, page in zip(pods, pages, strict=True) if page})

    async def _pods(self, namespace: str, name: str) -> list[Pod]:
        listed = await self._client.list_all(PODS, Pod, Selection(namespace, f"{JOB_LABEL}={name},{WORKER}"))
        return sorted(listed, key=pod_order)

    async def _workloads(self, namespace: str | None, labels: str) -> list[Json]:
        async def of(resource: Resource) -> list[Json]:
            try:
                listed = await self._client.list_all(resource, msgspec.Raw, Selection(namespace, labels))
            except ApiError as error:
                if error.code in _HIDDEN:
                    return []
                raise
            whole = [msgspec.json.decode(raw) | {"apiVersion": resource.api_version, "kind": resource.kind}
                     for raw in listed]  # fmt: skip
            return [one for one in whole if not one["metadata"].get("ownerReferences")]

        kinds = await asyncio.gather(*map(of, WORKLOADS.values()))
        return [one for kind in kinds for one in kind]

    # ---- changing

    async def suspend(self, workload: Json, suspended: bool) -> None:
        """Ends the pods and keeps the rest; or starts them again."""
        patch: Json
        match workload["kind"]:
            case "StatefulSet":
                size = 0 if suspended else int(_environment(workload).get("NNODES", "1"))
                patch = {"spec": {"replicas": size}}
            case "PyTorchJob":
                patch = {"spec": {"runPolicy": {"suspend": suspended}}}
            case _:
                patch = {"spec": {"suspend": suspended}}
        await self._patch(workload, patch)

    async def scale(self, workload: Json, nodes: int) -> None:
        """Another size of a StatefulSet: NNODES together with the end of all pods, and then all start anew.

        A pod of the new size must not meet one of the old: each saves and ends first, and the new world goes on from
        the checkpoint. Whoever is interrupted in between leaves a suspended job of the new size: `resume` goes on.
        """
        if workload["kind"] != "StatefulSet":
            mend = "delete it (what it saved stays) and apply it at the new size; it goes on from the checkpoint"
            raise EngineError(f"a {workload['kind']} keeps the size it was created with; {mend}")
        if nodes < 1:
            raise EngineError("--nodes is at least 1; to stop it without losing anything: suspend")
        meta = workload["metadata"]
        key = Key(meta["namespace"], meta["name"])
        variables = [{"op": "replace", "path": f"{_trainer(workload)}/env/{index}/value", "value": str(nodes)}
                     for index, one in enumerate(_variables(workload)) if one["name"] == "NNODES"]  # fmt: skip
        same = [{"op": "test", "path": "/metadata/resourceVersion", "value": meta["resourceVersion"]}]
        none = [{"op": "replace", "path": "/spec/replicas", "value": 0}]
        await self._client.patch(WORKLOADS["StatefulSet"], key, [*same, *none, *variables], MetadataOnly, how="json")
        await self._wait_for_end(meta["namespace"], meta["labels"][JOB_LABEL])
        await self._patch(workload, {"spec": {"replicas": nodes}})

    async def delete(self, workload: Json, purge: bool) -> None:
        """Everything of the job but its claims, which hold the checkpoints: those go only when purged."""
        meta = workload["metadata"]
        namespace, name = meta["namespace"], meta["labels"][JOB_LABEL]
        mine = Selection(namespace, f"{JOB_LABEL}={name},{MANAGED}")
        for resource in _PARTS:
            for part in await self._readable(resource, mine):
                await self._client.delete(resource, part.metadata.key, uid=part.metadata.uid, propagation="Background")
        await self._wait_for_end(namespace, name)
        for claim in await self._readable(VOLUME_CLAIMS, mine) if purge else ():
            await self._client.delete(VOLUME_CLAIMS, claim.metadata.key, uid=claim.metadata.uid)

    async def _readable(self, resource: Resource, selection: Selection) -> list[MetadataOnly]:
        try:
            return await self._client.list_all(resource, MetadataOnly, selection)
        except ApiError as error:
            if error.code in _HIDDEN:
                return []
            raise

    async def _wait_for_end(self, namespace: str, name: str) -> None:
        end = asyncio.get_running_loop().time() + _GONE_SECONDS
        while await self._pods(namespace, name):
            if asyncio.get_running_loop().time() > end:
                raise EngineError(f"the pods of {name} have not ended after {_GONE_SECONDS:.0f} s")
            await asyncio.sleep(_TICK_SECONDS)

    async def _patch(self, workload: Json, patch: Json) -> None:
        meta = workload["metadata"]
        resource = WORKLOADS[workload["kind"]]
        await self._client.patch(resource, Key(meta["namespace"], meta["name"]), patch, MetadataOnly)


def _containers(workload: Json) -> list[Json]:
    found: list[Json] = workload["spec"]["template"]["spec"]["containers"]
    return found


def _trainer(workload: Json) -> str:
    index = next(index for index, one in enumerate(_containers(workload)) if one["name"] == "trainer")
    return f"/spec/template/spec/containers/{index}"


def _variables(workload: Json) -> list[Json]:
    return next((one.get("env") or [] for one in _containers(workload) if one["name"] == "trainer"), [])


def _environment(workload: Json) -> dict[str, Any]:
    return {one["name"]: one.get("value", "") for one in _variables(workload)}
