"""A tiny corpus that the project makes itself: sentences of a small grammar, as characters.

    python -m orchestra.train.gpt.corpus data          # train.bin, val.bin and vocabulary.json

The same seed gives the same bytes everywhere. It has enough order for a small model to learn in a minute, and enough
chance that it cannot learn it by heart.
"""

from __future__ import annotations

import json
import random
import sys
from pathlib import Path

from orchestra.train.tokens import write_tokens

VOCABULARY = "vocabulary.json"
_SUBJECTS = ("the smith", "a sailor", "the old queen", "my neighbour", "one of the foxes", "the clock maker")
_VERBS = ("carries", "forgets", "paints", "repairs", "follows", "sings about", "counts")
_OBJECTS = ("a lantern", "the river", "seven stones", "the northern road", "her letter", "an empty boat")
_ENDS = ("at dawn", "in the rain", "for the third time", "without a word", "near the harbour", "again and again")
_ALPHABET = "\n ,.abcdefghijklmnopqrstuvwxyz"


def text(characters: int, seed: int) -> str:
    """So much of the corpus."""
    chance = random.Random(seed)  # noqa: S311 - made to be the same everywhere
    sentences = []
    length = 0
    while length < characters:
        words = [chance.choice(part) for part in (_SUBJECTS, _VERBS, _OBJECTS)]
        end = f", {chance.choice(_ENDS)}" if chance.random() < 0.5 else ""
        sentences.append(" ".join(words) + end + ".\n")
        length += len(sentences[-1])
    return "".join(sentences)[:characters]


def write(folder: str | Path, *, train: int = 100_000, validation: int = 10_000, seed: int = 7) -> int:
    """Write the files of a data folder. Returns the size of the vocabulary."""
    folder = Path(folder)
    ids = {character: number for number, character in enumerate(_ALPHABET)}
    for name, size, part in (("train.bin", train, seed), ("val.bin", validation, seed + 1)):
        write_tokens(folder / name, (ids[character] for character in text(size, part)), vocabulary=len(ids))
    (folder / VOCABULARY).write_text(json.dumps(list(_ALPHABET)))
    return len(ids)


if __name__ == "__main__":
    target = sys.argv[1] if len(sys.argv) > 1 else "data"
    print(f"{target}: a vocabulary of {write(target)} characters")
