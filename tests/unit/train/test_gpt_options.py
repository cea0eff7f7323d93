"""The GPT trainer's options, from a file and from the command line."""

from pathlib import Path

import pytest

from orchestra.train.gpt.__main__ import read_options
from orchestra.train.world import Refused


def a_config(folder: Path, text: str) -> str:
    (folder / "conf.yaml").write_text(text)
    return str(folder / "conf.yaml")


def test_the_command_line_wins_over_the_file_in_both_spellings(tmp_path: Path) -> None:
    path = a_config(
        tmp_path,
        '---\n# mine\nlearning-rate: 3e-4  # high\nmodel:\n  n_layer: 2\n  n_head: 4\nfp8: false\n"data_dir": "a # b"\nresume: no\n',
    )
    options = read_options(["--config", path, "--n_layer=3", "--output_dir", "here"])
    assert (options.learning_rate, options.n_layer, options.n_head) == (3e-4, 3, 4)
    assert (options.data_dir, options.output_dir, options.resume) == ("a # b", "here", False)
    assert read_options(["--config", path, "--output-dir", "here", "--resume"]).resume is True


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("n_layers: 3", r"conf.yaml:1: there is no option n_layers"),
        ("seed: 1\nn_layer: many", r"conf.yaml:2: n_layer: 'many' is no int"),
        ("fp8: maybe", r"conf.yaml:1: fp8 is true or false, not 'maybe'"),
        ("- n_layer", r"conf.yaml:1: not `option: value`"),
    ],
)
def test_a_mistake_in_the_file_is_named_by_line(tmp_path: Path, text: str, reason: str) -> None:
    with pytest.raises(Refused, match=reason):
        read_options(["--config", a_config(tmp_path, text)])


def test_a_file_that_was_asked_for_must_be_there(tmp_path: Path) -> None:
    with pytest.raises(Refused, match="cannot be read"):
        read_options(["--config", str(tmp_path / "none.yaml")])


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        (["--n-embd", "10", "--n-head", "3"], "--n-embd 10 is not a multiple of --n-head 3"),
        (["--n-experts", "2", "--top-k", "3"], "--top-k 3 is more than --n-experts 2"),
        (["--parallel", "tp"], "--parallel tp: it is one of ddp, fsdp"),
    ],
)
def test_what_does_not_fit_together_is_refused(words: list[str], reason: str) -> None:
    with pytest.raises(Refused, match=reason):
        read_options(words)


def test_help_names_every_option(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        read_options(["--help"])
    printed = capsys.readouterr().out
    assert "--moe-coef" in printed
    assert "--gradient-accumulation" in printed
