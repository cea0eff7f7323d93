"""Installing CustomResourceDefinitions."""

from collections.abc import Sequence
from functools import partial
from pathlib import Path

import yaml

from testbed.api import Api, Json
from testbed.waiting import wait_until

_PATH = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"


def install_crds(api: Api, source: Path | Sequence[Path]) -> list[str]:
    """Apply all definitions of a folder (`*.yaml`) or of files, and wait until each is established and
    served.

    Returns their names. Documents of another kind are an error: they were not meant to be here.
    """
    files = (sorted(source.glob("*.yaml")) if source.is_dir() else [source]) if isinstance(source, Path) else source
    names = []
    for file in files:
        for document in yaml.safe_load_all(file.read_text()):
            if not document:
                continue
            if document.get("kind") != "CustomResourceDefinition":
                raise ValueError(f"{file}: a {document.get('kind')} and not a CustomResourceDefinition")
            names.append(document["metadata"]["name"])
            api.apply(f"{_PATH}/{names[-1]}", document)
    for name in names:
        wait_until(f"{name} is established", partial(_established, api, name))
    return names


def _established(api: Api, name: str) -> bool:
    crd = api.get(f"{_PATH}/{name}")
    conditions = crd.get("status", {}).get("conditions") or []  # null until the first is written
    if not any(c["type"] == "Established" and c["status"] == "True" for c in conditions):
        return False
    return all(_served(api, crd, version["name"]) for version in crd["spec"]["versions"] if version["served"])


def _served(api: Api, crd: Json, version: str) -> bool:
    """Established comes a moment before the first request is answered: ask for the list itself."""
    path = f"/apis/{crd['spec']['group']}/{version}/{crd['spec']['names']['plural']}"
    return api.raw("GET", path)[0] == 200
