"""`python -m orchestra.operator`: one process of the operator."""

from __future__ import annotations

import argparse
import asyncio
import logging
import os
import signal
import socket
import sys
from pathlib import Path

from orchestra.kube.client import Client
from orchestra.kube.config import find_access, load_kubeconfig
from orchestra.kube.controller import changed_by_others
from orchestra.kube.events import EventRecorder
from orchestra.kube.lease import Elector
from orchestra.kube.manager import Manager, ManagerOptions
from orchestra.kube.metrics import Metrics
from orchestra.kube.objects import NODES, PODS, Key, by_namespace
from orchestra.operator.claims import StorageClass
from orchestra.operator.etcd import Etcd
from orchestra.operator.jobs import JobController
from orchestra.operator.kinds import JOB_LABEL, JOBS, QUEUES, JobObject, NodeObject, PodObject, QueueObject
from orchestra.operator.life_signs import NodeWatch
from orchestra.operator.moving import WORKSPACE_URL
from orchestra.operator.options import add_arguments
from orchestra.operator.progress import ProgressBoard, addresses
from orchestra.operator.queueing.controller import QueueController
from orchestra.operator.queueing.kai_queues import KaiQueues
from orchestra.operator.queueing.kinds import (
    KAI_QUEUES,
    PRIORITY_CLASSES,
    STORAGE_CLASSES,
    Classes,
    KaiQueue,
    PriorityClass,
)
from orchestra.operator.queueing.lines import Lines
from orchestra.operator.queueing.lookup import QueueLookup
from orchestra.operator.quotas import EXCEEDED, RESOURCE_QUOTAS, QuotaObject, has_more_room
from orchestra.operator.rights import lost_without_cluster_rights
from orchestra.operator.silences import WorkerLogs

_log = logging.getLogger(__name__)


async def run(args: argparse.Namespace) -> None:
    """Until told to stop."""
    identity = f"{socket.gethostname()}-{os.getpid()}"
    access = load_kubeconfig(Path(args.kubeconfig)) if args.kubeconfig else find_access()
    metrics = Metrics()
    client = Client(access, manager="orchestra-operator", metrics=metrics)
    try:
        lease_key = Key(args.lease_namespace, "orchestra-operator")
        lease = Elector(client, lease_key, identity) if args.lease_namespace else None
        manager = Manager(client, metrics=metrics, lease=lease, options=_options(args))
        jobs = manager.cache(JOBS, JobObject)
        queues = manager.cache(QUEUES, QueueObject, also=args.shared_queues_namespace)
        pods = manager.cache(PODS, PodObject, labels=JOB_LABEL)
        nodes = manager.cache(NODES, NodeObject, optional=True)  # a Role alone cannot let us see nodes
        watch = NodeWatch(nodes, pods, lambda: manager.served(NODES))
        quotas = manager.cache(RESOURCE_QUOTAS, QuotaObject)
        events = EventRecorder(client, controller="torchrun.ai/operator", instance=identity)
        by_uid, by_home = jobs.index(lambda job: (job.metadata.uid,)), jobs.index(by_namespace)

        def targets() -> dict[str, list[str]]:
            return addresses(pod for pod in pods if pod.is_worker and pod.status.phase == "Running")

        def news(uid: str) -> None:
            for job in by_uid.get(uid):
                controller.queue.add(job.metadata.key)

        board = ProgressBoard(targets, news, every=args.progress_seconds, read_log=WorkerLogs(client, pods).tail)
        lookup = QueueLookup(jobs, queues, args.shared_queues_namespace)
        classes = _classes(manager)
        lines = Lines(lookup, jobs, pods, wake=lambda key: controller.queue.add(key), priority=classes.priority)
        if classes.priorities is not None:
            classes.priorities.listen(lambda _change: lines.priorities_changed())
        etcd = Etcd(args.etcd_endpoint or None, args.etcd_image)
        reconciler = JobController(
            client,
            jobs,
            lookup,
            lines,
            pods,
            events,
            board,
            nodes=watch,
            quotas=quotas,
            etcd=etcd,
            moved_by=(args.image, args.workspace_url or WORKSPACE_URL),
            classes=classes.storage,
        )
        controller = manager.controller("torchrunjob", reconciler.reconcile, workers=args.workers)
        controller.watch(jobs, lambda job: [job.metadata.key], worth=changed_by_others)
        controller.watch(pods, lambda pod: [job.metadata.key for job in by_uid.get(pod.metadata.controller_uid)])
        controller.watch(queues, lambda queue: lookup.may_mean(queue.metadata), worth=changed_by_others)
        controller.watch(
            nodes,
            lambda node: [job.metadata.key for uid in watch.jobs_on(node) for job in by_uid.get(uid)],
            worth=lambda old, new: old.ready != new.ready,
        )
        controller.watch(
            quotas,
            lambda quota: [job.metadata.key for job in by_home.get(quota.metadata.namespace) if _waits_for_quota(job)],
            worth=has_more_room,
        )
        manager.background(watch.run)
        kai = None if manager.options.namespaces else manager.cache(KAI_QUEUES, KaiQueue, optional=True)
        kai_queues = KaiQueues(client, kai, lookup, jobs, made_from=args.kai_queues_from)
        keeper = QueueController(client, lookup, classes, kai_queues, events, namespaces=manager.options.namespaces)
        keeper.watch(manager.controller("torchrunqueue", keeper.reconcile, workers=4), jobs, kai)
        manager.background(events.run, at_end=events.flush)
        manager.background(board.run)
        stop = asyncio.Event()
        for number in (signal.SIGTERM, signal.SIGINT):
            asyncio.get_running_loop().add_signal_handler(number, stop.set)
        await manager.run(stop)
    finally:
        await client.close()


def _classes(manager: Manager) -> Classes:
    """What of the whole cluster is read; nothing where the operator has Roles only."""
    if manager.options.namespaces:
        return Classes(None, None)
    return Classes(manager.cache(PRIORITY_CLASSES, PriorityClass), manager.cache(STORAGE_CLASSES, StorageClass))


def _waits_for_quota(job: JobObject) -> bool:
    return EXCEEDED.encode() in bytes(job.status)


def _options(args: argparse.Namespace) -> ManagerOptions:
    host, _, port = args.health.rpartition(":")
    namespaces = tuple(name for name in args.namespaces.split(",") if name)
    return ManagerOptions(namespaces=namespaces, health=(host or "0.0.0.0", int(port)) if port else None)  # noqa: S104


def serve(args: argparse.Namespace) -> int:
    """The process, told what to do."""
    level = logging.DEBUG if args.verbose else logging.INFO
    logging.basicConfig(level=level, format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    if args.namespaces:
        for lost in lost_without_cluster_rights():
            _log.warning("only %s: %s", args.namespaces, lost)
    asyncio.run(run(args))
    return 0


def main() -> int:
    """The command line without the rest of the CLI."""
    parser = argparse.ArgumentParser(prog="orchestra-operator", description=__doc__)
    add_arguments(parser)
    return serve(parser.parse_args())


if __name__ == "__main__":
    sys.exit(main())
