"""`plan(queue, job)`: every decision about a run that a user can see, made once, here. Pure."""

from __future__ import annotations

from orchestra.api.job import TorchrunJob, TorchrunJobSpec
from orchestra.api.problem import Invalid, Problem
from orchestra.api.quantity import Quantity
from orchestra.api.queue import TorchrunQueue, TorchrunQueueSpec
from orchestra.api.template import Distributed, Lifecycle, Scheduling, Storage, Template
from orchestra.plan import launch
from orchestra.plan.allowed import refused_overrides
from orchestra.plan.command import Command, understand
from orchestra.plan.launch import RESERVED_ENV
from orchestra.plan.merge import effective_template
from orchestra.plan.model import Gang, Launch, Plan, Rendezvous, Resources, SyncPlan
from orchestra.plan.pod_template import pod_template_problems
from orchestra.plan.size import Size, size_of
from orchestra.plan.volumes import mount_problems, plan_code, plan_volumes
from orchestra.plan.where import Where, as_named

KAI_SCHEDULER = "kai-scheduler"


def plan(queue: TorchrunQueue, job: TorchrunJob, where: Where | None = None) -> Plan:
    """The plan of one attempt. Raises `Invalid` with every reason why there is none."""
    spec = job.spec
    problems = refused_overrides(queue.metadata.name, queue.spec, spec)
    template = effective_template(queue.spec, spec)
    command = understand(spec.command, spec.launcher)
    if isinstance(command, Problem):
        problems.append(command)
    asked = command.procs if isinstance(command, Command) else None
    size = size_of(spec, queue.metadata.name, _node_gpus(template), asked)
    if isinstance(size, list):
        problems += size
    if isinstance(command, Problem) or isinstance(size, list):
        raise Invalid(problems)
    least, most = _range(spec, size)
    problems += _elastic_problems(spec, template, command, size, least, most)
    problems += _command_size_problems(command, size, least, most)
    volumes, volume_problems = plan_volumes(job.metadata.name, template, size, most)
    problems += volume_problems + mount_problems(spec, template, volumes)
    problems += pod_template_problems(template.pod_template)
    if problems:
        raise Invalid(problems)

    distributed = template.distributed or Distributed()
    if where is None:
        where = as_named(job.metadata.name, size.nodes, distributed.port or 29500, _backend(command, distributed))
    rendezvous = _rendezvous(command, distributed, size, where)
    literal_env = {one.name: one.value or "" for one in template.env if one.value_from is None}
    code = plan_code(spec, template)
    nnodes = str(size.nodes) if least == most else f"{least}:{most}"
    lines = launch.Launch(command, size, nnodes, rendezvous, template, where, literal_env)
    return Plan(
        job=job.metadata.name,
        namespace=job.metadata.namespace,
        queue=queue.metadata.name,
        node_count=size.nodes,
        min_nodes=least,
        max_nodes=most,
        procs_per_node=size.procs_per_node,
        gpus_per_node=size.gpus_per_node,
        world_size=size.nodes * size.procs_per_node,
        launch=Launch(
            launcher=command.launcher,
            program=command.program,
            setup=_setup(spec),
            working_dir=template.working_dir or (code.mount_path if code else None),
            environment=spec.environment,
            files=lines.files(),
        ),
        nodes=lines.nodes(),
        env_references=[one for one in template.env if one.value_from is not None],
        env_from=template.env_from,
        secrets=spec.secrets,
        resources=_resources(template, size),
        rendezvous=rendezvous,
        volumes=volumes,
        extra_volumes=spec.volumes,
        extra_mounts=spec.volume_mounts,
        code=code,
        sync=_sync(spec),
        gang=_gang(queue.spec, template, least),
        lifecycle=template.lifecycle or Lifecycle(),
        template=template,
        suspended=spec.suspend,
        labels=spec.labels,
        annotations=spec.annotations,
        notes=[*_size_notes(spec, template, size), *command.notes, *_env_notes(template, command)],
    )


def needs_of(queue: TorchrunQueue, job: TorchrunJob) -> tuple[int, Resources, str | None] | None:
    """How many nodes a job may use, what each of them gets, and its priority class; None where it has no size.

    A small part of the plan, for whoever looks at thousands of jobs at a time.
    """
    template = effective_template(queue.spec, job.spec)
    command = understand(job.spec.command, job.spec.launcher)
    asked = command.procs if isinstance(command, Command) else None
    size = size_of(job.spec, queue.metadata.name, _node_gpus(template), asked)
    if isinstance(size, list):
        return None
    scheduling = template.scheduling
    _, most = _range(job.spec, size)
    return max(size.nodes, most), _resources(template, size), scheduling.priority_class_name if scheduling else None


def _backend(command: Command, distributed: Distributed) -> str:
    """The rendezvous that the command's own flags imply, else the template's."""
    given = command.options.given if command.launcher == "torchrun" else {}
    if given.get("rdzv-backend"):
        return str(given["rdzv-backend"])
    if "master-addr" in given and "rdzv-endpoint" not in given:
        return "static"
    return distributed.rdzv_backend or "c10d"


def _rendezvous(command: Command, distributed: Distributed, size: Size, where: Where) -> Rendezvous:
    backend = _backend(command, distributed)
    endpoint = command.options.given.get("rdzv-endpoint") or distributed.rdzv_endpoint
    brings_its_own = "standalone" in command.options.given or command.launcher == "deepspeed" or backend == "static"
    return Rendezvous(
        backend=backend,
        collective=distributed.backend or ("nccl" if size.gpus_per_node else "gloo"),
        store=endpoint or where.store,
        own_store=endpoint is None and not brings_its_own,
    )


def _node_gpus(template: Template) -> int:
    return template.node_resources.gpus or 0 if template.node_resources else 0


def _range(spec: TorchrunJobSpec, size: Size) -> tuple[int, int]:
    if spec.elastic is None:
        return size.nodes, size.nodes
    return spec.elastic.min_nodes, spec.elastic.max_nodes or max(size.nodes, spec.elastic.min_nodes)


def _elastic_problems(
    spec: TorchrunJobSpec, template: Template, command: Command, size: Size, least: int, most: int
) -> list[Problem]:
    if spec.elastic is None:
        return []
    problems = []
    if not least <= size.nodes <= most:
        reason = f"the job has {size.nodes} nodes, outside its elastic range {least} to {most}"
        problems.append(Problem("spec.elastic", reason, "minNodes <= nodes <= maxNodes"))
    if command.launcher != "torchrun":
        what = "deepspeed" if command.launcher == "deepspeed" else "a plain command"
        reason = f"{what} cannot change its number of nodes"
        problems.append(Problem("spec.elastic", reason, "launch with torchrun or remove elastic"))
    if template.distributed and template.distributed.rdzv_backend == "static":
        reason = "a static rendezvous cannot grow or shrink"
        problems.append(Problem("spec.elastic", reason, "set distributed.rdzvBackend: c10d"))
    return problems


def _command_size_problems(command: Command, size: Size, least: int, most: int) -> list[Problem]:
    """The command's own flags must not say another number of nodes than the job."""
    given = command.options.given
    problems = []
    if "standalone" in given and most > 1:
        problems.append(
            Problem("spec.command", f"--standalone is one node, the job has {size.nodes}", "remove --standalone")
        )
    if "node-rank" in given and most > 1:
        reason = f"--node-rank={given['node-rank']} would be the same on every node"
        problems.append(Problem("spec.command", reason, "remove it: it is filled in"))
    flag = "nnodes" if command.launcher == "torchrun" else "num-nodes"
    value = given.get(flag)
    right = {str(size.nodes)} if least == most else set()
    right |= {f"{least}:{most}"}
    if value is not None and value not in right:
        reason = f"--{flag}={value} in the command, but the job has {' or '.join(sorted(right))} nodes"
        problems.append(Problem("spec.command", reason, f"remove --{flag}: it is filled in"))
    return problems


def _setup(spec: TorchrunJobSpec) -> list[str]:
    """A line is a shell's, as in every other set-up step people write; a list is run as it is."""
    if spec.setup_command is None:
        return []
    if isinstance(spec.setup_command, str):
        return ["/bin/sh", "-ec", spec.setup_command]
    return list(spec.setup_command)


def _resources(template: Template, size: Size) -> Resources:
    node, storage = template.node_resources, template.storage or Storage()
    shm: Quantity | None = None
    if storage.shm_size_per_gpu is not None:
        shm = storage.shm_size_per_gpu.bytes_times(size.gpus_per_node or size.procs_per_node)
    return Resources(
        gpus=size.gpus_per_node,
        cpu=node.cpus.millis_times(size.share) if node and node.cpus else None,
        memory=node.memory.bytes_times(size.share) if node and node.memory else None,
        shm=shm,
        gpu_type=node.gpu_type if node else None,
    )


def _sync(spec: TorchrunJobSpec) -> SyncPlan | None:
    if spec.sync is None:
        return None
    return SyncPlan(
        code=spec.sync.code,
        data=spec.sync.data,
        output=spec.sync.output,
        interval=spec.sync.interval or 600,
        secret_name=spec.sync.secret_name,
    )


def _gang(queue: TorchrunQueueSpec, template: Template, least: int) -> Gang:
    scheduling = template.scheduling or Scheduling()
    if queue.kai_queue or scheduling.scheduler == KAI_SCHEDULER:
        return Gang(scheduler="kai", min_member=least, queue=queue.kai_queue)
    if scheduling.gang == "coscheduling":
        return Gang(scheduler="coscheduling", min_member=least)
    return Gang(scheduler="none", min_member=least)


def _size_notes(spec: TorchrunJobSpec, template: Template, size: Size) -> list[str]:
    per_node = _node_gpus(template)
    if spec.num_gpus is None:
        return []
    if size.nodes == 1:
        what = "1 GPU fits" if spec.num_gpus == 1 else f"{spec.num_gpus} GPUs fit"
        return [f"{what} on one node of {per_node}"]
    if size.gpus_per_node == per_node:
        return [f"{spec.num_gpus} GPUs fill {size.nodes} nodes of {per_node}"]
    even = f"{size.nodes} x {size.gpus_per_node}"
    return [f"{spec.num_gpus} GPUs on nodes of {per_node}: {even} is the even split over the fewest nodes"]


def _env_notes(template: Template, command: Command) -> list[str]:
    names = [one.name for one in template.env] + list(command.env)
    ours = [name for name in names if name in RESERVED_ENV or name.startswith("PET_")]
    return [f"{name} is set by Orchestra; your value for it is not used" for name in dict.fromkeys(ours)]
