"""Kubeflow's own controllers beside a control plane, where somebody brings their programs.

`ORCHESTRA_KUBEFLOW_ASSETS` names a folder with the programs `trainer`, `jobset` and `training-operator`, and with
what `kubectl kustomize` makes of their manifests: `trainer.yaml`, `jobset.yaml`, `training-operator.yaml`. `runtime.yaml`
is Kubeflow's ClusterTrainingRuntime `torch-distributed`. Nothing of theirs is kept here.

They run as processes of this machine, with the rights of their own ServiceAccounts and with their own webhooks, and with
every limit raised, which is kinder to them than what they ship with.
"""

import base64
import contextlib
import os
import re
import shutil
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest
import yaml

from testbed.api import ApiError, Json
from testbed.component import ComponentDiedError
from testbed.control_plane import ControlPlane
from testbed.images import Content, image
from testbed.kubeflow_certificates import operator_certificates
from testbed.ports import free_port
from testbed.programs import programs
from testbed.progress import Progress
from testbed.tiers import Tier, TierUnavailable, register_tier
from testbed.waiting import wait_until

ASSETS = "ORCHESTRA_KUBEFLOW_ASSETS"
INIT_IMAGE = "docker.io/local/waits-for-master:1"

_LEFT_OUT = ("Deployment", "Service", "Secret", "Certificate", "Issuer", "ServiceMonitor", "NetworkPolicy")
_TRAINER_FILES = ("trainer", "jobset", "trainer.yaml", "jobset.yaml", "runtime.yaml")
_OPERATOR_FILES = ("training-operator", "training-operator.yaml")
_JOBSET_CONFIG = """\
apiVersion: config.jobset.x-k8s.io/v1alpha1
kind: Configuration
leaderElection: {{leaderElect: false}}
internalCertManagement: {{enable: false}}
webhook: {{port: {webhook}, host: 127.0.0.1, certDir: {certificates}}}
metrics: {{bindAddress: "127.0.0.1:{metrics}", certDir: {certificates}}}
health: {{healthProbeBindAddress: "127.0.0.1:{health}"}}
clientConnection: {{qps: 1000, burst: 2000}}
"""
_TRAINER_CONFIG = """\
apiVersion: config.trainer.kubeflow.org/v1alpha1
kind: Configuration
health: {{healthProbeBindAddress: "127.0.0.1:{health}", readinessEndpointName: readyz, livenessEndpointName: healthz}}
metrics: {{bindAddress: "127.0.0.1:{metrics}", secureServing: false}}
webhook: {{port: {webhook}, host: 127.0.0.1}}
leaderElection: {{leaderElect: false}}
controller:
  groupKindConcurrency:
    TrainJob.trainer.kubeflow.org: 5
    TrainingRuntime.trainer.kubeflow.org: 1
    ClusterTrainingRuntime.trainer.kubeflow.org: 1
certManagement: {{enable: false}}
clientConnection: {{qps: 1000, burst: 2000}}
"""
_WAITING = "/tmp/k8s-webhook-server/serving-certs/tls.crt"  # a path that the training operator has in its code
_SERVICE = "training-operator.kubeflow.svc"


class KubeflowError(Exception):
    """Kubeflow cannot be run here; the text says what is missing."""


def trainer_assets() -> Path:
    """The folder, with what the Trainer and JobSet need."""
    return _assets(_TRAINER_FILES)


def operator_assets() -> Path:
    """The folder, with what the training operator needs."""
    return _assets(_OPERATOR_FILES)


def _assets(files: tuple[str, ...]) -> Path:
    folder = os.environ.get(ASSETS)
    if not folder:
        raise KubeflowError(f"{ASSETS} is not set: it names a folder with Kubeflow's programs and manifests")
    missing = [name for name in files if not Path(folder, name).exists()]
    if missing:
        raise KubeflowError(f"{ASSETS}={folder} lacks {', '.join(missing)}")
    return Path(folder)


@contextlib.contextmanager
def trainer(plane: ControlPlane) -> Iterator[dict[str, int]]:
    """Kubeflow Trainer (v2) and JobSet; gives their pids by name."""
    folder, work = trainer_assets(), plane.folder / "kubeflow"
    ports = {name: _Ports() for name in ("jobset", "trainer")}
    hooks = [hook for name, used in ports.items() for hook in _install(plane, folder / f"{name}.yaml", used.webhook)]
    certificates = work / "k8s-webhook-server" / "serving-certs"
    certificates.mkdir(parents=True, exist_ok=True)
    for kind in ("crt", "key"):  # the API server's own certificate holds for this machine's loopback
        shutil.copy(plane.folder / "pki" / f"apiserver.{kind}", certificates / f"tls.{kind}")
    for name, text in (("jobset", _JOBSET_CONFIG), ("trainer", _TRAINER_CONFIG)):
        settings = text.format(certificates=certificates, **vars(ports[name]))
        (work / f"{name}.yaml").write_text(settings)
    accounts = {
        "jobset": ("jobset-system", "jobset-controller-manager"),
        "trainer": ("kubeflow-system", "kubeflow-trainer-controller-manager"),
    }
    try:
        for name, account in accounts.items():
            kubeconfig = plane.service_account_kubeconfig(*account, seconds=6 * 3600)
            words: list[str | Path] = [folder / name, f"--config={work / f'{name}.yaml'}", f"--kubeconfig={kubeconfig}"]
            _start(plane, name, words, {"TMPDIR": str(work)})
        for name, used in ports.items():
            _wait_until_ready(plane, name, used.health)
        _apply(plane, yaml.safe_dump_all(hooks))
        runtime = (folder / "runtime.yaml").read_text()
        _patiently(lambda: _apply(plane, runtime))  # its webhook may not be reachable at once
        yield {name: plane.processes.record(name).pid for name in accounts}
    finally:
        _stop(plane, accounts, hooks)


@contextlib.contextmanager
def training_operator(plane: ControlPlane) -> Iterator[int]:
    """The training operator (v1) for PyTorchJobs; gives its pid. Nodes must have `INIT_IMAGE`."""
    folder, work = operator_assets(), plane.folder / "training-operator"
    used = _Ports()
    hooks = _install(plane, folder / "training-operator.yaml", used.webhook, "pytorchjobs.")
    certificates = operator_certificates(_SERVICE, "training-operator-ca")
    serving = work / "k8s-webhook-server" / "serving-certs"
    serving.mkdir(parents=True, exist_ok=True)
    for name in ("tls.crt", "tls.key"):
        (serving / name).write_bytes(certificates[name])
    data = {name: base64.b64encode(content).decode() for name, content in certificates.items()}
    secret = {"apiVersion": "v1", "kind": "Secret", "data": data,
              "metadata": {"name": "training-operator-webhook-cert", "namespace": "kubeflow"}}  # fmt: skip
    _apply(plane, yaml.safe_dump_all([secret, *hooks]))
    # It looks at this path whether it has certificates, and takes them from TMPDIR.
    with contextlib.suppress(FileExistsError):
        Path(_WAITING).parent.mkdir(parents=True, exist_ok=True)
        Path(_WAITING).touch()
    words: list[str | Path] = [
        folder / "training-operator",
        f"--kubeconfig={plane.service_account_kubeconfig('kubeflow', 'training-operator', seconds=6 * 3600)}",
        "--enable-scheme=pytorchjob",
        f"--metrics-bind-address=127.0.0.1:{used.metrics}",
        f"--health-probe-bind-address=127.0.0.1:{used.health}",
        f"--webhook-server-port={used.webhook}",
        f"--pytorch-init-container-image={INIT_IMAGE}",
    ]
    try:
        _start(plane, "training-operator", words, {"TMPDIR": str(work), "MY_POD_NAMESPACE": "kubeflow"})
        _wait_until_ready(plane, "training-operator", used.health)
        yield plane.processes.record("training-operator").pid
    finally:
        _stop(plane, ("training-operator",), hooks)


def init_image() -> bytes:
    """What the training operator puts before each worker runs `nslookup`; here is an image that has it."""
    wanted = ("sh", "seq", "sleep", "getent")
    programs_found = {f"/usr/bin/{name}": Path(str(shutil.which(name))).resolve() for name in wanted}
    files: dict[str, Content] = {
        **programs_found,
        "/etc": None,
        "/tmp": None,
        "/proc": None,
        "/sys": None,
        "/dev": None,
    }
    files["/usr/bin/nslookup"] = '#!/usr/bin/sh\nexec getent ahosts "$1"\n'
    files["/etc/nsswitch.conf"] = "hosts: files dns\n"
    listed = subprocess.run(["ldd", *map(str, programs_found.values())], capture_output=True, text=True, check=False)
    for word in listed.stdout.split():
        if word.startswith("/") and not word.endswith(":"):
            files[word] = Path(word).resolve()
    return image(INIT_IMAGE, files, environment={"PATH": "/usr/bin"})


# ---- pytest


def pytest_configure(config: pytest.Config) -> None:
    """Two optional tiers."""
    for marker, title, wanted in (
        ("kubeflow_trainer", "Kubeflow Trainer and JobSet", trainer_assets),
        ("training_operator", "Kubeflow's training operator", operator_assets),
    ):
        config.addinivalue_line("markers", f"{marker}: needs the real {title}, from {ASSETS}")
        register_tier(config, Tier(title, marker, (), _preparation(wanted), required_in_ci=False))


def _preparation(wanted: Callable[[], Path]) -> Callable[[Progress], None]:
    def prepare(_progress: Progress) -> None:
        try:
            wanted()
        except KubeflowError as error:
            raise TierUnavailable(str(error)) from error

    return prepare


# ---- how they are started


class _Ports:
    """Free ones for what each of them serves."""

    def __init__(self) -> None:
        self.webhook, self.metrics, self.health = free_port(), free_port(), free_port()


@dataclass(frozen=True)
class _Part:
    kind: str
    text: str


def _parts(file: Path) -> list[_Part]:
    """The documents of a file, not read: some megabytes of definitions take a YAML reader a minute."""
    texts = [text for text in re.split(r"^---\s*$", file.read_text(), flags=re.MULTILINE) if text.strip()]
    return [_Part(found[1], text) for text in texts if (found := re.search(r"^kind: (\w+)", text, re.MULTILINE))]


def _install(plane: ControlPlane, file: Path, port: int, kinds: str = "") -> list[Json]:
    """Everything but what runs in pods; the webhooks are given back, for when their servers listen.

    `kinds` is a word that stands in the definitions that are wanted, if not all are.
    """
    authority = base64.b64encode((plane.folder / "pki" / "ca.crt").read_bytes()).decode()
    parts = [part for part in _parts(file) if part.kind not in _LEFT_OUT]
    parts = [part for part in parts if part.kind != "CustomResourceDefinition" or f"name: {kinds}" in part.text]
    hooks: list[Json] = [yaml.safe_load(part.text) for part in parts if part.kind.endswith("WebhookConfiguration")]
    for hook in hooks:
        for one in hook["webhooks"]:
            url = f"https://127.0.0.1:{port}{one['clientConfig']['service']['path']}"
            one["clientConfig"] = {"url": url, "caBundle": authority}
    _apply(plane, "---\n".join(part.text for part in parts if not part.kind.endswith("WebhookConfiguration")))
    # kubectl's own wait fails on a definition that has no condition yet.
    _patiently(lambda: _kubectl(plane, "wait", "--for=condition=Established", "--timeout=120s", "crd", "--all"))
    return hooks


def _start(plane: ControlPlane, name: str, words: Sequence[str | Path], environment: dict[str, str]) -> None:
    alone = plane.options.die_with_parent
    plane.processes.start(name, words, die_with_parent=alone, cwd=plane.folder, env=environment)


def _stop(plane: ControlPlane, names: Iterable[str], hooks: list[Json]) -> None:
    for name in names:
        plane.processes.forget(name)
    for hook in hooks:  # a webhook that nobody answers refuses everything
        kind = hook["kind"].lower() + "s"
        with contextlib.suppress(ApiError):
            plane.admin.delete(f"/apis/admissionregistration.k8s.io/v1/{kind}/{hook['metadata']['name']}")


def _wait_until_ready(plane: ControlPlane, name: str, port: int) -> None:
    def ready() -> bool:
        if not plane.processes.alive(name):
            raise ComponentDiedError(name, plane.processes.log_tail(name))
        return _answers(port)

    wait_until(f"{name} is ready", ready, interval=0.2)


def _apply(plane: ControlPlane, text: str) -> None:
    _kubectl(plane, "apply", "--server-side", "--force-conflicts", "-f", "-", text=text)


def _patiently(act: Callable[[], None], seconds: float = 120.0) -> None:
    end = time.monotonic() + seconds
    while True:
        try:
            return act()
        except RuntimeError:
            if time.monotonic() > end:
                raise
            time.sleep(0.5)


def _kubectl(plane: ControlPlane, *words: str, text: str | None = None) -> None:
    command = [str(programs("kubectl")["kubectl"]), f"--kubeconfig={plane.admin_kubeconfig}", *words]
    done = subprocess.run(command, input=text, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise RuntimeError(f"kubectl {' '.join(words)}: {done.stderr.strip()}")


def _answers(port: int) -> bool:
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/readyz", timeout=5) as answer:
            return bool(answer.status == 200)
    except (urllib.error.URLError, OSError):
        return False
