"""Rows of equal length, filled with whole documents: the samples of a fine-tuning.

Which documents share a row is settled once, from their lengths alone. In a row, positions begin anew with each
document, no document sees another, and the last token of one does not have to foretell the first of the next.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from orchestra.train.sft.documents import Documents

IGNORED = -100


@dataclass(frozen=True)
class Batch:
    """Some rows, as tensors of [rows, length]."""

    tokens: torch.Tensor
    positions: torch.Tensor
    labels: torch.Tensor
    """For each token the one that should come next, or IGNORED."""
    documents: torch.Tensor
    """Numbers the documents of a row; -1 is padding."""

    def to(self, device: Any) -> Batch:
        """The same on a device."""
        parts = (self.tokens, self.positions, self.labels, self.documents)
        return Batch(*(part.to(device, non_blocking=True) for part in parts))

    def boundaries(self) -> torch.Tensor:
        """Where each document (or padding) begins when all rows are laid end to end, and the end of the last."""
        rows, length = self.documents.shape
        flat = self.documents.reshape(-1) + torch.arange(rows).repeat_interleave(length) * (length + 2)
        starts = torch.nonzero(flat[1:] != flat[:-1]).reshape(-1) + 1
        ends = torch.tensor([rows * length])
        return torch.cat([torch.zeros(1, dtype=torch.long), starts, ends]).to(torch.int32)


class Rows:
    """All rows of a set of documents."""

    def __init__(self, documents: Documents, length: int, *, packing: bool) -> None:
        self._documents = documents
        self._length = length
        lengths = documents.lengths
        self._rows = pack(lengths, length) if packing else [[index] for index in range(len(documents))]
        # A token is a target if it follows another of its document: the first of each cannot be foretold.
        learnt = np.asarray(documents.is_target).copy()
        learnt[documents.starts[:-1]] = False
        running = np.concatenate([[0], np.cumsum(learnt)])
        per_document = running[documents.starts[1:]] - running[documents.starts[:-1]]
        self._targets = np.array([per_document[row].sum() for row in self._rows], np.int64)

    def __len__(self) -> int:
        return len(self._rows)

    def targets(self, rows: Sequence[int]) -> int:
        """How many tokens of these rows are to be foretold."""
        return int(self._targets[list(rows)].sum())

    def tokens(self, rows: Sequence[int]) -> int:
        """How many tokens these rows hold, without padding."""
        return int(sum(self._documents.lengths[self._rows[row]].sum() for row in rows))

    def batch(self, rows: Sequence[int], *, size: int) -> Batch:
        """These rows, filled up with empty ones to `size`."""
        shape = (size, self._length)
        tokens, positions = np.zeros(shape, np.int64), np.zeros(shape, np.int64)
        labels, numbers = np.full(shape, IGNORED, np.int64), np.full(shape, -1, np.int64)
        starts = self._documents.starts
        for line, row in enumerate(rows):
            at = 0
            for number, index in enumerate(self._rows[row]):
                piece = slice(starts[index], starts[index + 1])
                text, learnt = self._documents.tokens[piece], self._documents.is_target[piece]
                end = at + len(text)
                tokens[line, at:end] = text
                positions[line, at:end] = np.arange(len(text))
                labels[line, at : end - 1] = np.where(learnt[1:], text[1:], IGNORED)
                numbers[line, at:end] = number
                at = end
            positions[line, at:] = np.arange(self._length - at)
        positions[len(rows) :] = np.arange(self._length)
        return Batch(*(torch.from_numpy(part) for part in (tokens, positions, labels, numbers)))


def pack(lengths: Sequence[int], capacity: int) -> list[list[int]]:
    """Put each item into the fullest row that still has room for it, the longest items first."""
    order = np.argsort(-np.asarray(lengths), kind="stable")
    rows: list[list[int]] = []
    with_room: dict[int, list[int]] = {}
    rooms = 0  # bit n: some row has room for exactly n more
    for index in order.tolist():
        length = int(lengths[index])
        fitting = rooms >> length
        if fitting:
            room = length + (fitting & -fitting).bit_length() - 1
            row = with_room[room].pop()
            if not with_room[room]:
                rooms &= ~(1 << room)
        else:
            room, row = capacity, len(rows)
            rows.append([])
        rows[row].append(index)
        left = room - length
        if left:
            with_room.setdefault(left, []).append(row)
            rooms |= 1 << left
    return rows
