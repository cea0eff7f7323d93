"""The nearest right spelling of a wrong word."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


def nearest(word: str, right: Iterable[str]) -> str | None:
    """The right word that `word` was most likely meant to be, if any is near.

    Case and punctuation are not held against it: `num_gpus`, `numGpus` and `NumGPUs` all mean `numGPUs`.
    """
    candidates = sorted(set(right))
    folded = {_fold(candidate): candidate for candidate in candidates}
    if _fold(word) in folded:
        return folded[_fold(word)]
    close = difflib.get_close_matches(_fold(word), folded, n=1, cutoff=0.7)
    return folded[close[0]] if close else None


def did_you_mean(word: str, right: Iterable[str]) -> str:
    """A mend for a wrong word: the nearest right one, else all of them when they are few, else nothing."""
    choices = sorted(set(right))
    guess = nearest(word, choices)
    if guess:
        return f"did you mean {guess}?"
    return f"one of {', '.join(choices)}" if 0 < len(choices) <= 16 else ""


def _fold(word: str) -> str:
    return "".join(letter for letter in word.lower() if letter.isalnum())
