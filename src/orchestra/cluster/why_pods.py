"""Why the pods of a job do not run: the scheduler's reason with the nodes' numbers, volumes, image, container. Pure."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING

from orchestra.api.engine import Cause
from orchestra.api.quantity import Quantity
from orchestra.cluster.kinds import GPU, ClusterEvent, Node, Pod

if TYPE_CHECKING:  # they know each other: the whole, and one part of it
    from orchestra.cluster.why import Observed

_IMAGE = ("ErrImagePull", "ImagePullBackOff", "InvalidImageName", "ErrImageNeverPull", "ImageInspectError",
          "RegistryUnavailable", "SignatureValidationFailed")  # fmt: skip
_QUIET = ("", "ContainerCreating", "PodInitializing")
_VOLUME_EVENTS = ("FailedMount", "FailedAttachVolume", "ProvisioningFailed", "FailedBinding", "FailedMapVolume")
_MISSING = re.compile(r'(secret|configmap) "([^"]+)" not found')
_MISSING_KEY = re.compile(r"couldn't find key (\S+) in (Secret|ConfigMap) \S*?/?([^/\s]+)$")
_PREEMPTION = re.compile(r"\s*(no new claims to deallocate, )?preemption: .*$", re.DOTALL)
_GANG = re.compile(r"pod ?group|gang", re.IGNORECASE)
_MOST_NODES = 12


def causes(seen: Observed) -> list[Cause]:
    """One cause a different reason; pods with the same one are told together."""
    found = [*_volumes(seen)]
    unplaced = [pod for pod in seen.pods if _unscheduled(pod) is not None]
    if unplaced:
        found += _unplaced(seen, unplaced, has_volume_cause=bool(found))
    found += _waiting(seen)
    running = sum(pod.status.phase == "Running" for pod in seen.pods)
    if not found and seen.pods:
        starting = [pod.metadata.name for pod in seen.pods if pod.status.phase == "Pending"]
        if starting:
            text = f"{_names(starting)} are being started; {running} of {len(seen.pods)} workers run"
            found.append(Cause("container", text))
    return found


# ---- placement


def _unscheduled(pod: Pod) -> str | None:
    for condition in pod.status.conditions:
        if condition.type == "PodScheduled" and condition.status == "False":
            return condition.message or condition.reason
    return None


def _unplaced(seen: Observed, pods: list[Pod], *, has_volume_cause: bool) -> list[Cause]:
    found = []
    for message, mine in _grouped(pods, lambda pod: _unscheduled(pod) or "").items():
        text = _PREEMPTION.sub("", message).strip(". ")
        if "PersistentVolumeClaim" in text and has_volume_cause:
            continue  # the claim itself is told
        asks = _asks(mine[0])
        whole = f"{_names(pod.metadata.name for pod in mine)} ({asks}) fit nowhere: {text}"
        facts = _node_facts(seen, mine[0])
        if _GANG.search(text):
            size = f"all {len(seen.pods)} workers are placed together or not at all; "
            found.append(Cause("gang", f"{size}{whole}", "ask for fewer nodes, or wait until all fit at once"))
            if facts:
                found.append(Cause("nodes", facts))
        else:
            found.append(Cause("nodes", f"{whole}. {facts}".rstrip(". "), _placement_mend(text)))
    return found


def _placement_mend(text: str) -> str:
    if "Insufficient" in text or "Too many pods" in text:
        return "ask for less (--gpus, overrides.nodeResources), or wait for, or add, nodes"
    if "node affinity" in text or "node selector" in text:
        return "check scheduling.nodeSelector and affinity of the queue against `kubectl get nodes --show-labels`"
    if "taint" in text:
        return "add scheduling.tolerations to the queue for those taints"
    return ""


def _asks(pod: Pod) -> str:
    wants = []
    for resource, words in ((GPU, "GPUs"), ("cpu", "CPUs"), ("memory", "memory")):
        asked = pod.requests(resource)
        if asked:
            wants.append(f"{_sum(asked)} {words}" if resource != "memory" else f"{'+'.join(asked)} memory")
    return "each asks for " + (", ".join(wants) or "nothing in particular")


def _node_facts(seen: Observed, pod: Pod) -> str:
    """What each node has, what of it is free, and what else keeps pods off it."""
    if seen.nodes is None:
        return "(you may not read nodes, so their free resources are not known here)"
    facts = [_node_fact(node, pod, seen) for node in seen.nodes[:_MOST_NODES]]
    more = len(seen.nodes) - _MOST_NODES
    return "Nodes: " + "; ".join(facts) + (f"; and {more} more" if more > 0 else "")


def _node_fact(node: Node, pod: Pod, seen: Observed) -> str:
    words = []
    here = [other for other in seen.placed or () if other.spec.node_name == node.metadata.name]
    for resource, unit in ((GPU, "GPUs"), ("cpu", "CPUs")):
        if not pod.requests(resource):
            continue
        has = Quantity(node.status.allocatable.get(resource, "0"))
        if seen.placed is None:
            words.append(f"has {has} {unit}")
            continue
        used = sum((Quantity(text).value for one in here for text in one.requests(resource)), Quantity(0).value)
        words.append(f"{_plain(has.value - used)} of {has} {unit} free")
    if not node.ready:
        words.append("not ready")
    if node.spec.unschedulable:
        words.append("cordoned")
    words += [f"taint {taint.key}:{taint.effect}" for taint in node.spec.taints if taint.effect != "PreferNoSchedule"]
    labels = node.metadata.labels or {}
    words += [f"lacks label {k}={v}" for k, v in pod.spec.node_selector.items() if labels.get(k) != v]
    return f"{node.metadata.name} {', '.join(words)}".strip()


def _sum(amounts: Iterable[str]) -> str:
    return _plain(sum((Quantity(text).value for text in amounts), Quantity(0).value))


def _plain(value: object) -> str:
    return f"{float(value):g}"  # type: ignore[arg-type]  # a Fraction


# ---- volumes


def _volumes(seen: Observed) -> list[Cause]:
    found = []
    used = {use.persistent_volume_claim.claim_name for pod in seen.pods for use in pod.spec.volumes
            if use.persistent_volume_claim is not None}  # fmt: skip
    known = {claim.metadata.name: claim for claim in seen.claims}
    blocked = any("PersistentVolumeClaim" in (_unscheduled(pod) or "") for pod in seen.pods)
    for name in sorted(used - set(known)):
        if any(f'"{name}" not found' in (_unscheduled(pod) or "") for pod in seen.pods):
            text = f"there is no claim {name} in {seen.namespace}"
            found.append(
                Cause("volumes", text, f"create it, or name another claim: kubectl -n {seen.namespace} get pvc")
            )
    for claim in seen.claims:
        if claim.status.phase == "Bound" or claim.metadata.name not in used:
            continue
        said = _last(seen.events, claim.metadata.uid, ())
        if said is None and not blocked:
            continue  # it binds when its first pod is placed
        wants = f"{', '.join(claim.spec.access_modes)} on class {claim.spec.storage_class_name or 'default'}"
        why = said.message if said else "nothing has answered it yet"
        mend = "name a storageClass that can (orchestra doctor lists them), or other accessModes"
        found.append(Cause("volumes", f"claim {claim.metadata.name} ({wants}) is {claim.status.phase}: {why}", mend))
    for pod in seen.pods:
        said = _last(seen.events, pod.metadata.uid, _VOLUME_EVENTS)
        if said is not None and pod.status.phase == "Pending":
            found.append(Cause("volumes", f"{pod.metadata.name}: {said.reason}: {said.message}"))
            break
    return found


def _last(events: Iterable[ClusterEvent], uid: str, reasons: tuple[str, ...]) -> ClusterEvent | None:
    mine = [one for one in events if one.involved_object.uid == uid and (not reasons or one.reason in reasons)]
    return max(mine, key=lambda one: one.time, default=None)


# ---- image and container


def _waiting(seen: Observed) -> list[Cause]:
    """Containers that wait with a reason, told once a reason."""
    reasons: dict[tuple[str, str], list[Pod]] = defaultdict(list)
    for pod in seen.pods:
        for container in (*pod.status.init_container_statuses, *pod.status.container_statuses):
            waiting = container.state.waiting
            if waiting is not None and waiting.reason not in _QUIET:
                kind = "image" if waiting.reason in _IMAGE else waiting.reason
                reasons[kind, container.name].append(pod)
                break
    return [_container(seen, kind, name, pods) for (kind, name), pods in reasons.items()]


def _container(seen: Observed, kind: str, name: str, pods: list[Pod]) -> Cause:
    pod = pods[0]
    states = (*pod.status.init_container_statuses, *pod.status.container_statuses)
    waiting = next(one.state.waiting for one in states if one.name == name and one.state.waiting is not None)
    who = _names(one.metadata.name for one in pods)
    if kind == "image":
        image = next((one.image for one in pod.spec.containers if one.name == name), "")
        pulled = [one for one in seen.events if one.involved_object.uid == pod.metadata.uid and one.reason == "Failed"
                  and "pull" in one.message.lower()]  # fmt: skip
        detail = max(pulled, key=lambda one: one.time).message if pulled else waiting.message
        mend = "check the image's name, and imagePullSecrets for a private registry"
        return Cause("image", f"{who}: {waiting.reason}: image {image}: {detail}", mend)
    text = f"{who}: {waiting.reason}: {waiting.message}".rstrip(": ")
    missing = _MISSING.search(waiting.message)
    if missing:
        what = "secret generic" if missing[1] == "secret" else "configmap"
        return Cause(
            "container", text, f"kubectl -n {seen.namespace} create {what} {missing[2]} --from-literal=KEY=VALUE"
        )
    if _MISSING_KEY.search(waiting.message):
        return Cause("container", text, "add that key, or name another one in env or secrets")
    return Cause("container", text)


def _grouped(pods: list[Pod], by: Callable[[Pod], str]) -> dict[str, list[Pod]]:
    groups: dict[str, list[Pod]] = defaultdict(list)
    for pod in pods:
        groups[by(pod)].append(pod)
    return groups


def _names(names: Iterable[str]) -> str:
    listed = sorted(names)
    return ", ".join(listed) if len(listed) <= 4 else f"{', '.join(listed[:3])} and {len(listed) - 3} more"
