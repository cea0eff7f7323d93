"""What the library asks of its surroundings."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

import orchestra.train

SOURCES = sorted(Path(orchestra.train.__file__).parent.rglob("*.py"))


def test_importing_the_library_imports_neither_torch_nor_the_rest_of_orchestra() -> None:
    program = "import sys, orchestra.train, orchestra.train.options; print(*sys.modules, sep='\\n')"
    modules = subprocess.run([sys.executable, "-c", program], check=True, capture_output=True, text=True).stdout.split()
    assert "torch" not in modules
    assert not [name for name in modules if name.startswith("orchestra.") and not name.startswith("orchestra.train")]
    assert not {"numpy", "msgspec", "yaml"} & set(modules)


@pytest.mark.parametrize("source", SOURCES, ids=lambda source: str(source.name))
def test_the_sources_can_be_read_by_the_python_of_an_older_image(source: Path) -> None:
    ast.parse(source.read_text(), feature_version=(3, 9))


@pytest.mark.parametrize("name", orchestra.train.__all__)
def test_each_public_thing_says_what_it_promises(name: str) -> None:
    assert getattr(orchestra.train, name).__doc__
