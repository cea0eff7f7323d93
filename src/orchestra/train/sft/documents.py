"""Documents to train on: read, turned into tokens once, and kept in files that all ranks map into memory.

A record is one of
    {"messages": [{"role": "user", "content": "..."}, {"role": "assistant", "content": "..."}]}   learns the answers
    {"prompt": "...", "completion": "..."}                                                        learns the completion
    {"text": "..."}                                                                               learns everything
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from orchestra.train.durable import sync_folder
from orchestra.train.sft.options import Options
from orchestra.train.world import Refused

_VALIDATION = ("val", "validation", "valid", "eval", "test")
_TEMPLATE = (
    "{% for m in messages %}<|{{ m['role'] }}|>\n{{ m['content'] }}\n{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>\n{% endif %}"
)


@dataclass(frozen=True)
class Record:
    """One document as it was read, and the place it came from."""

    place: str
    content: dict[str, Any]


@dataclass(frozen=True)
class Sources:
    """Where the documents of a training lie."""

    train: list[Path]
    validation: list[Path]
    dataset: Any = None
    """A dataset of the `datasets` library instead of files: split name -> rows."""

    def records(self, validation: bool) -> Iterator[Record]:
        """All records, in order."""
        if self.dataset is None:
            for path in self.validation if validation else self.train:
                yield from read_jsonl(path)
            return
        names = [name for name in self.dataset if (name in _VALIDATION) == validation and name != "unsupervised"]
        for name in names[:1] if validation else names:
            for number, row in enumerate(self.dataset[name]):
                yield Record(f"{name} row {number}", dict(row))

    def fingerprint(self) -> str:
        """Another one when the data is another."""
        if self.dataset is not None:
            return " ".join(f"{name}:{getattr(rows, '_fingerprint', len(rows))}" for name, rows in self.dataset.items())
        files = [
            (str(path.resolve()), path.stat().st_size, path.stat().st_mtime_ns) for path in self.train + self.validation
        ]
        return json.dumps(files)


def find(options: Options) -> Sources:
    """The documents that the options name."""
    path = Path(options.dataset_path)
    validation = [_existing(Path(options.val_path), "--val-path")] if options.val_path else []
    if path.is_file():
        beside = [] if validation else [path.with_name(f"{name}.jsonl") for name in _VALIDATION]
        return Sources([path], validation or [other for other in beside if other.is_file() and other != path][:1])
    if path.is_dir():
        return _find_in_folder(path, validation)
    if options.dataset_path.startswith(("/", "./", "../")) or path.suffix in (".jsonl", ".json"):
        raise Refused(f"the dataset {path} does not exist (--dataset-path). Is its volume mounted?")
    return Sources([], validation, _from_hub(options))


def _find_in_folder(folder: Path, validation: list[Path]) -> Sources:
    import datasets

    if (folder / "dataset_dict.json").exists():
        return Sources([], [], dict(datasets.load_from_disk(str(folder))))
    if (folder / "dataset_info.json").exists():
        return Sources([], [], {"train": datasets.load_from_disk(str(folder))})
    files = sorted(folder.rglob("*.jsonl"))
    held_out = validation or [path for path in files if path.stem in _VALIDATION]
    train = [path for path in files if path not in held_out]
    if not train:
        raise Refused(f"the dataset folder {folder} holds no *.jsonl to train on, and `datasets` did not save it.")
    return Sources(train, held_out)


def _from_hub(options: Options) -> Any:
    import datasets

    if options.local_files_only:
        raise Refused(
            f"the dataset {options.dataset_path!r} is no file or folder here; --local-files-only forbids to fetch it."
        )
    try:
        return dict(datasets.load_dataset(options.dataset_path))
    except Exception as error:  # the library raises whatever its transport raises
        reason = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
        raise Refused(
            f"the dataset {options.dataset_path!r} is no file or folder here and cannot be had from the hub: {reason}"
        ) from error


def read_jsonl(path: Path) -> Iterator[Record]:
    """The records of a file, one a line. Raises `Refused` with file and line."""
    try:
        with path.open("rb") as file:
            for number, line in enumerate(file, 1):
                if line.strip():
                    yield Record(f"{path}:{number}", _decoded(line, f"{path}:{number}"))
    except OSError as error:
        raise Refused(f"{path} cannot be read: {error.strerror}") from error


def _decoded(line: bytes, place: str) -> dict[str, Any]:
    try:
        content = json.loads(line)
    except ValueError as error:
        raise Refused(f"{place}: this line is not JSON: {error}") from error
    if not isinstance(content, dict):
        raise Refused(f"{place}: this line is not a JSON object but {type(content).__name__}")
    return content


@dataclass(frozen=True)
class Documents:
    """Tokens of all documents in a row, which of them are targets, and where each document begins."""

    tokens: Any
    is_target: Any
    starts: Any
    """One more than there are documents: the last is the end."""

    def __len__(self) -> int:
        return len(self.starts) - 1

    @property
    def lengths(self) -> Any:
        """Tokens in each document."""
        return np.diff(self.starts)

    def subset(self, chosen: Any) -> Documents:
        """Some of the documents."""
        pieces = [slice(self.starts[index], self.starts[index + 1]) for index in chosen]
        if not pieces:
            return Documents(self.tokens[:0], self.is_target[:0], np.zeros(1, np.int64))
        starts = np.concatenate([[0], np.cumsum(self.lengths[chosen])]).astype(np.int64)
        tokens = np.concatenate([self.tokens[piece] for piece in pieces])
        return Documents(tokens, np.concatenate([self.is_target[piece] for piece in pieces]), starts)


class Encoder:
    """Turns records into tokens."""

    def __init__(self, tokenizer: Any, vocabulary: int, options: Options) -> None:
        self._tokenizer = tokenizer
        self._vocabulary = vocabulary
        self._options = options
        self.cut = 0
        """Documents that were longer than a row."""

    def encode(self, record: Record) -> tuple[list[int], list[bool]]:
        """The tokens of a document, and which of them are to be learnt. Raises `Refused` with the place."""
        tokens, targets = self._pieces(record)
        if not tokens:
            raise Refused(f"{record.place}: this document has no tokens")
        if max(tokens) >= self._vocabulary:
            raise Refused(
                f"{record.place}: token {max(tokens)} is beyond the model's vocabulary of {self._vocabulary}. The "
                f"tokenizer {self._options.tokenizer} belongs to another model."
            )
        if len(tokens) > self._options.max_length:
            self.cut += 1
        return tokens[: self._options.max_length], targets[: self._options.max_length]

    def _pieces(self, record: Record) -> tuple[list[int], list[bool]]:
        content = record.content
        if isinstance(content.get("messages"), list):
            return self._chat(content["messages"], record.place)
        if isinstance(content.get("prompt"), str) and isinstance(content.get("completion"), str):
            prompt, completion = self._text(content["prompt"]), self._text(content["completion"])
            tokens = self._between_special(prompt + completion)
            before = len(self._between_special(prompt)) - self._ends
            return tokens, [position >= before for position in range(len(tokens))]
        if isinstance(content.get("text"), str):
            tokens = self._between_special(self._text(content["text"]))
            return tokens, [True] * len(tokens)
        raise Refused(
            f'{record.place}: a document needs "messages" (a list), "prompt" and "completion", or "text" (strings); '
            f"this one has {', '.join(map(repr, content)) or 'nothing'}"
        )

    def _text(self, text: str) -> list[int]:
        tokens: list[int] = self._tokenizer(text, add_special_tokens=False)["input_ids"]
        return tokens

    @property
    def _ends(self) -> int:
        return int(self._options.add_special_tokens and self._tokenizer.eos_token_id is not None)

    def _between_special(self, tokens: list[int]) -> list[int]:
        if not self._options.add_special_tokens:
            return tokens
        begin, end = self._tokenizer.bos_token_id, self._tokenizer.eos_token_id
        return [*([begin] if begin is not None else []), *tokens, *([end] if end is not None else [])]

    def _chat(self, messages: list[Any], place: str) -> tuple[list[int], list[bool]]:
        for message in messages:
            if not (isinstance(message, dict) and isinstance(message.get("role"), str) and "content" in message):
                raise Refused(f'{place}: each of "messages" needs a "role" and a "content"')
        text, spans = "", []
        for count, message in enumerate(messages, 1):
            if message["role"] == "assistant":
                begin = len(self._rendered(messages[: count - 1], asking=True))
                text = self._rendered(messages[:count], asking=False)
                spans.append((begin, len(text)))
        text = self._rendered(messages, asking=False)
        tokens: list[int] = []
        targets: list[bool] = []
        at = 0
        for begin, end in [*spans, (len(text), len(text))]:
            for piece, learnt in ((text[at:begin], False), (text[begin:end], True)):
                encoded = self._text(piece)
                tokens += encoded
                targets += [learnt] * len(encoded)
            at = end
        return tokens, targets

    def _rendered(self, messages: list[Any], asking: bool) -> str:
        template = None if self._tokenizer.chat_template else _TEMPLATE
        if not messages:
            return ""
        text: str = self._tokenizer.apply_chat_template(
            messages, tokenize=False, add_generation_prompt=asking, chat_template=template
        )
        return text


def prepare(folder: Path, sources: Sources, encoder: Encoder, validation: bool) -> Documents:
    """Turn all records into tokens and keep them in a folder, which appears when it is complete. On one rank."""
    tokens: list[Any] = []
    targets: list[Any] = []
    starts = [0]
    for record in sources.records(validation):
        encoded, learnt = encoder.encode(record)
        tokens.append(np.asarray(encoded, np.int32))
        targets.append(np.asarray(learnt, np.bool_))
        starts.append(starts[-1] + len(encoded))
    documents = Documents(
        np.concatenate(tokens) if tokens else np.zeros(0, np.int32),
        np.concatenate(targets) if targets else np.zeros(0, np.bool_),
        np.asarray(starts, np.int64),
    )
    draft = folder.with_name(f"tmp-{folder.name}-{os.getpid()}")
    shutil.rmtree(draft, ignore_errors=True)
    draft.mkdir(parents=True)
    for name in ("tokens", "is_target", "starts"):
        np.save(draft / f"{name}.npy", getattr(documents, name))
    sync_folder(draft)
    if not folder.exists():
        draft.rename(folder)
    return documents


def load(folder: Path) -> Documents:
    """What `prepare` kept, mapped into memory."""
    return Documents(*(np.load(folder / f"{name}.npy", mmap_mode="r") for name in ("tokens", "is_target", "starts")))


def digest(*facts: str) -> str:
    """A short name for a set of facts."""
    return hashlib.sha256("\0".join(facts).encode()).hexdigest()[:16]


def _existing(path: Path, flag: str) -> Path:
    if not path.is_file():
        raise Refused(f"the file {path} does not exist ({flag}).")
    return path
