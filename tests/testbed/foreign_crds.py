"""The definitions of other people's kinds, from their modules on the Go module proxy. Nothing of them is kept here."""

from dataclasses import dataclass
from pathlib import Path

from testbed.go_build import GoBuildError, download_module
from testbed.programs import cache_folder


class ForeignCrdsUnavailable(Exception):
    """They cannot be had here; the text says why."""


@dataclass(frozen=True)
class Source:
    """Where a project keeps its definitions."""

    module: str
    version: str
    files: tuple[str, ...]


TRAINER = Source(
    "github.com/kubeflow/trainer/v2",
    "v2.3.0",
    (
        "manifests/base/crds/trainer.kubeflow.org_trainjobs.yaml",
        "manifests/base/crds/trainer.kubeflow.org_trainingruntimes.yaml",
    ),
)
JOBSET = Source("sigs.k8s.io/jobset", "v0.12.0", ("config/components/crd/bases/jobset.x-k8s.io_jobsets.yaml",))
TRAINING_OPERATOR = Source(
    "github.com/kubeflow/training-operator", "v1.8.1", ("manifests/base/crds/kubeflow.org_pytorchjobs.yaml",)
)


def foreign_crds(*sources: Source) -> list[Path]:
    """The files of these projects; ForeignCrdsUnavailable where they can neither be found nor downloaded."""
    return [folder / name for source in sources for folder in [module_folder(source)] for name in source.files]


def module_folder(source: Source) -> Path:
    """The project's own source tree, read-only."""
    try:
        return download_module(source.module, source.version, log=cache_folder() / "logs" / "foreign-crds.log")
    except GoBuildError as error:
        raise ForeignCrdsUnavailable(str(error)) from error
