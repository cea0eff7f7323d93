"""Documents packed into rows of one length, by an index that is built once.

    documents = build(["chat.jsonl"], encode, "cache", identity="my-tokenizer")   # tokenizes once, for all later runs
    packs = Packs(documents, length=2048)
    batch = packs.batch([0, 1])       # inputs, targets, positions, documents: tensors of 2 x 2048

A row holds several documents, none of which sees another: positions restart with each, `documents` says which token
belongs to which (attention.py masks by it), and a document's last token has no target. So loss and gradients are
those of the documents run one by one. Only one rank may build; the others wait for the file that it writes last.
"""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from orchestra.train import jsonl
from orchestra.train.durable import replace_json
from orchestra.train.world import Refused

NO_TARGET = -100
"""What cross_entropy ignores."""
NO_DOCUMENT = -1
"""Padding."""
_INDEX = "index.json"


@dataclass(frozen=True)
class Encoded:
    """A record as tokens; `trained` says which of them are learned (all, if None)."""

    tokens: Sequence[int]
    trained: Sequence[bool] | None = None


class Documents:
    """Tokenized documents in a folder, mapped into memory."""

    def __init__(self, folder: Path) -> None:
        import numpy as np

        self.folder = folder
        about = json.loads((folder / _INDEX).read_text())
        self.tokens_total: int = about["tokens"]
        shapes = (("tokens", "uint32"), ("trained", "uint8"), ("ends", "int64"))
        if not about["documents"]:
            raise Refused(f"{about['files']}: there is no document in it")
        arrays = [np.memmap(folder / f"{name}.bin", dtype=kind, mode="r") for name, kind in shapes]
        self._tokens, self._trained, self._ends = arrays
        if len(self._ends) != about["documents"] or len(self._tokens) != about["tokens"]:
            raise Refused(f"the index in {folder} is cut short: delete the folder, and it is built anew")

    def __len__(self) -> int:
        return len(self._ends)

    def lengths(self) -> Any:
        """The number of tokens of each."""
        import numpy as np

        return np.diff(self._ends, prepend=0)

    def part(self, document: int, begin: int, end: int) -> tuple[Any, Any]:
        """Tokens and which of them are learned."""
        first = int(self._ends[document - 1]) if document else 0
        return self._tokens[first + begin : first + end], self._trained[first + begin : first + end]


def build(
    files: Iterable[str | Path], encode: Callable[[jsonl.Record], Encoded], cache: str | Path, *, identity: str
) -> Documents:
    """Tokenize JSONL files, or find them tokenized: the same files (by size and time) and the same `identity`.

    `identity` names all that `encode` depends on: tokenizer, template, options. Call it on one rank first. Raises
    `Refused` with file and line for a line that is no record.
    """
    import numpy as np

    paths = [Path(file) for file in files]
    folder = Path(cache) / f"packed-{_fingerprint(paths, identity)}"
    if (folder / _INDEX).exists():
        return Documents(folder)
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    ends: list[int] = []
    total = 0
    with (folder / "tokens.bin").open("wb") as tokens, (folder / "trained.bin").open("wb") as trained:
        for path in paths:
            for record in jsonl.read(path):
                encoded = encode(record)
                if not encoded.tokens:
                    continue
                learned = encoded.trained if encoded.trained is not None else [True] * len(encoded.tokens)
                if len(learned) != len(encoded.tokens):
                    raise Refused(f"{record.place}: {len(encoded.tokens)} tokens, {len(learned)} marks what is learned")
                tokens.write(np.asarray(encoded.tokens, dtype="uint32").tobytes())
                trained.write(np.asarray(learned, dtype="uint8").tobytes())
                total += len(encoded.tokens)
                ends.append(total)
    np.asarray(ends, dtype="int64").tofile(folder / "ends.bin")
    about = {"files": [str(path) for path in paths], "identity": identity, "documents": len(ends), "tokens": total}
    replace_json(folder / _INDEX, about)  # last: a folder without it was not finished
    return Documents(folder)


@dataclass(frozen=True)
class Batch:
    """Rows of packed documents, as tensors of rows x length."""

    inputs: Any
    targets: Any
    positions: Any
    documents: Any
    """The number of the document within the row, or NO_DOCUMENT."""


class Packs:
    """Rows of `length` tokens, filled as well as can be: each document goes to the fullest row that has room.

    The same documents and length always give the same rows. A document longer than a row is cut into several.
    """

    def __init__(self, documents: Documents, length: int) -> None:
        self.length = length
        self._documents = documents
        self._rows = _fit([int(size) for size in documents.lengths()], length)

    def __len__(self) -> int:
        return len(self._rows)

    @property
    def filled(self) -> float:
        """The share of tokens that are no padding."""
        return self._documents.tokens_total / (len(self._rows) * self.length)

    def batch(self, rows: Iterable[int]) -> Batch:
        """Several rows."""
        import numpy as np
        import torch

        chosen = list(rows)
        shape = (len(chosen), self.length)
        inputs, targets = np.zeros(shape, dtype=np.int64), np.full(shape, NO_TARGET, dtype=np.int64)
        positions, numbers = np.zeros(shape, dtype=np.int64), np.full(shape, NO_DOCUMENT, dtype=np.int64)
        for line, row in enumerate(chosen):
            at = 0
            for number, (document, begin, end) in enumerate(self._rows[row]):
                tokens, trained = self._documents.part(document, begin, end)
                span = slice(at, at + end - begin)
                inputs[line, span] = tokens
                positions[line, span] = np.arange(end - begin)
                numbers[line, span] = number
                goals = np.where(trained[1:] != 0, tokens[1:].astype(np.int64), NO_TARGET)
                targets[line, at : at + end - begin - 1] = goals
                at = span.stop
        return Batch(*(torch.from_numpy(array) for array in (inputs, targets, positions, numbers)))


def _fit(lengths: list[int], capacity: int) -> list[list[tuple[int, int, int]]]:
    """Best fit, longest first: rows of (document, begin, end). A heap of open rows by room left would search; this
    keeps, for each amount of room, the rows that have it, and looks at no more than `capacity` amounts.
    """
    parts = []
    for document, length in enumerate(lengths):
        for begin in range(0, length, capacity):
            parts.append((min(capacity, length - begin), document, begin))
    parts.sort(key=lambda part: (-part[0], part[1], part[2]))
    rows: list[list[tuple[int, int, int]]] = []
    with_room: list[list[int]] = [[] for _ in range(capacity + 1)]
    next_with_room = _NextAtLeast(capacity + 1)
    for size, document, begin in parts:
        room = next_with_room.find(size)
        if room is None:
            rows.append([])
            row, room = len(rows) - 1, capacity
        else:
            row = with_room[room].pop()
            if not with_room[room]:
                next_with_room.remove(room)
        rows[row].append((document, begin, begin + size))
        left = room - size
        if left > 0:
            with_room[left].append(row)
            next_with_room.add(left)
    return rows


class _NextAtLeast:
    """A set of small numbers that finds its least member that is not below a bound, in a few steps (bits of an int)."""

    def __init__(self, bound: int) -> None:
        self._bits = 0
        self._bound = bound

    def add(self, number: int) -> None:
        self._bits |= 1 << number

    def remove(self, number: int) -> None:
        self._bits &= ~(1 << number)

    def find(self, least: int) -> int | None:
        above = self._bits >> least
        return least + (above & -above).bit_length() - 1 if above else None


def _fingerprint(paths: list[Path], identity: str) -> str:
    digest = hashlib.sha256(identity.encode())
    for path in paths:
        try:
            about = path.stat()
        except OSError as error:
            raise Refused(f"{path} cannot be read: {error.strerror}") from error
        digest.update(f"\0{path.resolve()}\0{about.st_size}\0{about.st_mtime_ns}".encode())
    return digest.hexdigest()[:16]
