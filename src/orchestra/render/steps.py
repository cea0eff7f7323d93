"""What a pod does before it trains: fetch code, data and old outputs, make the environment, run the set-up command.

Plain lines of shell, the same for the bare script and for the agent's set-up. Each section begins with a line
`# --- title`, by which `convert` finds it again.
"""

from __future__ import annotations

import shlex
from dataclasses import dataclass

from orchestra.plan.model import Plan
from orchestra.render.site import STATE

ENVIRONMENT = f"{STATE}/env"


@dataclass(frozen=True)
class Folders:
    """Where the synced things lie in a pod, if they are synced at all."""

    code: str | None
    data: str | None
    output: str | None


def folders(plan: Plan) -> Folders:
    """The folder of each URL: the volume of that purpose, else the path that the API promises."""
    mounts = {volume.purpose: volume.mount_path for volume in plan.volumes}
    sync, code = plan.sync, plan.code
    fetched = code is not None and code.source in ("git", "s3")
    code_folder = code.mount_path if code else plan.launch.working_dir or "/app"
    return Folders(
        code=code_folder if fetched or (sync and sync.code) else None,
        data=mounts.get("datasets", "/data") if sync and sync.data else None,
        output=mounts.get("checkpoints", "/out") if sync and sync.output else None,
    )


def can_aws(url: str | None) -> bool:
    """Whether `aws s3 sync` can reach it."""
    return url is not None and url.startswith("s3://")


def preparation(plan: Plan, run: str = "") -> list[str]:
    """All sections in order. `run` is put before commands that take long, so that a stop can interrupt them."""
    where, lines = folders(plan), list[str]()
    sync, code = plan.sync, plan.code
    if where.code and code and code.source == "git":
        lines += _section("code from git", _git(plan, where.code, run))
    elif where.code and code and code.source == "s3" and can_aws(code.url):
        lines += _section("workspace from the object store", [_download(str(code.url), where.code, run)])
    if where.code and sync and can_aws(sync.code):
        lines += _section("code", [_download(str(sync.code), where.code, run)])
    if where.data and sync and can_aws(sync.data) and not _read_only_data(plan):
        lines += _section("data", [_download(str(sync.data), where.data, run)])
    if where.output and sync and can_aws(sync.output):
        fetch = _download(str(sync.output), where.output, run)
        lines += _section("output of earlier runs, to resume from", [f"mkdir -p {where.output}", fetch])
    if plan.launch.working_dir or where.code:
        lines += [f"cd {shlex.quote(plan.launch.working_dir or str(where.code))}"]
    lines += _links(where)
    lines += _environment(plan, run)
    if plan.launch.setup:
        lines += _section("set-up command", [run + shlex.join(plan.launch.setup)])
    return lines


def _links(where: Folders) -> list[str]:
    """`data` and `out` beside fetched code, as in the scripts that people know, unless the code has its own."""
    places = {"data": where.data, "out": where.output} if where.code else {}
    lines = [f"[ -e {name} ] || ln -s {shlex.quote(place)} {name}" for name, place in places.items() if place]
    return _section("data and outputs beside the code", lines) if lines else []


def _section(title: str, lines: list[str]) -> list[str]:
    return [f"# --- {title}", *lines]


def _download(url: str, folder: str, run: str) -> str:
    return f"{run}aws s3 sync --no-progress {shlex.quote(url)} {shlex.quote(folder)}"


def _read_only_data(plan: Plan) -> bool:
    return any(volume.purpose == "datasets" and volume.read_only for volume in plan.volumes)


def _git(plan: Plan, folder: str, run: str) -> list[str]:
    code, place = plan.code, shlex.quote(folder)
    if code is None or code.url is None:
        return []
    clone = f"{run}git clone {shlex.quote(code.url)} {place}"
    checkout = [f"{run}git -C {place} checkout {shlex.quote(code.ref)}"] if code.ref else []
    return [f"[ -d {place}/.git ] || {clone}", *checkout]


def _environment(plan: Plan, run: str) -> list[str]:
    """A venv sees the image's own packages (torch); a conda environment brings everything itself."""
    wanted = plan.launch.environment
    if wanted is None:
        return []
    python = f"{ENVIRONMENT}/bin/python"
    if wanted.manager == "conda":
        make = f"{run}conda create -y -p {ENVIRONMENT} python{'=' + wanted.python if wanted.python else ''}"
    else:
        make = f"{run}python{wanted.python or '3'} -m venv --system-site-packages {ENVIRONMENT}"
    lines = [f"[ -x {python} ] || {make}"]
    if wanted.requirements:
        lines.append(f"{run}{python} -m pip install -r {shlex.quote(wanted.requirements)}")
    if wanted.manager != "conda" and plan.launch.launcher != "none":
        # The image's own torchrun would start the image's own python, which does not see the new packages.
        name = plan.launch.launcher
        module = "torch.distributed.run" if name == "torchrun" else "deepspeed.launcher.runner"
        text = f'#!/bin/sh\\nexec {python} -m {module} "$@"\\n'
        lines.append(f"printf '{text}' > {ENVIRONMENT}/bin/{name} && chmod +x {ENVIRONMENT}/bin/{name}")
    return _section("environment", [*lines, f'PATH={ENVIRONMENT}/bin:"$PATH"', "export PATH"])
