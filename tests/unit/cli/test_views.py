"""What people see: small pieces of text, checked without a terminal."""

from __future__ import annotations

import argparse

import pytest

from builders import a_job
from orchestra.api.job import Progress
from orchestra.cli.commands.logs import duration, ranks
from orchestra.cli.commands.resume import assignment
from orchestra.cli.job_view import list_jobs, progress_line
from orchestra.cli.submissions import free_name, name_from
from orchestra.cli.terminal import Paint, age, bar, sparkline, table
from orchestra.plan import status


@pytest.mark.parametrize(
    ("words", "name"),
    [
        (["python examples/train.py --lr 1"], "train"),
        (["python", "-m", "orchestra.train.smoke"], "smoke"),
        (["bash run_all.SH.sh"], "run-all-sh"),
        (["/opt/bin/Tool"], "tool"),
        (["python 123.py"], "job"),
        (["python my-sync.py"], "job"),
        ([""], "job"),
        (["python " + "x" * 80 + ".py"], "x" * 44),
    ],
)
def test_a_command_names_its_job(words: list[str], name: str) -> None:
    assert name_from(words) == name


def test_a_taken_name_gets_a_number() -> None:
    assert free_name("train", set()) == "train"
    assert free_name("train", {"train", "train-2"}) == "train-3"


@pytest.mark.parametrize(
    ("seconds", "text"), [(0, "0s"), (119, "119s"), (120, "2m"), (7200, "2h"), (200000, "2d"), (None, "")]
)
def test_ages_read_as_kubectl_writes_them(seconds: float | None, text: str) -> None:
    assert age(seconds) == text


def test_bars_and_curves() -> None:
    assert bar(0.5, 4) == "██░░"
    assert bar(7.0, 2) == "██"
    assert sparkline([1, 2, 3]) == "▁▄█"
    assert sparkline([5, 5]) == "▁▁"
    assert sparkline([]) == ""


def test_colours_do_not_count_for_the_width_of_a_column() -> None:
    paint = Paint(True)
    lines = table([[paint("ab", "red"), "x"], ["abcd", "y"]], ["H", "I"]).splitlines()
    assert lines[1].endswith("\x1b[0m     x")
    assert lines[2] == "abcd   y"


def test_progress_in_one_line() -> None:
    line = progress_line(
        Progress(step=120, total_steps=480, loss=0.31234, tokens_per_second=12345, eta_seconds=130), columns=4
    )
    assert line == "█░░░ 120/480 25%  loss 0.3123  12.3k tok/s  ETA 2m"
    assert progress_line(Progress(step=3)) == "step 3"
    assert progress_line(Progress()) == ""


def test_a_list_of_jobs() -> None:
    job = status.in_phase(a_job("one", numGPUs=8), "Running", "Started", "m", 0.0)
    text = list_jobs([job], Paint(False), wide=True, headers=True)
    assert text.split("\n")[0].split()[:4] == ["NAME", "QUEUE", "GPUS", "NODES"]
    assert "Running" in text
    assert list_jobs([job], Paint(False), wide=False, headers=False).startswith("one")


def test_flags_are_read_or_refused_with_what_would_be_right() -> None:
    assert ranks("0,8-10") == [0, 8, 9, 10]
    assert duration("1.5m") == 90
    assert assignment("spec.numNodes=2") == ("numNodes", 2)
    assert assignment("image=") == ("image", None)
    for read, wrong in ((ranks, "a"), (ranks, "1-"), (duration, "5 minutes"), (assignment, "novalue")):
        with pytest.raises(argparse.ArgumentTypeError):
            read(wrong)
