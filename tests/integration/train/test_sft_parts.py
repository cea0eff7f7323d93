"""The parts of fine-tuning, each against the plain way of doing the same, in this process."""

import json
import os
import re
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from integration.train.fine_tuning import SFT, make_tiny
from integration.train.ranks import environment
from orchestra.train import Refused
from orchestra.train.sft import documents, hub
from orchestra.train.sft.options import Options
from orchestra.train.sft.rows import IGNORED, Rows, pack

pytestmark = [pytest.mark.torch, pytest.mark.timeout(900), pytest.mark.filterwarnings("ignore")]
LENGTH = 64


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_tiny(tmp_path_factory.mktemp("parts") / "tiny")


def options(tiny: Path, **more: Any) -> Options:
    chosen = {"model_local_dir": str(tiny / "model"), "dataset_path": str(tiny), "max_length": LENGTH, **more}
    return Options(**chosen)


def rows(tiny: Path, tmp_path: Path, *, packing: bool) -> Rows:
    chosen = options(tiny)
    encoder = documents.Encoder(hub.load_tokenizer(chosen), 300, chosen)
    read = documents.prepare(tmp_path / "data", documents.Sources([tiny / "val.jsonl"], []), encoder, False)
    return Rows(read, LENGTH, packing=packing)


def test_each_document_goes_into_the_fullest_row_that_has_room_and_none_is_lost() -> None:
    lengths = [7, 1, 10, 3, 5, 5, 9, 2, 8]
    packed = pack(lengths, 10)
    assert sorted(index for row in packed for index in row) == list(range(9))
    assert all(sum(lengths[index] for index in row) <= 10 for row in packed)
    assert len(packed) == 5, "50 tokens fill five rows of ten"


def test_rows_restart_positions_and_ask_for_nothing_across_documents(tiny: Path, tmp_path: Path) -> None:
    packed = rows(tiny, tmp_path, packing=True)
    batch = packed.batch([0], size=2)
    starts = (batch.positions[0] == 0).nonzero().flatten().tolist()
    assert len(starts) > 2
    assert all(batch.labels[0, start - 1] == IGNORED for start in starts[1:])
    assert (batch.labels[1] == IGNORED).all()
    learnt = [int((packed.batch([row], size=1).labels != IGNORED).sum()) for row in range(len(packed))]
    assert sum(learnt) == packed.targets(range(len(packed)))


def test_of_a_chat_only_the_answers_are_learnt_and_special_tokens_are_put_where_asked(tiny: Path) -> None:
    chosen = options(tiny, add_special_tokens=True)
    tokenizer = hub.load_tokenizer(chosen)
    encoder = documents.Encoder(tokenizer, 300, chosen)
    turns = [("user", "1 plus 1 is"), ("assistant", " 2."), ("user", "2 plus 2 is"), ("assistant", " 4.")]
    chat = {"messages": [{"role": role, "content": content} for role, content in turns]}
    tokens, learnt = encoder.encode(documents.Record("chat:1", chat))
    assert (
        tokenizer.decode([token for token, is_learnt in zip(tokens, learnt, strict=True) if is_learnt]) == " 2.\n 4.\n"
    )
    tokens, learnt = encoder.encode(documents.Record("pair:1", {"prompt": "1 plus 1 is", "completion": " 2."}))
    assert (tokens[0], tokens[-1]) == (tokenizer.bos_token_id, tokenizer.eos_token_id)
    assert tokenizer.decode([token for token, is_learnt in zip(tokens, learnt, strict=True) if is_learnt]) == " 2.</s>"


def test_packed_documents_have_the_loss_and_gradients_of_the_same_one_by_one_and_of_transformers_own(
    tiny: Path, tmp_path: Path
) -> None:
    import torch
    from transformers import AutoModelForCausalLM

    from orchestra.train.sft.attention import lay_out
    from orchestra.train.sft.model import make

    cpu = torch.device("cpu")
    loss_of = make(options(tiny, lora_rank=4), cpu)
    with torch.no_grad():  # a fresh adapter adds nothing: its gradients would be half zero
        for name, parameter in loss_of.named_parameters():
            if "lora_B" in name:
                parameter.normal_(std=0.05)
    found = []
    for packing in (True, False):
        some = rows(tiny, tmp_path, packing=packing)
        layout = lay_out(some.batch(range(len(some)), size=len(some)), cpu)
        loss = loss_of(layout.tokens, layout.positions, layout.labels, layout.attention)
        loss.backward()
        gradients = [parameter.grad.clone() for parameter in loss_of.parameters() if parameter.grad is not None]
        loss_of.zero_grad()
        found.append((float(loss.detach()), gradients))
    assert found[0][0] == pytest.approx(found[1][0], rel=1e-5)
    assert len(found[0][1]) == 28, "two matrices for each of seven layers, twice"
    assert all(
        torch.allclose(one, other, rtol=1e-3, atol=1e-4) for one, other in zip(*[f[1] for f in found], strict=True)
    )

    plain = AutoModelForCausalLM.from_pretrained(tiny / "model")
    whole = make(options(tiny), cpu)
    some, total = rows(tiny, tmp_path, packing=False), 0.0
    with torch.no_grad():
        for row in range(3):
            batch = some.batch([row], size=1)
            logits = plain(batch.tokens).logits[0]
            total += float(
                torch.nn.functional.cross_entropy(logits, batch.labels[0], ignore_index=IGNORED, reduction="sum")
            )
        layout = lay_out(some.batch(range(3), size=3), cpu)
        assert float(whole(*layout[:3], layout.attention)) == pytest.approx(total, rel=1e-5)


def test_cross_entropy_in_chunks_is_cross_entropy() -> None:
    import torch

    from orchestra.train.sft.loss import chunked_cross_entropy

    torch.manual_seed(0)
    hidden, head = torch.randn(37, 8, requires_grad=True), torch.randn(50, 8, requires_grad=True)
    labels = torch.randint(0, 50, (37,))
    labels[::5] = IGNORED
    plain = torch.nn.functional.cross_entropy(hidden @ head.t(), labels, ignore_index=IGNORED, reduction="sum")
    wanted = torch.autograd.grad(plain * 0.3, (hidden, head))
    chunked = chunked_cross_entropy(hidden, head, labels, chunk=10)
    got = torch.autograd.grad(chunked * 0.3, (hidden, head))
    assert torch.allclose(plain, chunked, rtol=1e-5)
    assert all(torch.allclose(one, other, atol=1e-5) for one, other in zip(wanted, got, strict=True))


def test_the_quick_adapter_computes_what_pefts_own_computes(tiny: Path) -> None:
    import torch
    from peft import LoraConfig, get_peft_model
    from transformers import AutoModelForCausalLM

    from orchestra.train.sft.quick_lora import QuickLora, quicken

    model = get_peft_model(
        AutoModelForCausalLM.from_pretrained(tiny / "model"),
        LoraConfig(r=4, target_modules="all-linear", init_lora_weights=False, task_type="CAUSAL_LM"),
    )
    tokens = torch.arange(20).reshape(2, 10)

    def run() -> tuple[Any, list[Any]]:
        logits = model(tokens).logits
        logits.square().sum().backward()
        gradients = [parameter.grad.clone() for parameter in model.parameters() if parameter.grad is not None]
        model.zero_grad()
        return logits.detach(), gradients

    theirs = run()
    quicken(model, fp8=False)
    assert sum(isinstance(module, QuickLora) for module in model.modules()) == 14
    ours = run()
    assert torch.allclose(theirs[0], ours[0], atol=1e-4)
    assert all(torch.allclose(one, other, rtol=1e-3, atol=1e-3) for one, other in zip(theirs[1], ours[1], strict=True))


def _file(folder: Path, content: str) -> Path:
    path = folder.parent / "mistaken" / "data.jsonl"  # beside the data that other tests train on
    path.parent.mkdir(exist_ok=True)
    path.write_text(content)
    return path


def bad_line(folder: Path) -> None:
    list(documents.read_jsonl(_file(folder, '{"text": "fine"}\n\n{"text": "cut\n')))


def no_object(folder: Path) -> None:
    list(documents.read_jsonl(_file(folder, "[1, 2]\n")))


def wrong_fields(folder: Path) -> None:
    chosen = options(folder)
    record = next(documents.read_jsonl(_file(folder, '{"question": "?"}\n')))
    documents.Encoder(None, 300, chosen).encode(record)


def another_models_tokenizer(folder: Path) -> None:
    chosen = options(folder)
    record = documents.Record("a.jsonl:7", {"text": "zzz"})
    documents.Encoder(hub.load_tokenizer(chosen), 10, chosen).encode(record)


def no_model_folder(folder: Path) -> None:
    hub.load_model(options(folder, model_local_dir="/models/gone"), None)


def not_cached(folder: Path) -> None:
    hub.load_model(options(folder, model_local_dir="", model_name="nobody/nothing", local_files_only=True), None)


def no_dataset(folder: Path) -> None:
    documents.find(options(folder, dataset_path=str(folder / "gone.jsonl")))


@pytest.mark.parametrize(
    ("mistake", "told"),
    [
        (bad_line, r"data\.jsonl:3: this line is not JSON: .*line 1 column"),
        (no_object, r"data\.jsonl:1: this line is not a JSON object but list"),
        (wrong_fields, r"data\.jsonl:1: a document needs .* this one has 'question'"),
        (another_models_tokenizer, r"a\.jsonl:7: token \d+ is beyond the model's vocabulary of 10"),
        (no_model_folder, r"the model folder /models/gone does not exist \(--model-local-dir or --model-name\)"),
        (not_cached, r"'nobody/nothing' is neither a folder here nor in the hub's cache, and --local-files-only"),
        (no_dataset, r"the dataset .*gone\.jsonl does not exist \(--dataset-path\)"),
    ],
)
def test_what_is_wrong_is_named_with_its_place(tiny: Path, mistake: Callable[[Path], None], told: str) -> None:
    with pytest.raises(Refused, match=told):
        mistake(tiny)


def test_without_the_hub_an_output_folder_or_sense_the_trainer_ends_with_a_word(tiny: Path, tmp_path: Path) -> None:
    def ends(*flags: str, **variables: str) -> str:
        done = subprocess.run(
            [*SFT, *flags], env=environment() | variables, capture_output=True, text=True, timeout=600
        )
        assert done.returncode == 2, done.stdout + done.stderr
        return done.stderr

    asked = ("--model_name=nobody/nothing", f"--dataset_path={tiny}", f"--output_dir={tmp_path / 'out'}")
    closed = ends(*asked, HF_ENDPOINT="http://127.0.0.1:9", HF_HOME=str(tmp_path), HUGGING_FACE_HUB_TOKEN="hf_geheim")  # noqa: S106
    assert "error: the tokenizer 'nobody/nothing' cannot be had from the hub (HF_TOKEN is set)" in closed
    assert "hf_geheim" not in closed
    (tmp_path / "file").write_text("")
    nowhere = ends(*asked[:2], f"--output_dir={tmp_path / 'file' / 'out'}")
    assert re.search(r"error: the output folder .*/file/out cannot be made: Not a directory", nowhere)
    assert "error: no data: give --dataset-path" in ends("--model-name=x")
    assert "error: --parallel tensor is not known. Known: ddp, fsdp, deepspeed." in ends(*asked, "--parallel=tensor")
    assert "--fp8 needs an adapter: give --lora-rank" in ends(*asked, "--fp8")


@pytest.mark.parametrize("spelling", ["HF_TOKEN", "HUGGINGFACE_HUB_TOKEN", "HUGGING_FACE_HUB_TOKEN"])
def test_the_token_is_found_under_each_of_its_names(monkeypatch: pytest.MonkeyPatch, spelling: str) -> None:
    for name in ("HF_TOKEN", "HUGGINGFACE_HUB_TOKEN", "HUGGING_FACE_HUB_TOKEN"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv(spelling, "hf_x")
    hub.adopt_token()
    assert os.environ["HF_TOKEN"] == "hf_x"  # noqa: S105


def test_all_weights_are_trained_and_the_model_is_written_as_transformers_reads_it(tiny: Path, tmp_path: Path) -> None:
    from transformers import AutoModelForCausalLM

    from orchestra.train.sft.training import Trainer

    Trainer(options(tiny, output_dir=str(tmp_path), epochs=2, batch=16, micro_batch=8, lr=3e-3)).run()
    scores = [json.loads((tmp_path / f"epoch-{epoch}" / "rank-0" / "metrics.json").read_text()) for epoch in (1, 2)]
    assert scores[1]["perplexity"] < scores[0]["perplexity"]
    model = AutoModelForCausalLM.from_pretrained(tmp_path / "best" / "rank-0")
    assert sum(parameter.numel() for parameter in model.parameters()) > 90_000
