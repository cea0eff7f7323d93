"""Helm, the real one, from its published Go module. Built on request (minutes, once), then kept in the cache."""

import os
import subprocess
from pathlib import Path

from testbed.programs import has_program_from_module, kubernetes_version, program_from_module
from testbed.progress import Progress

BUILD_HELM = "ORCHESTRA_TEST_HELM"

_MODULE = "helm.sh/helm/v3"
_VERSION = "v3.19.4"
_PACKAGE = "./cmd/helm"


class HelmError(Exception):
    """Helm ended with an error; the text has what it said."""


def helm_program(progress: Progress | None = None) -> Path:
    """The program; the first call ever builds it."""
    return program_from_module("helm", _MODULE, _VERSION, _PACKAGE, ldflags=_ldflags(), progress=progress)


def may_use_helm() -> bool:
    """Whether tests may use it: it is built already, or somebody asked for the minutes that takes."""
    asked = os.environ.get(BUILD_HELM, "") in ("1", "true")
    return asked or has_program_from_module("helm", _MODULE, _VERSION, _PACKAGE, ldflags=_ldflags())


def helm(*arguments: str | Path, kubeconfig: Path | None = None, home: Path | None = None) -> str:
    """Run it; returns what it printed. Its own files go under `home` and not to the user's."""
    environment = dict(os.environ)
    if kubeconfig is not None:
        environment["KUBECONFIG"] = str(kubeconfig)
    if home is not None:
        environment |= {f"HELM_{name}_HOME": str(home / name.lower()) for name in ("CACHE", "CONFIG", "DATA")}
    command = [str(helm_program()), *map(str, arguments)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise HelmError(f"helm {' '.join(map(str, arguments))}: {done.stderr.strip()}")
    return done.stdout


def _ldflags() -> str:
    """With the versions in it: without, it takes every cluster that it does not ask for 1.20."""
    major, minor, _ = kubernetes_version().split(".")
    utilities = f"{_MODULE}/pkg/chartutil"
    return (
        f"-s -w -X {_MODULE}/internal/version.version={_VERSION}"
        f" -X {utilities}.k8sVersionMajor={major} -X {utilities}.k8sVersionMinor={minor}"
    )
