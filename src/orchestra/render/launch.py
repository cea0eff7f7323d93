"""The launch line and environment of the plan, said once for all nodes."""

from __future__ import annotations

from dataclasses import dataclass

from orchestra.api.job import TorchrunJob
from orchestra.plan.command import Command, understand
from orchestra.plan.model import Plan
from orchestra.render.site import Site
from orchestra.render.words import IS_HOST, NNODES, NODE_RANK, Variable, Word

_IS_HOST = "is_host="


@dataclass(frozen=True)
class Launching:
    """What every node runs."""

    argv: list[Word]
    """The whole launch line, for a shell."""
    launcher: list[Word]
    """The launcher with its options, for the agent."""
    options: int
    """How many words of `argv` come before the program."""
    env: dict[str, Word]
    """Variables that Kubernetes can write into the container."""
    late_env: dict[str, Word]
    """Variables that only a program inside the pod can work out."""


def launching(plan: Plan, job: TorchrunJob, site: Site) -> Launching:
    """Takes node 0 of the plan and puts variables where the nodes differ."""
    node = plan.nodes[0]
    command = understand(job.spec.command, job.spec.launcher)
    if not isinstance(command, Command):  # the planner has refused it before
        raise TypeError("a command that cannot be planned")
    start, end = len(command.executable), len(node.launcher) - len(command.options.launcher_words)
    argv = _with_variables(node.argv, start, end, plan, site)
    early: dict[str, Word] = {}
    late: dict[str, Word] = {}
    for name, value in node.env.items():
        if name.startswith("PET_") and command.launcher != "none":
            continue  # the flags of the launch line say the same; only a script that calls torchrun needs these
        word = _env_word(name, value, plan, site)
        known = all(part in (*site.known, NNODES) for part in word if isinstance(part, Variable))
        (early if known else late)[name] = word
    early.pop("NODE_RANK", None)
    late.pop("NODE_RANK", None)
    return Launching(
        argv=argv,
        launcher=_with_variables(node.launcher, start, end, plan, site),
        options=len(node.argv) - len(command.options.program),
        env=early,
        late_env=late,
    )


def _with_variables(words: list[str], start: int, end: int, plan: Plan, site: Site) -> list[Word]:
    """Only the options that the planner added may be ours to change; the rest is the user's."""
    return [
        _option(word, plan, site) if start <= position < end else (word,)
        for position, word in enumerate(words)
    ]  # fmt: skip


def _option(word: str, plan: Plan, site: Site) -> Word:
    flag, _, value = word.partition("=")
    return (f"{flag}=", *_varying(flag.lstrip("-").replace("_", "-"), value, plan, site)) if value else (word,)


def _env_word(name: str, value: str, plan: Plan, site: Site) -> Word:
    if name in ("NODE_RANK", "RANK") and plan.nodes[0].env.get("NODE_RANK") is not None:
        return (NODE_RANK,) if name == "NODE_RANK" or plan.launch.launcher == "none" else (value,)
    if name == "NNODES" or (name == "WORLD_SIZE" and plan.launch.launcher == "none"):
        return (NNODES,)
    if name.startswith("PET_"):
        return _varying(name.removeprefix("PET_").lower().replace("_", "-"), value, plan, site)
    return (value,)


def _varying(name: str, value: str, plan: Plan, site: Site) -> Word:
    """The value of one of our options: a variable where it depends on the node or may be scaled."""
    if name == "nnodes" and not plan.elastic:
        return (NNODES,)
    if name == "node-rank":
        return (NODE_RANK,)
    if name == "local-addr":
        return site.own_host
    if name == "rdzv-conf" and value.startswith(_IS_HOST):
        return (_IS_HOST, IS_HOST, value[len(_IS_HOST) + 1 :])
    return (value,)
