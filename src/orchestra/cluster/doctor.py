"""What a cluster needs to run jobs, seen with the user's own rights: looked at, never changed."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import Any

import msgspec

from orchestra.api.crd import job_crd, queue_crd
from orchestra.api.doctor import Finding
from orchestra.api.labels import OPERATOR_NAME, OPERATOR_NAMESPACE
from orchestra.cluster.kinds import GPU, JOBS, QUEUES, STORAGE_CLASSES, Node, StorageClass
from orchestra.cluster.submitting import visible_queues
from orchestra.kube.client import Client
from orchestra.kube.errors import ApiError, KubeError, Unreachable
from orchestra.kube.lease import Lease
from orchestra.kube.objects import LEASES, NODES, Key, Resource
from orchestra.plan.status import seconds_of

_REVIEWS = Resource(
    "authorization.k8s.io", "v1", "SelfSubjectAccessReview", "selfsubjectaccessreviews", namespaced=False
)
_CRDS = Resource(
    "apiextensions.k8s.io", "v1", "CustomResourceDefinition", "customresourcedefinitions", namespaced=False
)
_KAI = Resource("scheduling.run.ai", "v2alpha2", "PodGroup", "podgroups")
_COSCHEDULING = Resource("scheduling.x-k8s.io", "v1alpha1", "PodGroup", "podgroups")
_INSTALL = "orchestra install"
_NEEDED = [
    ("torchrun.ai", "torchrunjobs", "", ("create", "get", "list", "patch", "delete")),
    ("torchrun.ai", "torchrunqueues", "", ("get", "list")),
    ("", "pods", "", ("list",)),
    ("", "pods", "log", ("get",)),
    ("", "events", "", ("list",)),
    ("", "persistentvolumeclaims", "", ("list",)),
]
_SHARED_FILES = ("nfs", "cephfs", "efs", "file.csi", "filestore", "lustre", "weka", "glusterfs", "juicefs", "beegfs")
"""Parts of the names of provisioners that serve ReadWriteMany; the API itself cannot be asked."""

Check = Callable[[Client, str], Awaitable[list[Finding]]]


async def examine(client: Client, namespace: str) -> list[Finding]:
    """One finding a thing, in the order in which a job needs them."""
    try:
        found = await _server(client)
    except Unreachable as error:
        reason = str(error).partition(": ")[2]
        return [
            Finding("cluster", "missing", f"{client.access.server} does not answer: {reason}", "kubectl cluster-info")
        ]
    except ApiError as error:
        return [
            Finding("cluster", "missing", f"{client.access.server} refuses: {error.refusal.message}", "log in again")
        ]
    checks: list[Check] = [_definitions, _operator, _rights, _queues, _gpus, _gangs, _storage]
    for part in await asyncio.gather(*(_carefully(check, client, namespace) for check in checks)):
        found += part
    return found


async def _carefully(check: Check, client: Client, namespace: str) -> list[Finding]:
    """A check that may not look says so, and does not hide the others."""
    about = check.__name__.strip("_")
    try:
        return await check(client, namespace)
    except ApiError as error:
        if error.code == 403:
            return [Finding(about, "unknown", "you may not look: " + error.refusal.message)]
        return [Finding(about, "unknown", str(error))]
    except KubeError as error:
        return [Finding(about, "unknown", str(error))]


async def _server(client: Client) -> list[Finding]:
    answer = await client.transport.request("GET", "/version")
    version = msgspec.json.decode(answer.body).get("gitVersion", "?")
    return [Finding("cluster", "ok", f"{client.access.server}, Kubernetes {version}")]


async def _definitions(client: Client, _namespace: str) -> list[Finding]:
    found = []
    for resource, ours in ((JOBS, job_crd()), (QUEUES, queue_crd())):
        about = f"CRD {resource.plural}"
        if not await client.served(resource):
            found.append(Finding(about, "missing", f"{resource.api_version} is not served", _INSTALL))
            continue
        try:
            theirs = await client.get(_CRDS, Key("", f"{resource.plural}.{resource.group}"), dict[str, Any])
        except ApiError as error:
            if error.code != 403:
                raise
            text = f"{resource.api_version} is served (you may not read its definition, so its age is not known)"
            found.append(Finding(about, "ok", text))
            continue
        lacking = sorted(_fields(ours) - _fields(theirs))
        if lacking:
            text = f"older than this program: it does not know {', '.join(lacking[:5])}"
            found.append(Finding(about, "warning", text, _INSTALL))
        else:
            found.append(Finding(about, "ok", resource.api_version))
    return found


def _fields(crd: dict[str, Any]) -> set[str]:
    """The paths of a definition's spec and status, two levels deep."""
    properties = crd["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]
    found = set()
    for part in ("spec", "status"):
        for name, schema in properties.get(part, {}).get("properties", {}).items():
            found.add(f"{part}.{name}")
            found |= {f"{part}.{name}.{inner}" for inner in schema.get("properties", {})}
    return found


async def _operator(client: Client, _namespace: str) -> list[Finding]:
    lease = await client.find(LEASES, Key(OPERATOR_NAMESPACE, OPERATOR_NAME), Lease)
    logs = f"kubectl -n {OPERATOR_NAMESPACE} logs deployment/{OPERATOR_NAME}"
    if lease is None or not lease.spec.holder_identity:
        return [
            Finding("operator", "missing", f"nobody holds the lease {OPERATOR_NAMESPACE}/{OPERATOR_NAME}", _INSTALL)
        ]
    age = time.time() - (seconds_of(lease.spec.renew_time) or 0.0)
    patience = 2.0 * (lease.spec.lease_duration_seconds or 15)
    if age > patience:
        text = f"{lease.spec.holder_identity} last renewed its lease {age:.0f} s ago: it does not run"
        return [Finding("operator", "missing", text, logs)]
    return [Finding("operator", "ok", f"{lease.spec.holder_identity} leads")]


async def _rights(client: Client, namespace: str) -> list[Finding]:
    asked = [(group, plural, sub, verb) for group, plural, sub, verbs in _NEEDED for verb in verbs]
    answers = await asyncio.gather(*(_may(client, namespace, *one) for one in asked))
    lacking = [
        f"{verb} {plural}{'/' + sub if sub else ''}"
        for (_, plural, sub, verb), may in zip(asked, answers, strict=True)
        if not may
    ]
    if not lacking:
        return [Finding("rights", "ok", f"you may run jobs in namespace {namespace}")]
    mend = f"kubectl -n {namespace} create rolebinding NAME --clusterrole=orchestra-user --user=YOU (an administrator)"
    return [Finding("rights", "missing", f"in namespace {namespace} you may not {', '.join(lacking)}", mend)]


async def _may(client: Client, namespace: str, group: str, plural: str, subresource: str, verb: str) -> bool:
    wanted = {"namespace": namespace, "group": group, "resource": plural, "subresource": subresource, "verb": verb}
    body = {"apiVersion": _REVIEWS.api_version, "kind": _REVIEWS.kind, "spec": {"resourceAttributes": wanted}}
    answer = await client.create(_REVIEWS, "", body, dict[str, Any])
    return bool(answer.get("status", {}).get("allowed"))


async def _queues(client: Client, namespace: str) -> list[Finding]:
    found, complete = await visible_queues(client, namespace)
    hidden = "" if complete else " (you may not read the shared ones)"
    if not found:
        text = f"there is no TorchrunQueue for namespace {namespace}{hidden}"
        return [Finding("queues", "missing", text, "kubectl apply -f QUEUE.yaml; examples/ has some")]
    bad = [queue for queue in found if queue.status and queue.status.phase in ("Invalid", "Degraded")]
    names = ", ".join(queue.metadata.name for queue in found)
    if bad:
        said = "; ".join(f"{one.metadata.name} is {one.status.phase}" for one in bad if one.status)
        return [Finding("queues", "warning", f"{names}; {said}", f"kubectl -n {namespace} describe torchrunqueue")]
    return [Finding("queues", "ok", names + hidden)]


async def _gpus(client: Client, _namespace: str) -> list[Finding]:
    nodes = await client.list_all(NODES, Node)
    with_gpus = {node.metadata.name: int(node.status.allocatable.get(GPU, "0")) for node in nodes}
    total = sum(with_gpus.values())
    down = [node.metadata.name for node in nodes if not node.ready]
    lost = f"; not ready: {', '.join(down)}" if down else ""
    if not total:
        mend = "install the GPU operator or device plugin; CPU queues work without"
        return [Finding("gpus", "warning", f"no node of {len(nodes)} offers {GPU}{lost}", mend)]
    several = sum(count > 0 for count in with_gpus.values())
    return [Finding("gpus", "warning" if down else "ok", f"{total} on {several} of {len(nodes)} nodes{lost}")]


async def _gangs(client: Client, _namespace: str) -> list[Finding]:
    kai, other = await client.served(_KAI), await client.served(_COSCHEDULING)
    names = [name for name, there in (("KAI", kai), ("coscheduling", other)) if there]
    if names:
        return [Finding("gang", "ok", f"{' and '.join(names)} served: workers are placed all at once")]
    text = "no gang scheduler: the operator places a gang as well as it can, and takes half a gang back after a while"
    return [Finding("gang", "warning", text, "install KAI or the coscheduling plugin where several jobs compete")]


async def _storage(client: Client, _namespace: str) -> list[Finding]:
    classes = await client.list_all(STORAGE_CLASSES, StorageClass)
    if not classes:
        mend = "install a provisioner, or use sync.output instead of claims"
        return [Finding("storage", "warning", "there is no StorageClass: claims will wait for ever", mend)]
    default = next((one for one in classes if one.default), None)
    shared = [one.metadata.name for one in classes if any(part in one.provisioner.lower() for part in _SHARED_FILES)]
    names = ", ".join(one.metadata.name for one in classes)
    hint = f"ReadWriteMany by the name of its provisioner: {', '.join(shared)}" if shared else (
        "whether one can do ReadWriteMany (several nodes) the API does not tell"
    )  # fmt: skip
    if default is None:
        mark = "kubectl annotate storageclass NAME storageclass.kubernetes.io/is-default-class=true"
        mend = f"name storageClass in queues, or mark one: {mark}"
        return [Finding("storage", "warning", f"{names}, none of them the default; {hint}", mend)]
    return [Finding("storage", "ok", f"{names} (default {default.metadata.name}); {hint}")]
