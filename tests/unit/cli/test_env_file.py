"""`.env` files as people write them; no value ever in a message."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from orchestra.api.engine import EngineError
from orchestra.cli.env_file import is_in_git, read_env_file


@pytest.mark.parametrize(
    ("line", "value"),
    [
        ("A=plain", "plain"),
        ("  export A = spaced ", "spaced"),
        ("A=", ""),
        ("A=value # why", "value"),
        ("A=a#b", "a#b"),
        ("A='it is # here'  # why", "it is # here"),
        ('A="two\\nlines \\"quoted\\" \\$HOME"', 'two\nlines "quoted" $HOME'),
        ("A='back\\slash'", "back\\slash"),
        ("A=b=c==", "b=c=="),
    ],
)
def test_values(tmp_path: Path, line: str, value: str) -> None:
    file = tmp_path / ".env"
    file.write_text(f"# tokens\n\n{line}\n")
    assert read_env_file(file) == {"A": value}


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("A=1\nhunter2\n", ":2: not a line"),
        ("A='hunter2\n", ":1: the quotes of A"),
        ('A="hunter2" more\n', ":1: the quotes of A"),
        ("A=hunter2\nA=3\n", ":2: A is there twice"),
    ],
)
def test_mistakes_name_the_line_and_not_the_value(tmp_path: Path, text: str, why: str) -> None:
    file = tmp_path / ".env"
    file.write_text(text)
    with pytest.raises(EngineError) as told:
        read_env_file(file)
    assert why in str(told.value)
    assert "hunter2" not in str(told.value)


def test_a_file_that_is_not_there_or_not_text(tmp_path: Path) -> None:
    with pytest.raises(EngineError, match="No such file"):
        read_env_file(tmp_path / "none")
    (tmp_path / "binary").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(EngineError, match="not text"):
        read_env_file(tmp_path / "binary")


def test_git_is_asked(tmp_path: Path) -> None:
    file = tmp_path / ".env"
    file.write_text("A=1\n")
    assert not is_in_git(file)
    for words in (["init", "-q"], ["add", ".env"]):
        subprocess.run(["git", "-C", str(tmp_path), *words], check=True)
    assert is_in_git(file)
