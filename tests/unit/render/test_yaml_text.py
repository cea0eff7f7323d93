"""YAML with comments: the same value for every reader, the same bytes every time."""

from __future__ import annotations

from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from orchestra.api.source import read_documents
from orchestra.render.yaml_text import to_yaml, without_comments

text = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)
keys = st.text(st.characters(min_codepoint=33, max_codepoint=0x2FF), min_size=1, max_size=8).filter(
    lambda key: key[0] != "#"
)
scalars = st.one_of(st.none(), st.booleans(), st.integers(-(10**9), 10**9), text)
values = st.recursive(
    scalars, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(keys, inner, max_size=3), max_leaves=12
)


@given(st.dictionaries(keys, values, min_size=1, max_size=4))
def test_what_is_written_is_read_back(value: dict[str, Any]) -> None:
    assert yaml.safe_load(to_yaml(value)) == value


@pytest.mark.parametrize(
    "word",
    [
        "3e-3",
        "1e3",
        "0x1F",
        "0o17",
        "12:30:45",
        "1_000",
        ".5",
        "y",
        "no",
        "null",
        "2026-01-01",
        "",
        "10",
        "-1",
        "#x",
        "a: b",
    ],
)
def test_text_stays_text_for_readers_that_know_more_kinds_of_numbers(word: str) -> None:
    written = to_yaml({"word": word})
    nodes, problems = read_documents(written, "f")
    assert (problems, nodes[0].plain()) == ([], {"word": word})
    if word[:1].isdigit() or word[:1] in "-.y":
        assert written.split(": ", 1)[1][0] in "'\""


def test_comments_stand_above_what_they_explain_and_are_no_part_of_the_value() -> None:
    value = {
        "#": "The whole.",
        "spec": {
            "#replicas": "One a node.",
            "replicas": 2,
            "list": [{"#": "First.", "name": "a", "x": [1]}, {"name": "b"}],
        },
    }
    assert to_yaml(value) == (
        "# The whole.\n"
        "spec:\n"
        "  # One a node.\n"
        "  replicas: 2\n"
        "  list:\n"
        "    # First.\n"
        "    - name: a\n"
        "      x:\n"
        "        - 1\n"
        "    - name: b\n"
    )
    assert yaml.safe_load(to_yaml(value)) == without_comments(value)


def test_scripts_are_blocks() -> None:
    assert to_yaml({"script.sh": "#!/bin/sh\n\nexit 0\n"}) == "script.sh: |\n  #!/bin/sh\n\n  exit 0\n"
