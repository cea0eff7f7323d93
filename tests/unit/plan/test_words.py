"""A command line is split as a shell would split it, and never given to one."""

from __future__ import annotations

import shlex
import subprocess

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from builders import a_cpu_queue, a_job
from orchestra.plan import plan
from orchestra.plan.words import NeedsShell, OpenQuote, parse

_TEXT = st.text(st.characters(exclude_characters="\0\r", exclude_categories=["Cs"]), max_size=20)


@given(st.lists(_TEXT, min_size=1, max_size=6))
def test_quoted_words_come_back_as_they_were(words: list[str]) -> None:
    line = parse("cmd " + shlex.join(words))
    assert line.words == ["cmd", *words]


@settings(max_examples=60, deadline=None)
@given(st.text(alphabet="ab '\"\\\t=-", max_size=24))
def test_it_agrees_with_a_real_shell(text: str) -> None:
    try:
        ours = parse(f"x {text}").words[1:]
    except OpenQuote:
        return
    shell = subprocess.run(["sh", "-c", f"printf '%s\\0' x {text}"], capture_output=True, text=True, check=True)
    assert ours == shell.stdout.split("\0")[1:-1]


@given(st.lists(_TEXT, min_size=1, max_size=5))
def test_quoting_survives_all_the_way_into_the_launch_line(arguments: list[str]) -> None:
    as_line = plan(a_cpu_queue(), a_job(command="python train.py " + shlex.join(arguments)))
    as_list = plan(a_cpu_queue(), a_job(command=["python", "train.py", *arguments]))
    for made in (as_line, as_list):
        argv = made.nodes[0].argv
        assert argv[argv.index("train.py") + 1 :] == arguments
        assert made.launch.program == ["python", "-u", "train.py", *arguments]


def test_nothing_is_expanded_and_that_is_said() -> None:
    made = plan(a_cpu_queue(), a_job(command="""python train.py $HOME '$QUOTED' *.txt ~"""))
    assert made.nodes[0].argv[-4:] == ["$HOME", "$QUOTED", "*.txt", "~"]
    assert any("$HOME" in note and "$QUOTED" not in note for note in made.notes)


@pytest.mark.parametrize("line", ["a && b", "a | b", "a; b", "a > f", "a < f", "a &", "a `b`", 'a "$(b)"', "(a)"])
def test_what_only_a_shell_can_do_is_refused(line: str) -> None:
    with pytest.raises(NeedsShell):
        parse(line)


@pytest.mark.parametrize("line", ["a 'b", 'a "b', "it's"])
def test_an_open_quote_is_named(line: str) -> None:
    with pytest.raises(OpenQuote):
        parse(line)


def test_a_backslash_at_the_end_of_a_line_joins_it_with_the_next() -> None:
    assert parse("python train.py \\\n  --epochs 3 \\\n  --name 'a b'\n").words == [
        "python", "train.py", "--epochs", "3", "--name", "a b",
    ]  # fmt: skip


def test_variables_in_front_become_environment() -> None:
    made = plan(a_cpu_queue(), a_job(command="A=1 B='x y' python train.py C=3"))
    assert made.nodes[0].env["A"] == "1"
    assert made.nodes[0].env["B"] == "x y"
    assert made.nodes[0].argv[-1] == "C=3"
