"""A small operator as a process of its own: for each ConfigMap labelled `job`, a child; and a beat while it leads.

    python operator_process.py KUBECONFIG NAMESPACE IDENTITY

Ends with 0 when told to (SIGTERM), with 3 when it lost its lease.
"""

import asyncio
import signal
import sys
from pathlib import Path

from orchestra.kube.client import Client
from orchestra.kube.config import load_kubeconfig
from orchestra.kube.controller import Result
from orchestra.kube.lease import Elector, LeadershipLost, LeaseOptions
from orchestra.kube.manager import Manager, ManagerOptions
from orchestra.kube.objects import CONFIG_MAPS, Key, Metadata, MetadataOnly, Slim
from orchestra.kube.writes import Child, create_child

OPTIONS = LeaseOptions(duration=5.0, renew=4.0, retry=0.4)


class Job(Slim, frozen=True):
    """All it needs to know."""

    metadata: Metadata


async def main(kubeconfig: Path, namespace: str, identity: str) -> int:
    """Run until stopped or deposed."""
    stop = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stop.set)
    async with Client(load_kubeconfig(kubeconfig), manager=identity) as client:
        lease = Elector(client, Key(namespace, "operator"), identity, options=OPTIONS)
        manager = Manager(client, lease=lease, options=ManagerOptions(namespaces=(namespace,)))
        jobs = manager.cache(CONFIG_MAPS, Job, labels="job")
        beats = 0

        async def reconcile(key: Key) -> None:
            job = jobs.get(key)
            if job is not None:
                await create_child(client, _child(job.metadata, identity), owner_uid=job.metadata.uid)

        async def beat(_: str) -> Result:
            nonlocal beats
            beats += 1
            body = {"data": {"count": str(beats)}}
            await client.patch(CONFIG_MAPS, Key(namespace, f"beat-{identity}"), body, MetadataOnly)
            return Result(requeue_after=0.02)

        controller = manager.controller("job", reconcile)
        controller.watch(jobs, lambda job: [job.metadata.key])
        manager.controller("beat", beat).queue.add("beat")
        try:
            await manager.run(stop)
        except LeadershipLost as error:
            print(error, flush=True)
            return 3
    return 0


def _child(owner: Metadata, identity: str) -> Child:
    reference = {"apiVersion": "v1", "kind": "ConfigMap", "name": owner.name, "uid": owner.uid, "controller": True}
    metadata = {"name": f"{owner.name}-child", "ownerReferences": [reference]}
    body = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata, "data": {"by": identity}}
    return Child(CONFIG_MAPS, Key(owner.namespace, f"{owner.name}-child"), body)


if __name__ == "__main__":
    sys.exit(asyncio.run(main(Path(sys.argv[1]), sys.argv[2], sys.argv[3])))
