"""The generated CRDs: what every structural schema must keep to, and what ours promise."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from orchestra.api.crd import job_crd, queue_crd

CRDS = {"job": job_crd(), "queue": queue_crd()}


def schema_of(crd: dict[str, Any]) -> dict[str, Any]:
    schema: dict[str, Any] = crd["spec"]["versions"][0]["schema"]["openAPIV3Schema"]
    return schema


def walk(schema: dict[str, Any], path: str = "") -> Iterator[tuple[str, dict[str, Any]]]:
    yield path, schema
    for name, child in schema.get("properties", {}).items():
        yield from walk(child, f"{path}.{name}")
    if isinstance(schema.get("items"), dict):
        yield from walk(schema["items"], f"{path}[]")
    if isinstance(schema.get("additionalProperties"), dict):
        yield from walk(schema["additionalProperties"], f"{path}{{}}")


@pytest.mark.parametrize("crd", CRDS.values(), ids=CRDS)
def test_every_field_of_ours_is_described_and_bounded(crd: dict[str, Any]) -> None:
    for path, schema in walk(schema_of(crd)):
        if not path.startswith((".spec", ".status")):
            continue
        if not path.endswith(("[]", "{}")):
            assert schema.get("description"), path
        kind = schema.get("type")
        if kind == "string" and "enum" not in schema:
            assert "maxLength" in schema, path
        if kind == "array":
            assert "maxItems" in schema, path
        if "additionalProperties" in schema:
            assert "maxProperties" in schema, path


def test_names_columns_and_status() -> None:
    names, version = CRDS["job"]["spec"]["names"], CRDS["job"]["spec"]["versions"][0]
    assert names["shortNames"] == ["tj", "trj"]
    assert CRDS["queue"]["spec"]["names"]["shortNames"] == ["trq"]
    assert version["subresources"] == {"status": {}}
    columns = [column["name"] for column in version["additionalPrinterColumns"]]
    assert columns == ["Queue", "GPUs", "Nodes", "Phase", "Progress", "Restarts", "Age"]


def test_a_queue_publishes_defaults_and_a_jobs_blocks_do_not() -> None:
    queue, job = schema_of(CRDS["queue"])["properties"]["spec"], schema_of(CRDS["job"])["properties"]["spec"]
    workspace = queue["properties"]["storage"]["properties"]["workspace"]["properties"]
    assert workspace["mountPath"]["default"] == "/app"
    assert queue["properties"]["parentKaiQueue"]["default"] == "default"
    hidden = [path for path, schema in walk(job["properties"]["storage"]) if "default" in schema]
    hidden += [path for path, schema in walk(job["properties"]["lifecycle"]) if "default" in schema]
    assert not hidden, "a default in a job's block would hide the queue's value"
    assert job["properties"]["suspend"]["default"] is False
