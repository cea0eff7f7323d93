"""From a pod template to the words of a queue and a job."""

from __future__ import annotations

from typing import Any

from orchestra.render.convert.reading import Findings, Raw, take
from orchestra.render.labels import OURS
from orchestra.render.pod import GPU, LAST_UPLOAD_SECONDS
from orchestra.render.script import TOKEN_SPELLINGS

CONTAINERS = ("trainer", "pytorch", "node")
IDENTITY = frozenset(
    [
        "POD_NAME",
        "NODE_RANK",
        "NNODES",
        "RANK",
        "WORLD_SIZE",
        "LOCAL_RANK",
        "MASTER_ADDR",
        "MASTER_PORT",
        "NPROC_PER_NODE",
    ]
)
"""Variables that are filled in anew."""
_POD_SECURITY_ONLY = ("windowsOptions",)


def trainer_container(pod: Raw, findings: Findings) -> Raw:
    """The container that trains, taken out of the pod."""
    containers: list[Raw] = take(pod, "spec", "containers", default=[])
    chosen = next((one for one in containers if one.get("name") in CONTAINERS), containers[0] if containers else {})
    others = [one for one in containers if one is not chosen]
    if others:
        pod["spec"]["containers"] = others
        if chosen.get("name") not in CONTAINERS:
            findings.guessed.append(f"container {chosen.get('name')} is the trainer; the others run beside it")
    chosen.pop("name", None)
    return chosen


def read_pod(pod: Raw, container: Raw, findings: Findings) -> None:
    """Image, resources, scheduling, security; what has no word of ours goes to `podTemplate`."""
    queue, job = findings.queue, findings.job
    for field in ("image", "imagePullPolicy"):
        findings.into(queue, field, take(container, field))
    findings.into(job, "workingDir", take(container, "workingDir"))
    for field in ("imagePullSecrets", "serviceAccountName"):
        findings.into(queue, field, take(pod, "spec", field))
    take(pod, "spec", "serviceAccount")  # the old name of the same
    _read_resources(container, findings)
    _read_security(pod, container, findings)
    _read_scheduling(pod, findings)
    _read_metadata(pod, findings)
    grace = take(pod, "spec", "terminationGracePeriodSeconds")
    if grace is not None:
        own = max(0, grace - LAST_UPLOAD_SECONDS) if findings.ours else grace
        findings.into(queue, "lifecycle.gracePeriodSeconds", own)
        if own == 0:
            queue.setdefault("lifecycle", {})["gracePeriodSeconds"] = 0
    _read_probes(container, findings)


def _read_resources(container: Raw, findings: Findings) -> None:
    limits, requests = (
        take(container, "resources", "limits", default={}),
        take(container, "resources", "requests", default={}),
    )
    take(container, "resources", "claims")
    node: Raw = {}
    gpus = limits.pop(GPU, None) or requests.get(GPU)
    requests.pop(GPU, None)
    if gpus is not None:
        node["gpus"] = int(str(gpus))
    for name, word in (("cpu", "cpus"), ("memory", "memory")):
        limit, request = limits.pop(name, None), requests.pop(name, None)
        if limit is not None and request is not None and str(limit) != str(request):
            findings.guessed.append(f"{name}: the limit {limit} is taken, not the request {request}")
        if limit is not None or request is not None:
            node[word] = limit if limit is not None else request
    for name in dict.fromkeys([*limits, *requests]):
        findings.left_out.append(f"resources: {name}")
    findings.into(findings.queue, "nodeResources", node)


def _read_security(pod: Raw, container: Raw, findings: Findings) -> None:
    of_pod, of_container = (
        take(pod, "spec", "securityContext", default={}),
        take(container, "securityContext", default={}),
    )
    for name in _POD_SECURITY_ONLY:
        if name in of_pod:
            findings.left_out.append(f"securityContext.{name}")
            of_pod.pop(name)
    findings.into(findings.queue, "securityContext", {**of_pod, **of_container})


def _read_scheduling(pod: Raw, findings: Findings) -> None:
    queue = findings.queue
    spec = pod.get("spec", {})
    scheduler = take(spec, "schedulerName")
    if scheduler != "default-scheduler":
        findings.into(queue, "scheduling.scheduler", scheduler)
    for name in ("priorityClassName", "nodeSelector", "tolerations", "topologySpreadConstraints"):
        findings.into(queue, f"scheduling.{name}", take(spec, name))
    if take(spec, "hostNetwork"):
        findings.into(queue, "network.hostNetwork", True)
        if spec.get("dnsPolicy") == "ClusterFirstWithHostNet":
            take(spec, "dnsPolicy")
    affinity = take(spec, "affinity", default={})
    for name, spread in (
        ("requiredDuringSchedulingIgnoredDuringExecution", True),
        ("preferredDuringSchedulingIgnoredDuringExecution", None),
    ):
        rules = affinity.get("podAntiAffinity", {}).get(name, [])
        kept = [rule for rule in rules if not _is_spread(rule, pod)]
        if len(kept) < len(rules) and spread:
            queue.setdefault("scheduling", {})["spread"] = True
        if len(kept) < len(rules):
            _replace(affinity, "podAntiAffinity", name, kept)
    findings.into(queue, "scheduling.affinity", affinity)


def _is_spread(rule: Raw, pod: Raw) -> bool:
    """A rule that keeps the pods of the job apart, on different machines."""
    term = rule.get("podAffinityTerm", rule)
    selector = term.get("labelSelector", {})
    mine = pod.get("metadata", {}).get("labels", {})
    wanted = dict(selector.get("matchLabels", {}))
    for one in selector.get("matchExpressions", []):
        if one.get("operator") == "In" and len(one.get("values", [])) == 1:
            wanted[one["key"]] = one["values"][0]
    return term.get("topologyKey") == "kubernetes.io/hostname" and bool(wanted) and wanted.items() <= mine.items()


def _replace(affinity: Raw, kind: str, name: str, kept: list[Any]) -> None:
    if kept:
        affinity[kind][name] = kept
        return
    del affinity[kind][name]
    if not affinity[kind]:
        del affinity[kind]


def _read_metadata(pod: Raw, findings: Findings) -> None:
    """Labels and annotations that are not the machinery's."""
    labels = take(pod, "metadata", "labels", default={})
    kai = labels.get("kai.scheduler/queue")
    if kai and findings.ours:
        findings.queue["kaiQueue"] = kai
    if "scheduling.x-k8s.io/pod-group" in labels:
        findings.into(findings.queue, "scheduling.gang", "coscheduling")
    # An older label of the pod only chose pods; it is kept as a label of the job all the same.
    mine = {name: value for name, value in labels.items() if name not in OURS and "kubernetes.io/" not in name}
    if mine:
        findings.job.setdefault("labels", {}).update(mine)
    notes = take(pod, "metadata", "annotations", default={})
    if notes:
        findings.job.setdefault("annotations", {}).update(notes)


def _read_probes(container: Raw, findings: Findings) -> None:
    for name in ("livenessProbe", "readinessProbe", "startupProbe"):
        if take(container, name) is not None and not findings.ours:
            findings.left_out.append(f"{name}: the agent watches the ranks itself")
    ports = take(container, "ports", default=[])
    for one in ports:
        if one.get("name") in ("rdzv", "pytorchjob-port") or len(ports) == 1:
            findings.into(findings.job, "distributed.port", one.get("containerPort"))
        elif one.get("name") != "agent":
            findings.left_out.append(f"port {one.get('name') or ''} {one.get('containerPort')}".replace("  ", " "))


def read_env(container: Raw, findings: Findings) -> dict[str, str]:
    """Variables, less those that are filled in anew. Returns the literal ones."""
    literal: dict[str, str] = {}
    env: list[Raw] = take(container, "env", default=[])
    by_name = {one["name"]: {key: one[key] for key in ("value", "valueFrom") if key in one} for one in env}
    alias = next((by_name[name] for name in TOKEN_SPELLINGS if name in by_name), None)
    for one in env:
        name, source = one["name"], one.get("valueFrom")
        if name == "HF_TOKEN" and alias is not None and by_name[name] == alias:
            continue
        if source is None:
            literal[name] = str(one.get("value", ""))
            continue
        if name in IDENTITY or name.startswith("PET_"):
            continue
        secret = source.get("secretKeyRef")
        if secret and set(secret) == {"name", "key"}:
            use = {"name": secret["name"], "key": secret["key"]} | ({"env": name} if name != secret["key"] else {})
            findings.job.setdefault("secrets", []).append(use)
        else:
            findings.job.setdefault("env", []).append(one)
    for one in take(container, "envFrom", default=[]):
        findings.job.setdefault("envFrom", []).append(one)
    return literal


def keep_the_rest(pod: Raw, container: Raw, findings: Findings) -> None:
    """Whatever a pod has beyond our words: it is passed on as it is."""
    spec: Raw = {name: value for name, value in pod.pop("spec", {}).items() if value not in (None, [], {})}
    spec.pop("restartPolicy", None)
    if spec.get("dnsPolicy") == "ClusterFirst":
        del spec["dnsPolicy"]
    subdomain = spec.pop("subdomain", None)
    if subdomain and not findings.ours:
        findings.guessed.append(f"subdomain {subdomain}: names come from a Service of the job's own name")
    rest = {name: value for name, value in container.items() if value not in (None, [], {})}
    for name in ("terminationMessagePath", "terminationMessagePolicy"):
        rest.pop(name, None)
    if rest:
        spec["containers"] = [{"name": "trainer", **rest}, *spec.get("containers", [])]
    if spec:
        findings.queue["podTemplate"] = {"spec": spec}
        listed = ", ".join(name for name in spec if name != "containers") or "fields of the container"
        findings.understood.append(f"podTemplate: {listed}")
