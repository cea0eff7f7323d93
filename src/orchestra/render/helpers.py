"""Objects beside the workload: the Service that gives names, the store of `etcd-v2`, the gang."""

from __future__ import annotations

from typing import Any

from orchestra.render.draft import Draft
from orchestra.render.labels import COMPONENT, JOB, WORKER
from orchestra.render.model import Manifest
from orchestra.render.site import ETCD_PORT


def groundwork(draft: Draft) -> list[Manifest]:
    """What has to exist before the workload, in every target."""
    return [*draft.programs(), *draft.volumes().claims, *etcd(draft), *pod_group(draft)]


def headless_service(draft: Draft) -> Manifest:
    """One name for each pod, from its first moment on."""
    plan = draft.plan
    return {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": draft.metadata(),
        "spec": {
            "#clusterIP": "Headless: it gives each pod a name of its own and balances nothing.",
            "clusterIP": "None",
            "#publishNotReadyAddresses": "Pods must find each other before they are ready: meeting is how they become"
            " ready.",
            "publishNotReadyAddresses": True,
            "selector": {JOB: plan.job, COMPONENT: WORKER},
            "ports": [{"name": "rdzv", "port": int(plan.nodes[0].env["MASTER_PORT"])}],
        },
    }


def etcd(draft: Draft) -> list[Manifest]:
    """The store that `etcd-v2` needs and nobody named: one etcd, for this job only."""
    plan = draft.plan
    if plan.rendezvous.backend != "etcd-v2" or not plan.rendezvous.own_store:
        return []
    name = f"{plan.job}-rdzv"
    labels = {JOB: plan.job, COMPONENT: "rendezvous"}
    container: dict[str, Any] = {
        "name": "etcd",
        "image": draft.options.etcd_image,
        "command": [
            "etcd",
            "--data-dir=/var/run/etcd",
            f"--listen-client-urls=http://0.0.0.0:{ETCD_PORT}",
            f"--advertise-client-urls=http://{name}:{ETCD_PORT}",
            "--enable-v2=true",
        ],
        "ports": [{"name": "client", "containerPort": ETCD_PORT}],
        "resources": {"requests": {"cpu": "100m", "memory": "128Mi"}, "limits": {"memory": "512Mi"}},
        "volumeMounts": [{"name": "data", "mountPath": "/var/run/etcd"}],
    }
    pod = {
        "automountServiceAccountToken": False,
        "containers": [container],
        "volumes": [{"name": "data", "emptyDir": {}}],
    }
    service = {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": draft.metadata(name),
        "spec": {"selector": labels, "ports": [{"name": "client", "port": ETCD_PORT}]},
    }
    deployment = {
        "#": "torchrun's etcd-v2 speaks etcd's old protocol: versions 3.4 and 3.5 have it, behind --enable-v2.",
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": draft.metadata(name),
        "spec": {
            "replicas": 1,
            "strategy": {"type": "Recreate"},
            "selector": {"matchLabels": labels},
            "template": {"metadata": {"labels": labels}, "spec": pod},
        },
    }
    return [service, deployment]


def pod_group(draft: Draft) -> list[Manifest]:
    """All pods at once or none, where the queue asks for coscheduling. Kubeflow makes its own groups."""
    plan = draft.plan
    if plan.gang.scheduler != "coscheduling" or draft.site.container in ("node", "pytorch"):
        return []
    spec: dict[str, Any] = {"minMember": plan.gang.min_member}
    if plan.lifecycle.gang_timeout_seconds is not None:
        spec["scheduleTimeoutSeconds"] = plan.lifecycle.gang_timeout_seconds
    return [
        {
            "apiVersion": "scheduling.x-k8s.io/v1alpha1",
            "kind": "PodGroup",
            "metadata": draft.metadata(),
            "spec": spec,
        }
    ]
