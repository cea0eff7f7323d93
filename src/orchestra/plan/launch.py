"""The launch line and the environment of each node."""

from __future__ import annotations

from dataclasses import dataclass

from orchestra.api.template import Template
from orchestra.plan.command import Command
from orchestra.plan.model import NodePlan, Rendezvous
from orchestra.plan.size import Size
from orchestra.plan.where import Where

# torchrun's own limits assume that all nodes start within a minute or so; pods that pull images do not.
_JOIN_TIMEOUT = 1800
_READ_TIMEOUT = 300
_LAST_CALL = 10  # how long an elastic job that could start waits for more nodes; those that come later join it


@dataclass(frozen=True)
class Launch:
    """All that launch lines are made from."""

    command: Command
    size: Size
    nnodes: str
    """A number, or a range such as `1:4`."""
    rendezvous: Rendezvous
    template: Template
    where: Where
    job_env: dict[str, str]

    def nodes(self) -> list[NodePlan]:
        """What each node runs, and with which environment."""
        return [self._node(index) for index in range(len(self.where.hosts))]

    def files(self) -> dict[str, str]:
        """The files that the launch line names: deepspeed's list of hosts."""
        if not self._needs_hostfile:
            return {}
        lines = [f"{host} slots={self.size.procs_per_node}" for host in self.where.hosts]
        return {self._hostfile: "\n".join(lines) + "\n"}

    def _node(self, index: int) -> NodePlan:
        command, options = self.command, self.command.options
        ours = self._missing_options(index)
        return NodePlan(
            index=index,
            argv=[*command.executable, *ours, *options.words, *options.program],
            launcher=[*command.executable, *ours, *options.launcher_words],
            env=self._env(index),
        )

    def _missing_options(self, index: int) -> list[str]:
        """The launcher's options that the user did not give."""
        given = self.command.options.given
        if self.command.launcher == "none":
            return []
        if self.command.launcher == "deepspeed":
            ours = self._deepspeed_options(index)
        else:
            ours = self._torchrun_options(index)
            if "standalone" in given:  # it brings a rendezvous of its own
                ours = {name: ours[name] for name in ("nproc-per-node", "max-restarts")}
        return [
            f"--{name}={value}" if value else f"--{name}"
            for name, value in ours.items()
            if name.replace("_", "-") not in given
        ]

    def _torchrun_options(self, index: int) -> dict[str, str]:
        rendezvous, where = self.rendezvous, self.where
        options = {"nnodes": self.nnodes, "nproc-per-node": str(self.size.procs_per_node)}
        restarts = str(_restarts(self.template, where))
        if rendezvous.backend == "static":
            return options | {
                "rdzv-backend": "static",
                "node-rank": str(index),
                "master-addr": where.hosts[0],
                "master-port": str(where.port),
                "max-restarts": restarts,
            }
        options |= {
            "rdzv-backend": rendezvous.backend,
            "rdzv-endpoint": rendezvous.store,
            "rdzv-id": where.run_id,
            "max-restarts": restarts,
            "local-addr": where.hosts[index],
        }
        conf = rendezvous_conf(rendezvous, where, index)
        return options | {"rdzv-conf": conf} if conf else options

    def _deepspeed_options(self, index: int) -> dict[str, str]:
        where = self.where
        if not self._needs_hostfile:
            asked = {"num-gpus", "num-accelerators", "include", "hostfile"} & set(self.command.options.given)
            options = {} if asked else {"num_gpus": str(self.size.procs_per_node)}
            return options | {"master_port": str(where.port)}
        return {
            "hostfile": self._hostfile,
            "no_ssh": "",
            "node_rank": str(index),
            "master_addr": where.hosts[0],
            "master_port": str(where.port),
        }

    @property
    def _needs_hostfile(self) -> bool:
        given = self.command.options.given
        return self.command.launcher == "deepspeed" and self.size.nodes > 1 and "hostfile" not in given

    @property
    def _hostfile(self) -> str:
        return f"{self.where.folder}/hostfile"

    def _env(self, index: int) -> dict[str, str]:
        size, where = self.size, self.where
        fixed = {
            "MASTER_ADDR": where.hosts[0],
            "MASTER_PORT": str(where.port),
            "NNODES": str(size.nodes),
            "NODE_RANK": str(index),
            "NPROC_PER_NODE": str(size.procs_per_node),
        }
        if self.command.launcher == "none" and size.procs_per_node == 1:
            # One process a node and nobody to number them: what `init_method="env://"` expects.
            fixed |= {"RANK": str(index), "WORLD_SIZE": str(size.nodes), "LOCAL_RANK": "0"}
        # A script that calls torchrun itself finds every option here; its own flags win over these.
        for name, value in self._torchrun_options(index).items():
            fixed[f"PET_{name.replace('-', '_').upper()}"] = value
        return _overridable(size, self.template, self.rendezvous) | self.job_env | self.command.env | fixed


def rendezvous_conf(rendezvous: Rendezvous, where: Where, index: int) -> str:
    """Settings of the rendezvous; measured to be needed, see docs/adr."""
    if rendezvous.backend != "c10d":
        return ""
    # torchrun would infer this from DNS, which fails before the records exist. Only a foreign store keeps its guess.
    is_host = f"is_host={int(where.store_on_first_node and index == 0)}," if rendezvous.own_store else ""
    timeouts = f"join_timeout={_JOIN_TIMEOUT},read_timeout={_READ_TIMEOUT},last_call_timeout={_LAST_CALL}"
    return f"{is_host}{timeouts},keep_alive_interval=1,keep_alive_max_attempt=3"


def _restarts(template: Template, where: Where) -> int:
    lifecycle = template.lifecycle
    if lifecycle is None or lifecycle.restart_policy == "Never":
        return 0
    return where.restarts_left if where.restarts_left is not None else lifecycle.max_restarts or 0


def _overridable(size: Size, template: Template, rendezvous: Rendezvous) -> dict[str, str]:
    """Good values that a user's own env may replace."""
    lifecycle, network, resources = template.lifecycle, template.network, template.node_resources
    env = {
        # Without this, workers that restart read the addresses of the round before.
        "TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1",
        "PYTHONUNBUFFERED": "1",
        "ORCHESTRA_BACKEND": rendezvous.collective,
    }
    if rendezvous.collective == "nccl":
        env["TORCH_NCCL_ASYNC_ERROR_HANDLING"] = "1"
    if lifecycle and lifecycle.grace_period_seconds is not None:
        env["TORCH_ELASTIC_SHUTDOWN_TIMEOUT"] = str(lifecycle.grace_period_seconds)
    if network and network.interface:
        env |= {"NCCL_SOCKET_IFNAME": network.interface, "GLOO_SOCKET_IFNAME": network.interface}
    if resources and resources.cpus is not None:
        cores = int(resources.cpus.value * size.share // 1)
        env["OMP_NUM_THREADS"] = str(max(1, cores // size.procs_per_node))
    return env


RESERVED_ENV = frozenset({"MASTER_ADDR", "MASTER_PORT", "NNODES", "NODE_RANK", "NPROC_PER_NODE"})
"""Variables that are ours: a job's own value for them would take its nodes apart."""
