"""The packed agent: small, the same everywhere, and nothing but the standard library of Python 3.8."""

from __future__ import annotations

import ast
import io
import sys
import zipfile

from orchestra.agent import pack


def test_it_is_small_and_the_same_sources_give_the_same_bytes() -> None:
    first = pack.agent_bytes()
    pack.agent_bytes.cache_clear()
    assert pack.agent_bytes() == first
    assert len(first) < pack.SIZE_LIMIT
    assert len(pack.agent_hash()) == 16


def test_the_packer_stays_at_home() -> None:
    names = zipfile.ZipFile(io.BytesIO(pack.agent_bytes())).namelist()
    assert "__main__.py" in names
    assert "orchestra_agent/shim.py" in names
    assert "orchestra_agent/pack.py" not in names


def test_every_module_is_python_3_8() -> None:
    for name, text in pack.agent_sources().items():
        tree = ast.parse(text, name, feature_version=(3, 8))
        first = next(node for node in tree.body if not isinstance(node, ast.Expr)) if len(tree.body) > 1 else None
        assert first is None or ast.unparse(first) == "from __future__ import annotations", name


def test_every_import_is_of_the_standard_library_or_relative() -> None:
    allowed = sys.stdlib_module_names
    for name, text in pack.agent_sources().items():
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, ast.ImportFrom):
                assert node.level == 1 or (node.module or "").split(".")[0] in allowed, f"{name}: {ast.unparse(node)}"
            if isinstance(node, ast.Import):
                assert all(alias.name.split(".")[0] in allowed for alias in node.names), f"{name}: {ast.unparse(node)}"


def test_no_type_of_newer_pythons_is_made_at_run_time() -> None:
    """`list[int]` and `X | None` may stand in annotations, which nobody evaluates, and nowhere else."""
    for name, text in pack.agent_sources().items():
        tree = ast.parse(text)
        annotations = {
            id(inner)
            for node in ast.walk(tree)
            for field in ("annotation", "returns")
            if getattr(node, field, None) is not None
            for inner in ast.walk(getattr(node, field))
        }
        for node in ast.walk(tree):
            if isinstance(node, ast.Subscript) and isinstance(node.value, ast.Name) and id(node) not in annotations:
                assert node.value.id not in ("list", "dict", "set", "tuple", "type"), f"{name}:{node.lineno}"
