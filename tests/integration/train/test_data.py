"""Token files, JSONL and packing, with real files."""

import json
from pathlib import Path
from typing import Any

import pytest

from orchestra.train import Refused
from orchestra.train.jsonl import Message, Record, read
from orchestra.train.packing import NO_DOCUMENT, NO_TARGET, Encoded, Packs, build
from orchestra.train.tokens import TokenFile, write_tokens

pytestmark = pytest.mark.torch


def test_samples_follow_each_other_and_targets_are_the_next_ids(tmp_path: Path) -> None:
    write_tokens(tmp_path / "t.bin", range(100), vocabulary=100)
    data = TokenFile(tmp_path / "t.bin", vocabulary=100, length=8)
    assert (data.dtype, data.tokens, len(data)) == ("uint16", 100, 12)
    inputs, targets = data.batch([0, 11])
    assert inputs.tolist() == [list(range(8)), list(range(88, 96))]
    assert targets.tolist() == [list(range(1, 9)), list(range(89, 97))]


def test_a_large_vocabulary_has_wide_ids(tmp_path: Path) -> None:
    write_tokens(tmp_path / "t.bin", [70_000, 1, 2], vocabulary=70_001)
    data = TokenFile(tmp_path / "t.bin", vocabulary=70_001, length=2)
    assert data.sample(0).tolist() == [70_000, 1, 2]
    assert (tmp_path / "t.bin").stat().st_size == 12


def test_a_file_that_is_missing_cut_short_or_too_small_is_refused_by_name(tmp_path: Path) -> None:
    path = tmp_path / "t.bin"
    with pytest.raises(Refused, match=r"token file .*t.bin cannot be read: No such file"):
        TokenFile(path, vocabulary=10, length=2)
    path.write_bytes(bytes(21))
    with pytest.raises(Refused, match=r"t.bin is cut short: 21 bytes .* the last one begins at byte 20"):
        TokenFile(path, vocabulary=10, length=2)
    with pytest.raises(Refused, match=r"t.bin is cut short: 21 bytes .* uint32 tokens; the last one begins at byte 20"):
        TokenFile(path, vocabulary=10, length=2, dtype="uint32")
    path.write_bytes(bytes(6))
    with pytest.raises(Refused, match=r"has 3 tokens, and one sample needs 4"):
        TokenFile(path, vocabulary=10, length=3)


def test_an_id_beyond_the_vocabulary_is_named_with_its_place(tmp_path: Path) -> None:
    write_tokens(tmp_path / "t.bin", [*range(9), 55, 1, 2], vocabulary=60)
    data = TokenFile(tmp_path / "t.bin", vocabulary=50, length=4)
    assert data.sample(0).tolist() == [0, 1, 2, 3, 4]
    with pytest.raises(Refused, match=r"t.bin: id 55 at byte 18 \(token 9\) is beyond the vocabulary of 50"):
        data.sample(2) if len(data) > 2 else data.batch([1, 2])
    with pytest.raises(ValueError, match="beyond the vocabulary of 5"):
        write_tokens(tmp_path / "u.bin", [7], vocabulary=5)
    assert not (tmp_path / "u.bin").exists()


def lines(path: Path, *records: Any) -> Path:
    path.write_text("".join(record if isinstance(record, str) else json.dumps(record) + "\n" for record in records))
    return path


def test_texts_and_chats_are_read(tmp_path: Path) -> None:
    chat = {"messages": [{"role": "user", "content": "hi"}, {"role": "assistant", "content": "ho"}]}
    path = lines(tmp_path / "a.jsonl", {"text": "one"}, "\n", chat, {"instruction": "hi", "output": "ho"})
    first, second, third = read(path)
    assert (first.text, first.place) == ("one", f"{path}:1")
    assert second.messages == third.messages == (Message("user", "hi"), Message("assistant", "ho"))
    assert second.place == f"{path}:3"


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        ("{not json}\n", r"a.jsonl:2: not JSON: "),
        ('["a"]\n', r"a.jsonl:2: a list instead of an object"),
        ('{"words": 1}\n', r"a.jsonl:2: no text, no messages, .* it has words"),
        ('{"messages": ["a"]}\n', r"a.jsonl:2: each message is an object"),
    ],
)
def test_a_line_that_is_no_record_is_named(tmp_path: Path, line: str, reason: str) -> None:
    with pytest.raises(Refused, match=reason):
        list(read(lines(tmp_path / "a.jsonl", {"text": "fine"}, line)))


def encode(record: Record) -> Encoded:
    assert record.text is not None
    return Encoded([ord(character) - 97 for character in record.text])


def test_documents_are_packed_by_an_index_that_is_built_once(tmp_path: Path) -> None:
    path = lines(tmp_path / "a.jsonl", *({"text": text} for text in ("abcde", "fgh", "ij", "klmnopqrstuvw", "x")))
    packs = Packs(build([path], encode, tmp_path / "cache", identity="letters"), length=8)
    assert len(packs) == 3
    assert packs.filled == 1.0

    def refuse(_: Record) -> Encoded:
        raise AssertionError("tokenized again")

    again = Packs(build([path], refuse, tmp_path / "cache", identity="letters"), length=8)
    batch = again.batch(range(3))
    assert batch.inputs.tolist() == packs.batch(range(3)).inputs.tolist()
    assert sorted(batch.inputs.flatten().tolist()) == sorted(range(24))
    for inputs, targets, positions, documents in zip(
        batch.inputs.tolist(), batch.targets.tolist(), batch.positions.tolist(), batch.documents.tolist(), strict=True
    ):
        for at in range(8):
            ends = at == 7 or documents[at + 1] != documents[at]
            assert targets[at] == (NO_TARGET if ends else inputs[at + 1])
            assert positions[at] == (0 if at == 0 or documents[at - 1] != documents[at] else positions[at - 1] + 1)


def test_what_is_not_learned_and_what_is_padding_has_no_target(tmp_path: Path) -> None:
    path = lines(tmp_path / "a.jsonl", {"text": "abc"})
    learned = [False, False, True]
    documents = build([path], lambda _: Encoded([5, 6, 7], learned), tmp_path / "cache", identity="masked")
    batch = Packs(documents, length=5).batch([0])
    assert batch.targets.tolist() == [[NO_TARGET, 7, NO_TARGET, NO_TARGET, NO_TARGET]]
    assert batch.documents.tolist() == [[0, 0, 0, NO_DOCUMENT, NO_DOCUMENT]]


def test_an_index_cut_short_is_refused_and_a_failed_one_is_built_anew(tmp_path: Path) -> None:
    path = lines(tmp_path / "a.jsonl", {"text": "abc"}, "{broken\n")
    with pytest.raises(Refused, match=r"a.jsonl:2: not JSON"):
        build([path], encode, tmp_path / "cache", identity="x")
    lines(path, {"text": "abc"})
    documents = build([path], encode, tmp_path / "cache", identity="x")
    (documents.folder / "tokens.bin").write_bytes(bytes(4))
    with pytest.raises(Refused, match="cut short"):
        build([path], encode, tmp_path / "cache", identity="x")


def test_packed_loss_and_gradients_are_those_of_the_documents_one_by_one() -> None:
    from integration.train.packed_on_gpu import packed_difference

    assert packed_difference("cpu") < 1e-5
