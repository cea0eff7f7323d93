"""The chart, rendered by the real helm, is what config/ holds."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from orchestra.operator.install import manifests
from orchestra.operator.manifests import Installation
from testbed.helm import HelmError, helm

pytestmark = pytest.mark.helm

ROOT = Path(__file__).resolve().parents[3]
CHART = ROOT / "charts" / "orchestra"
CONFIG = ("crd/bases/torchrun.ai_torchrunjobs.yaml", "crd/bases/torchrun.ai_torchrunqueues.yaml", "rbac/role.yaml",
          "deployment.yaml", "workspace.yaml", "monitoring/servicemonitor.yaml")  # fmt: skip
HELMS_OWN = ("helm.sh/", "app.kubernetes.io/instance", "app.kubernetes.io/managed-by", "app.kubernetes.io/version")
Json = dict[str, Any]


def rendered(home: Path, *options: str) -> dict[str, Json]:
    text = helm("template", "orchestra", CHART, "-n", "orchestra-system", *options, home=home)
    return by_name(yaml.safe_load_all(text))


def by_name(documents: Any) -> dict[str, Json]:
    found = [without_helms_own(one) for one in documents if one]
    named = {f"{one['kind']} {one['metadata'].get('namespace', '')}/{one['metadata']['name']}": one for one in found}
    named.pop("Namespace /orchestra-system", None)  # helm makes it itself, with --create-namespace
    return named


def without_helms_own(document: Json) -> Json:
    metadata = dict(document["metadata"])
    for part in ("labels", "annotations"):
        kept = {
            name: value for name, value in (metadata.pop(part, None) or {}).items() if not name.startswith(HELMS_OWN)
        }
        if kept:
            metadata[part] = kept
    return {**document, "metadata": metadata}


def test_the_chart_renders_the_same_objects_as_config(tmp_path: Path) -> None:
    chart = rendered(tmp_path, "--set", "serviceMonitor.enabled=true", "--set", "workspaceStore.enabled=true")
    config = by_name(
        document for file in CONFIG for document in yaml.safe_load_all((ROOT / "config" / file).read_text())
    )
    assert chart.keys() == config.keys()
    for name, document in config.items():
        assert chart[name] == document, name


def test_the_store_may_stand_before_a_bucket_and_in_another_namespace(tmp_path: Path) -> None:
    options = ("--set", "workspaceStore.enabled=true", "--set", "workspaceStore.url=s3://bucket/snapshots")
    text = helm("template", "orchestra", CHART, "-n", "elsewhere", *options, home=tmp_path)
    named = by_name(yaml.safe_load_all(text))
    store = named["Deployment elsewhere/orchestra-workspace"]["spec"]["template"]["spec"]
    assert "--store=s3://bucket/snapshots" in store["containers"][0]["command"]
    assert not any(name.startswith("PersistentVolumeClaim") for name in named)
    operator = named["Deployment elsewhere/orchestra-operator"]["spec"]["template"]["spec"]["containers"][0]
    assert "--workspace-url=http://orchestra-workspace.elsewhere.svc:8080" in operator["args"]


def test_for_some_namespaces_it_renders_what_install_applies(tmp_path: Path) -> None:
    chart = rendered(tmp_path, "--set", "namespaces={team-a,orchestra-system}")
    applied = by_name(manifests(Installation(namespaces=("team-a", "orchestra-system"))))
    assert chart == applied
    assert not any(name.startswith("ClusterRole") for name in chart)


def test_definitions_are_kept_on_uninstall_and_what_is_switched_off_is_not_there(tmp_path: Path) -> None:
    text = helm("template", "orchestra", CHART, "-n", "orchestra-system", home=tmp_path)
    definitions = [one for one in yaml.safe_load_all(text) if one and one["kind"] == "CustomResourceDefinition"]
    assert [one["metadata"]["annotations"]["helm.sh/resource-policy"] for one in definitions] == ["keep", "keep"]
    bare = rendered(tmp_path, "--set", "crds.install=false", "--set", "podDisruptionBudget.enabled=false")
    assert not {"CustomResourceDefinition", "PodDisruptionBudget", "ServiceMonitor"} & {
        one["kind"] for one in bare.values()
    }


@pytest.mark.parametrize(
    "wrong", ["replica=3", "replicas=-1", "image.repository=", "namespaces={Team_A}", "serviceMonitor.interval=often"]
)
def test_values_that_cannot_be_meant_are_refused(tmp_path: Path, wrong: str) -> None:
    with pytest.raises(HelmError, match=wrong.partition("=")[0].split(".")[-1]):
        rendered(tmp_path, "--set", wrong)


def test_helms_own_lint_has_nothing_to_say(tmp_path: Path) -> None:
    assert "0 chart(s) failed" in helm("lint", "--strict", CHART, home=tmp_path)
