"""Token files: `.bin`, nothing but token ids one after the other, mapped into memory and never read as a whole."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

from orchestra.train.world import Refused

_SIZES = {"uint16": 2, "uint32": 4}


class TokenFile:
    """A `.bin` file as samples of `length` tokens each, every one with its successor as the target.

    Ids are uint16 where the vocabulary fits into it, else uint32, unless `dtype` says otherwise. Raises `Refused` for
    a file that is missing, cut short, or too small for one sample; and, naming the place, for an id beyond the
    vocabulary as soon as it is read.
    """

    def __init__(self, path: str | Path, *, vocabulary: int, length: int, dtype: str | None = None) -> None:
        import numpy as np

        self.path = Path(path)
        self.vocabulary = vocabulary
        self.length = length
        self.dtype = dtype or ("uint16" if vocabulary <= 1 << 16 else "uint32")
        if self.dtype not in _SIZES:
            raise Refused(f"{path}: tokens are {' or '.join(_SIZES)}, not {self.dtype}")
        size = self._bytes()
        width = _SIZES[self.dtype]
        if size % width:
            raise Refused(
                f"{path} is cut short: {size} bytes are no whole number of {self.dtype} tokens; the last one begins at "
                f"byte {size - size % width}. Make the file anew."
            )
        self.tokens = size // width
        if self.tokens < length + 1:
            raise Refused(f"{path} has {self.tokens} tokens, and one sample needs {length + 1} (length {length})")
        self._ids: Any = np.memmap(self.path, dtype=self.dtype, mode="r")

    def __len__(self) -> int:
        return (self.tokens - 1) // self.length

    def sample(self, index: int) -> Any:
        """The `length` + 1 ids of a sample, as int64. Each sample begins with the last id of the one before."""
        import numpy as np

        first = index * self.length
        try:
            ids = np.asarray(self._ids[first : first + self.length + 1]).astype(np.int64)
        except ValueError as error:
            raise Refused(f"{self.path} cannot be read at token {first}: {error}") from error
        if ids.max() >= self.vocabulary:
            place = int((ids >= self.vocabulary).argmax())
            byte = (first + place) * _SIZES[self.dtype]
            raise Refused(
                f"{self.path}: id {ids[place]} at byte {byte} (token {first + place}) is beyond the vocabulary of "
                f"{self.vocabulary}. Was the file made with another tokenizer, or with wider ids than {self.dtype}?"
            )
        return ids

    def batch(self, indices: Iterable[int]) -> tuple[Any, Any]:
        """Inputs and targets of several samples, as tensors."""
        import numpy as np
        import torch

        rows = torch.from_numpy(np.stack([self.sample(index) for index in indices]))
        return rows[:, :-1].contiguous(), rows[:, 1:].contiguous()

    def _bytes(self) -> int:
        try:
            return self.path.stat().st_size
        except OSError as error:
            raise Refused(f"the token file {self.path} cannot be read: {error.strerror}") from error


def write_tokens(path: str | Path, ids: Iterable[int], *, vocabulary: int) -> int:
    """Write a `.bin` file, there in full or not at all. Returns the number of tokens."""
    import numpy as np

    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    array = np.asarray(list(ids), dtype=np.int64)
    if array.size and (array.min() < 0 or array.max() >= vocabulary):
        raise ValueError(f"{path}: ids from {array.min()} to {array.max()}, beyond the vocabulary of {vocabulary}")
    draft = path.with_name(path.name + ".tmp")
    array.astype("uint16" if vocabulary <= 1 << 16 else "uint32").tofile(draft)
    draft.replace(path)
    return int(array.size)
