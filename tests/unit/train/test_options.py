"""The smoke trainer's command line."""

import pytest

from orchestra.train.options import parse
from orchestra.train.smoke.options import Options


def options(line: str) -> Options:
    return parse(Options, line.split(), program="smoke")


def test_the_defaults_are_those_of_the_ddp_guide() -> None:
    guide = "--epochs 2 --batch 256 --samples 4096 --features 128 --classes 4 --lr 3e-3 --seed 42"
    assert options("") == options(guide) == Options()


@pytest.mark.parametrize(
    "line",
    [
        "--output-dir my_out --num-workers 2 --checkpoint-every 7 --step-delay 0.5 --no-resume",
        "--output_dir my_out --num_workers 2 --checkpoint_every 7 --step_delay 0.5 --no_resume",
        "--output_dir=my_out --num-workers=2 --checkpoint_every=7 --step-delay=0.5 --no-resume",
    ],
)
def test_flags_are_known_in_both_spellings_and_values_are_left_alone(line: str) -> None:
    expected = Options(output_dir="my_out", num_workers=2, checkpoint_every=7, step_delay=0.5, resume=False)
    assert options(line) == expected


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("--batch 0", "argument --batch: 0 is less than 1"),
        ("--epochs two", "argument --epochs: invalid int value: 'two'"),
        ("--batches 3", "unrecognized arguments: --batches 3"),
        ("--sample 3", "unrecognized arguments: --sample 3"),
    ],
)
def test_mistakes_are_named(line: str, message: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="2"):
        options(line)
    assert message in capsys.readouterr().err
