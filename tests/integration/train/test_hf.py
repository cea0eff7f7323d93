"""Hugging Face's Trainer with our callback, two processes: stopped in training, evaluation and save, and killed."""

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from integration.train.ranks import Ranks

pytestmark = pytest.mark.torch
PROGRAM = [sys.executable, str(Path(__file__).with_name("hf_trainings.py"))]
STOPPED_AFTER = {"train": 2, "eval": 4, "save": 3}


@pytest.fixture(scope="module")
def seen(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """What the trainings saw: two starts for all tests here, for imports are most of the time."""
    folder = tmp_path_factory.mktemp("hf")
    with Ranks(folder / "first", 2, str(folder), "ddp", program=PROGRAM) as ranks:
        ranks[0].exit_code(timeout=600)
        assert ranks[0].process.returncode == -9, ranks[0].output
    with Ranks(folder / "second", 2, str(folder), "ddp-after-the-kill", program=PROGRAM) as ranks:
        codes = [rank.exit_code(timeout=600) for rank in ranks]
        assert codes == [0, 0], ranks[0].output + ranks[1].output
        output = ranks[0].output
    found = {name: json.loads((folder / f"{name}.json").read_text()) for name in ("ddp", "ddp-after-the-kill", "fsdp")}
    return {**found, "output": output}


@pytest.mark.timeout(1300)
@pytest.mark.parametrize("kind", ["ddp", "fsdp"])
@pytest.mark.parametrize("moment", ["train", "eval", "save"])
def test_a_stop_asked_of_one_rank_is_saved_on_both_and_the_resumed_losses_are_those_of_the_undisturbed_run(
    seen: dict[str, Any], kind: str, moment: str
) -> None:
    undisturbed = seen[kind]["undisturbed"]
    stopped, resumed = seen[kind][moment]
    assert (undisturbed["stopped"], stopped["stopped"], resumed["stopped"]) == (False, True, False)
    step = stopped["step"]
    assert step == STOPPED_AFTER[moment], "one step later in training, at once in an evaluation or a save"
    assert stopped["result"]["state"] == "stopped"
    assert stopped["result"]["checkpoint"].endswith(f"checkpoint-{step}")
    assert resumed["result"] is None
    assert resumed["step"] == 8
    losses = {**stopped["losses"], **resumed["losses"]}
    assert set(resumed["losses"]) == {str(later) for later in range(step + 1, 9)}
    assert losses == pytest.approx(undisturbed["losses"], rel=1e-4)


def test_an_evaluation_that_a_stop_meets_is_left_early_and_done_again_after_the_resume(seen: dict[str, Any]) -> None:
    stopped, resumed = seen["ddp"]["eval"]
    assert stopped["evaluated"] == []
    assert stopped["evaluationBatches"] < 4
    assert resumed["evaluated"] == [4, 8]


def test_a_checkpoint_cut_short_by_a_kill_is_set_aside_by_name_and_the_one_before_is_used(seen: dict[str, Any]) -> None:
    resumed = seen["ddp-after-the-kill"]["resumed"]
    assert "incomplete-checkpoint-6" in resumed["folders"]
    assert "checkpoint checkpoint-6 is not used and now called incomplete-checkpoint-6" in seen["output"]
    assert set(resumed["losses"]) == {"4", "5", "6", "7", "8"}
    losses = seen["ddp"]["undisturbed"]["losses"]
    assert resumed["losses"] == pytest.approx({step: losses[step] for step in resumed["losses"]}, rel=1e-4)
