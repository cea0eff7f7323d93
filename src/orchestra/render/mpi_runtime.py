"""Target `trainjob` for deepspeed in images with sshd: a launcher that reaches the other pods by Kubeflow's MPI keys.

Only on request: most images have no sshd, and `deepspeed --no_ssh` on each node needs none.
"""

from __future__ import annotations

import dataclasses
from typing import Any

from msgspec import structs

from orchestra.render.draft import Draft
from orchestra.render.site import Site
from orchestra.render.words import NODE_RANK, Word

_HOSTFILE = "/etc/mpi/hostfile"
_NOT_OVER_SSH = ("--no_ssh", "--node_rank=", "--hostfile=")


def wants_mpi(launcher: str, nodes: int, ssh: bool) -> bool:
    """Whether the MPI runtime is asked for and makes sense."""
    return ssh and launcher == "deepspeed" and nodes > 1


def site(job: str, base: Site) -> Site:
    """The launcher is the first node; the others are called `node`."""
    return dataclasses.replace(
        base,
        host_of=lambda index: f"{job}-node-0-{index - 1}.{job}" if index else f"{job}-launcher-0-0.{job}",
        own_host=(f"{job}-launcher-0-", NODE_RANK, f".{job}"),
    )


def over_ssh(draft: Draft) -> Draft:
    """The launch line for the launcher alone: the Trainer writes the list of hosts."""

    def changed(words: list[Word], before: int) -> list[Word]:
        kept = [word for word in words[:before] if not str(word[0]).startswith(_NOT_OVER_SSH)]
        return [*kept, (f"--hostfile={_HOSTFILE}",), ("--launcher=openmpi",), *words[before:]]

    launch, plan = draft.launch, draft.plan
    argv = changed(launch.argv, launch.options)
    line = dataclasses.replace(
        launch,
        argv=argv,
        options=len(argv) - (len(launch.argv) - launch.options),
        launcher=changed(launch.launcher, len(launch.launcher)),
    )
    without_hostfile = structs.replace(plan, launch=structs.replace(plan.launch, files={}))
    return dataclasses.replace(draft, launch=line, plan=without_hostfile)


def policy(draft: Draft) -> dict[str, Any]:
    """The runtime's policy."""
    return {
        "numNodes": draft.plan.node_count,
        "mpi": {
            "numProcPerNode": draft.plan.procs_per_node,
            "mpiImplementation": "OpenMPI",
            "sshAuthMountPath": "/root/.ssh",
            "#runLauncherAsNode": "The launcher trains too: it is the first node.",
            "runLauncherAsNode": True,
        },
    }


def replicated_jobs(node: dict[str, Any]) -> list[dict[str, Any]]:
    """A launcher made from the node's own description, and nodes that only run sshd."""
    spec = node["template"]["spec"]
    alone = {**node["template"], "spec": {**spec, "completions": 1, "parallelism": 1}}
    waits = [{"name": "node", "status": "Ready"}]
    launcher = {"name": "launcher", "dependsOn": waits, "template": alone}
    pod = spec["template"]
    container = {
        name: value
        for name, value in pod["spec"]["containers"][0].items()
        if name.lstrip("#") not in ("livenessProbe", "readinessProbe", "command")
    }
    container = {"name": container.pop("name"), "command": ["/usr/sbin/sshd", "-De"], **container}
    quiet = {name: value for name, value in pod["spec"].items() if name != "initContainers"}
    quiet["containers"] = [container, *pod["spec"]["containers"][1:]]
    others = {"completions": spec["completions"] - 1, "parallelism": spec["parallelism"] - 1}
    nodes = {"name": "node", "template": {"spec": {**spec, **others, "template": {**pod, "spec": quiet}}}}
    return [nodes, launcher]
