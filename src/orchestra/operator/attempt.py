"""The objects of one attempt, from the plan. Pure."""

from __future__ import annotations

import msgspec

from orchestra.api.job import TorchrunJob, Workers
from orchestra.api.queue import TorchrunQueue
from orchestra.api.template import Distributed
from orchestra.kube.objects import CONFIG_MAPS, PODS, SERVICES, VOLUME_CLAIMS, Key, Metadata
from orchestra.kube.writes import Child
from orchestra.operator import elastic, filling, gangs, names, objects, pods
from orchestra.operator.kinds import NETWORK_POLICIES
from orchestra.operator.moving import own_workspace
from orchestra.operator.pods import USUAL, PodOptions
from orchestra.plan import Plan, Where, plan, restart, status
from orchestra.plan.where import ETCD_PORT

ETCD = "etcd-v2"


def plan_attempt(
    queue: TorchrunQueue, job: TorchrunJob, uid: str, attempt: int, etcd_endpoint: str | None = None
) -> Plan:
    """The plan of one attempt, with the names of its pods. Raises `Invalid`.

    `etcd_endpoint`: for jobs that meet by `etcd-v2`, where neither they nor their queue name one.
    """
    sized = plan(queue, job)
    if etcd_endpoint and sized.rendezvous.backend == ETCD and sized.rendezvous.own_store:
        met = msgspec.structs.replace(queue.spec.distributed or Distributed(), rdzv_endpoint=etcd_endpoint)
        queue = msgspec.structs.replace(queue, spec=msgspec.structs.replace(queue.spec, distributed=met))
        sized = plan(queue, job)
    name, port = job.metadata.name, _port(sized)
    created = (status.status_of(job).workers or Workers()).created if sized.elastic else 0
    count = max(elastic.wanted(sized), created)
    hosts = [names.host(names.worker(name, index, attempt), name) for index in range(count)]
    own = names.host(names.store(name, attempt), name)
    store = f"{own}:{_store_port(sized)}" if has_store(sized) else f"{hosts[0]}:{port}"
    where = Where(
        run_id=f"{uid}-{attempt}",
        store=store,
        hosts=hosts,
        port=port,
        store_on_first_node=not has_store(sized),
        restarts_left=elastic.ROUNDS if sized.elastic else restarts_left(sized, job),
    )
    return plan(queue, job, where)


def restarts_left(sized: Plan, job: TorchrunJob) -> int:
    """What the budget still allows in place."""
    used = status.status_of(job).budget
    spent = restart.Budget(used.spent, used.free_retries) if used else restart.Budget()
    return restart.restarts_left(sized.lifecycle, spent)


def has_store(made: Plan) -> bool:
    """Whether the attempt has a rendezvous store of its own. One node needs none: its loss is the attempt's."""
    return made.rendezvous.own_store and (made.max_nodes > 1 or made.rendezvous.backend == ETCD)


def _port(made: Plan) -> int:
    return int(made.nodes[0].env["MASTER_PORT"])


def _store_port(made: Plan) -> int:
    return ETCD_PORT if made.rendezvous.backend == ETCD else _port(made)


def shared_children(made: Plan, job: Metadata, attempt: int) -> list[Child]:
    """What must be there before any pod: the Service, the policy, the claims, the gang."""
    owner = names.owner(job)
    here = job.namespace
    children = [
        Child(SERVICES, Key(here, made.job), objects.service(made, owner)),
        Child(NETWORK_POLICIES, Key(here, made.job), objects.network_policy(made, owner)),
    ]
    children += [
        Child(VOLUME_CLAIMS, Key(here, volume.claim), objects.claim(made, volume, owner))
        for volume in made.volumes
        if not volume.exists and not volume.on_each_node
        if not (volume.purpose == "workspace" and own_workspace(made))
    ]
    return [*children, *gangs.group_children(made, job, attempt)]


def filling_children(made: Plan, job: Metadata, options: PodOptions) -> list[Child]:
    """The claim of a workspace that all workers share, and the pod that fills it."""
    owner, here = names.owner(job), job.namespace
    claims = [
        Child(VOLUME_CLAIMS, Key(here, volume.claim), objects.claim(made, volume, owner))
        for volume in made.volumes
        if volume.purpose == "workspace"
    ]
    body = pods.filling_pod(made, job.uid, owner, options)
    return [*claims, Child(PODS, Key(here, filling.name(made.job)), body)]


def agent_child(namespace: str) -> Child:
    """The agent's ConfigMap, which belongs to no job."""
    return Child(CONFIG_MAPS, Key(namespace, names.agent_config_map()), objects.agent_config_map())


def pod_children(
    made: Plan, job: Metadata, attempt: int, *, further: tuple[int, ...] = (), options: PodOptions = USUAL
) -> list[Child]:
    """The pods, the rendezvous store first: it starts while the others are being placed.

    `further`: only these workers, which replace lost ones of an elastic attempt.
    """
    owner = names.owner(job)
    children = []
    if has_store(made) and not further:
        body = pods.store_pod(made, attempt, _store_port(made), owner, options)
        children.append(Child(PODS, Key(job.namespace, names.store(made.job, attempt)), body))
    for index in further or range(elastic.wanted(made)):
        body = pods.worker_pod(made, index, attempt, job.uid, owner, options)
        body = gangs.joined(body, made, job, attempt, index)
        children.append(Child(PODS, Key(job.namespace, names.worker(made.job, index, attempt)), body))
    return children
