"""Text from a model: `python -m orchestra.train.gpt.sampling --output-dir out --prompt "the smith"`."""

from __future__ import annotations

import json
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from orchestra.train.gpt.corpus import VOCABULARY
from orchestra.train.gpt.model import Gpt, Shape
from orchestra.train.options import option, parse
from orchestra.train.world import Refused


@dataclass(frozen=True)
class Options:
    """Print what a trained GPT writes."""

    output_dir: str = option("out", "folder of the training, with current_ckpt.pt")
    data_dir: str = option("data", "folder with the vocabulary; without one, ids are printed")
    prompt: str = option("", "what it begins with: text, or ids with spaces between")
    tokens: int = option(200, "how much it writes", least=1)
    temperature: float = option(0.8, "0: always the likeliest token", least=0)
    top_k: int = option(0, "only the k likeliest tokens; 0: all", least=0)
    seed: int = option(1, "of the choice", least=0)


@torch.inference_mode()
def sample(
    model: Gpt, prompt: list[int], count: int, *, temperature: float = 0.8, top_k: int = 0, seed: int = 1
) -> list[int]:
    """`count` ids that follow the prompt."""
    device = model.tokens.weight.device
    chance = torch.Generator().manual_seed(seed)
    ids = list(prompt) or [0]
    for _ in range(count):
        scores = model.logits(torch.tensor([ids[-model.shape.block_size :]], device=device))[0].cpu()
        if temperature == 0:
            ids.append(int(scores.argmax()))
            continue
        if top_k:
            scores[scores < scores.topk(min(top_k, len(scores))).values[-1]] = -torch.inf
        ids.append(int(torch.multinomial((scores / temperature).softmax(dim=0), 1, generator=chance)))
    return ids[len(prompt) or 1 :]


class Vocabulary:
    """Characters and ids, where the data folder has a vocabulary; else ids only."""

    def __init__(self, data_dir: str | Path) -> None:
        path = Path(data_dir) / VOCABULARY
        self._characters: list[str] | None = json.loads(path.read_text()) if path.exists() else None

    def ids(self, text: str) -> list[int]:
        """What a prompt is in ids."""
        if self._characters is None:
            return [int(word) for word in text.split()]
        unknown = sorted(set(text) - set(self._characters))
        if unknown:
            raise Refused(f"the prompt has characters that the vocabulary has not: {''.join(unknown)!r}")
        return [self._characters.index(character) for character in text]

    def text(self, ids: list[int]) -> str:
        """What ids are for people."""
        if self._characters is None:
            return " ".join(map(str, ids))
        return "".join(self._characters[number] if number < len(self._characters) else "?" for number in ids)


def load(path: Path) -> Gpt:
    """The model in a `current_ckpt.pt` or `checkpoint_N.pt`."""
    if not path.exists():
        raise Refused(f"{path} does not exist. With --parallel fsdp it is made by --consolidate.")
    saved: dict[str, Any] = torch.load(path, map_location="cpu", weights_only=True)
    model = Gpt(Shape(**saved["shape"]))
    model.load_state_dict(saved["model"])
    return model.eval()


def main() -> int:
    """Print a sample."""
    options = parse(Options, sys.argv[1:], program="python -m orchestra.train.gpt.sampling")
    try:
        words = Vocabulary(options.data_dir)
        model, prompt = load(Path(options.output_dir) / "current_ckpt.pt"), words.ids(options.prompt)
    except Refused as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    chosen = {"temperature": options.temperature, "top_k": options.top_k, "seed": options.seed}
    print(options.prompt + words.text(sample(model, prompt, options.tokens, **chosen)))  # type: ignore[arg-type]
    return 0


if __name__ == "__main__":
    sys.exit(main())
