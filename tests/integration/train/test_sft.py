"""Fine-tuning by real processes: stopped, killed and resumed, under DDP, FSDP and DeepSpeed, always the same losses."""

import json
import os
import shutil
import sys
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from integration.train.fine_tuning import SECONDS, SFT, TORCHRUN, by_hand, flags, losses, make_tiny, validation
from integration.train.ranks import Ranks

pytestmark = [pytest.mark.torch, pytest.mark.timeout(1800), pytest.mark.filterwarnings("ignore")]
SLOWLY = "--step-delay=0.2"


class Undisturbed(NamedTuple):
    """Two processes under plain torchrun and DDP, without an agent."""

    tiny: Path
    out: Path
    output: str
    losses: dict[int, float]
    validation: dict[int, float]


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> Undisturbed:
    folder = tmp_path_factory.mktemp("sft")
    tiny, out = make_tiny(folder / "tiny"), folder / "out"
    output = by_hand(TORCHRUN, *flags(tiny, out, "--merge", "--run-name=one"))
    return Undisturbed(tiny, out / "one", output, losses(output), validation(output))


def adapter(run: Path) -> dict[str, Any]:
    from safetensors.torch import load_file

    return dict(load_file(run / "best" / "rank-0" / "adapter_model.safetensors"))


def same(one: dict[str, Any], other: dict[str, Any]) -> bool:
    import torch

    return one.keys() == other.keys() and all(
        torch.allclose(one[name], other[name], rtol=1e-3, atol=1e-5) for name in one
    )


def test_the_adapter_loads_in_plain_peft_changes_the_output_and_the_perplexity_falls(undisturbed: Undisturbed) -> None:
    import torch
    from peft import PeftModel
    from transformers import AutoModelForCausalLM, AutoTokenizer

    scores = undisturbed.validation
    assert len(undisturbed.losses) == 12
    assert scores[3] < scores[1]
    assert list(undisturbed.out.glob("events.out.tfevents.*"))
    assert "[EPOCH] 3/3" in (undisturbed.out / "log.txt").read_text()
    assert (undisturbed.out / "best").resolve().name == f"epoch-{min(scores, key=scores.__getitem__)}"
    assert sorted(path.name for path in (undisturbed.out / "epoch-2").iterdir()) == ["rank-0", "rank-1"]
    metrics = json.loads((undisturbed.out / "epoch-3" / "rank-1" / "metrics.json").read_text())
    assert metrics["loss"] == pytest.approx(scores[3], abs=1e-5)

    best = undisturbed.out / "best" / "rank-0"
    base = AutoModelForCausalLM.from_pretrained(undisturbed.tiny / "model")
    tokens = AutoTokenizer.from_pretrained(best)("3 plus 4 is", return_tensors="pt")
    with torch.no_grad():
        before = base(**tokens).logits
        after = PeftModel.from_pretrained(base, best)(**tokens).logits
        merged = AutoModelForCausalLM.from_pretrained(undisturbed.out / "merged")(**tokens).logits
    assert not torch.allclose(before, after, atol=1e-2)
    assert torch.allclose(after, merged, atol=1e-4)


def test_fsdp_stopped_by_one_rank_and_resumed_makes_the_adapter_that_ddp_makes(
    undisturbed: Undisturbed, tmp_path: Path
) -> None:
    out = tmp_path / "out"
    command = flags(undisturbed.tiny, out, "--parallel=fsdp")
    with Ranks(tmp_path / "first", 2, *command, SLOWLY, program=SFT) as ranks:
        ranks[1].wait_for_step(4, SECONDS)
        ranks[1].ask_to_stop()
        assert [rank.exit_code(SECONDS) for rank in ranks] == [0, 0], ranks[0].output + ranks[1].output
        first = losses(ranks[0].output)
        step = ranks[0].result["step"]
        assert ranks[0].result == ranks[1].result
        assert ranks[0].result["state"] == "stopped"
        assert 4 <= step < 12
        assert f"stopped after step {step}, as rank 1 was asked to" in ranks[0].output
    assert list((out / "checkpoints" / "latest").glob("shard-*")), "each rank writes its own part"
    with Ranks(tmp_path / "second", 2, *command, program=SFT) as ranks:
        assert [rank.exit_code(SECONDS) for rank in ranks] == [0, 0], ranks[0].output + ranks[1].output
        second, scores = losses(ranks[0].output), validation(ranks[0].output)
        assert f"resumed after step {step}" in ranks[0].output
        assert ranks[1].result["state"] == "done"
        assert ranks[1].progress["step"] == 12
    assert min(second) == step + 1
    assert {**first, **second} == pytest.approx(undisturbed.losses, rel=1e-4)
    assert scores[3] == pytest.approx(undisturbed.validation[3], rel=1e-4)
    assert same(adapter(out), adapter(undisturbed.out))


def test_killed_ranks_lose_nothing_beyond_the_last_checkpoint_and_one_process_goes_on_alone(
    undisturbed: Undisturbed, tmp_path: Path
) -> None:
    out = tmp_path / "out"
    with Ranks(tmp_path / "first", 2, *flags(undisturbed.tiny, out), SLOWLY, program=SFT) as ranks:
        ranks[0].wait_for_step(5, SECONDS)
        for rank in ranks:
            rank.process.kill()
    output = by_hand(SFT, *flags(undisturbed.tiny, out))
    seen = losses(output)
    assert min(seen) in (3, 5, 7, 9), "a checkpoint every second step, the last one perhaps on its way"
    assert seen == pytest.approx({step: undisturbed.losses[step] for step in seen}, rel=1e-4)
    assert same(adapter(out), adapter(undisturbed.out))


def test_deepspeed_under_its_own_launcher_without_ssh_then_under_torchrun_and_not_on_another_number(
    undisturbed: Undisturbed, tmp_path: Path
) -> None:
    out = tmp_path / "out"
    config, hosts = tmp_path / "zero.json", tmp_path / "hosts"
    config.write_text(json.dumps({"zero_optimization": {"stage": 3}}))
    hosts.write_text("localhost slots=2\n")
    zero = flags(undisturbed.tiny, out, "--parallel=deepspeed", f"--deepspeed-config={config}")
    launcher = [
        *(str(Path(sys.executable).with_name("deepspeed")), f"--hostfile={hosts}", "--no_ssh", "--node_rank=0"),
        *("--master_addr=127.0.0.1", f"--master_port={29000 + os.getpid() % 2000}", "--module", "orchestra.train.sft"),
    ]
    first = by_hand(launcher, *zero)
    assert losses(first) == pytest.approx(undisturbed.losses, rel=1e-4)
    assert same(adapter(out), adapter(undisturbed.out))

    for name in ("step-00000012", "step-00000010"):
        shutil.rmtree(out / "checkpoints" / name)
    (out / "checkpoints" / "latest").unlink()
    again = by_hand(TORCHRUN, *zero)
    assert "resumed after step 8" in again
    assert losses(again) == pytest.approx({step: undisturbed.losses[step] for step in (9, 10, 11, 12)}, rel=1e-4)

    with Ranks(tmp_path / "alone", 1, *zero, program=SFT) as ranks:
        assert ranks[0].exit_code(SECONDS) == 2
        assert "saved by DeepSpeed on 2 processes and there are 1 now: start 2" in ranks[0].output
