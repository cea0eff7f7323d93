"""Which program schedules: Kubernetes' own, or real gang schedulers.

The coscheduling plugin is built on request (minutes, once) and then takes the default scheduler's place. KAI runs
beside it, where `ORCHESTRA_KAI_ASSETS` names a folder with its `scheduler`, its `binder` and `crds/`.
"""

import os
from pathlib import Path
from typing import Literal

import msgspec

from testbed import control_plane_options as command_lines
from testbed.control_plane import ControlPlane
from testbed.ports import free_port
from testbed.programs import has_program_from_folder, program_from_folder, programs
from testbed.rights import grant_user

Kind = Literal["default", "coscheduling"]

KAI_ASSETS = "ORCHESTRA_KAI_ASSETS"
BUILD_COSCHEDULING = "ORCHESTRA_TEST_COSCHEDULING"

_SCHEDULER = "kube-scheduler"
_COSCHEDULING = "coscheduling-scheduler"
_COSCHEDULING_MODULE = Path(__file__).resolve().parent / "go" / "scheduler-plugins"
_COSCHEDULING_CONFIG = """\
apiVersion: kubescheduler.config.k8s.io/v1
kind: KubeSchedulerConfiguration
leaderElection: {leaderElect: false}
clientConnection: {kubeconfig: "{kubeconfig}", qps: 1000, burst: 1000}
profiles:
- schedulerName: default-scheduler
  plugins:
    multiPoint:
      enabled: [{name: Coscheduling}]
      disabled: [{name: PrioritySort}]
"""


class KaiError(Exception):
    """KAI cannot be run; the text says what is missing."""


def use(plane: ControlPlane, kind: Kind) -> None:
    """Let this program schedule from now on, in place of the one that does."""
    program = coscheduling_program() if kind == "coscheduling" else programs(_SCHEDULER)[_SCHEDULER]
    config = None
    if kind == "coscheduling":
        _allow_pod_groups(plane)
        config = _COSCHEDULING_CONFIG.replace("{kubeconfig}", str(plane.folder / f"{_SCHEDULER}.kubeconfig"))
        (plane.folder / "scheduler.yaml").write_text(config)
    options = msgspec.structs.replace(plane.options, scheduler_config=config)
    plane.scheduler.kill9()
    command = command_lines.scheduler_command(program, plane.folder, options)
    plane.processes.start(_SCHEDULER, command, die_with_parent=options.die_with_parent, cwd=plane.folder)


def coscheduling_program() -> Path:
    """kube-scheduler with the coscheduling plugin; built by the first call ever, which takes minutes."""
    return program_from_folder(_COSCHEDULING, _COSCHEDULING_MODULE)


def may_use_coscheduling() -> bool:
    """Whether tests may use it: it is built already, or somebody asked for the minutes that takes."""
    asked = os.environ.get(BUILD_COSCHEDULING, "") in ("1", "true")
    return asked or has_program_from_folder(_COSCHEDULING, _COSCHEDULING_MODULE)


def start_kai(plane: ControlPlane) -> None:
    """Run KAI's scheduler and binder on this control plane, and install its kinds."""
    assets = kai_assets()
    plane.install_crds(assets / "crds")
    environment = {"KUBECONFIG": str(plane.admin_kubeconfig)}
    scheduler: list[str | Path] = [
        assets / "scheduler",
        "--leader-elect=false",
        "--schedule-period=500ms",
        f"--listen-address=127.0.0.1:{free_port()}",
        f"--plugin-server-port={free_port()}",
    ]
    binder: list[str | Path] = [
        assets / "binder",
        "--leader-elect=false",
        "--metrics-bind-address=0",
        "--health-probe-bind-address=0",
    ]
    for name, command in (("kai-scheduler", scheduler), ("kai-binder", binder)):
        plane.processes.start(
            name, command, die_with_parent=plane.options.die_with_parent, cwd=plane.folder, env=environment
        )


def stop_kai(plane: ControlPlane) -> None:
    """End KAI's processes; its kinds and their objects stay."""
    for name in ("kai-scheduler", "kai-binder"):
        plane.processes.forget(name)


def kai_assets() -> Path:
    """The folder with KAI's programs; KaiError, in one line, when there is none or it is not whole."""
    folder = os.environ.get(KAI_ASSETS)
    if not folder:
        raise KaiError(f"{KAI_ASSETS} is not set: it names a folder with KAI's scheduler, binder and crds/")
    missing = [name for name in ("scheduler", "binder", "crds") if not Path(folder, name).exists()]
    if missing:
        raise KaiError(f"{KAI_ASSETS}={folder} lacks {', '.join(missing)}")
    return Path(folder)


def _allow_pod_groups(plane: ControlPlane) -> None:
    plane.install_crds(_COSCHEDULING_MODULE / "podgroups.yaml")
    everything = ["get", "list", "watch", "create", "delete", "update", "patch"]
    kinds = ["podgroups", "podgroups/status", "elasticquotas", "elasticquotas/status"]
    rules = [{"apiGroups": ["scheduling.x-k8s.io"], "resources": kinds, "verbs": everything}]
    grant_user(plane.admin, "system:kube-scheduler", rules, role="testbed:pod-groups")
