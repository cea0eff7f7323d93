"""Makes a tiny Llama with random weights, a tokenizer for it, and sums to learn: something to fine-tune without a hub.

    python examples/tiny_llm.py FOLDER      # FOLDER/model, FOLDER/train.jsonl, FOLDER/val.jsonl

Stands in the three forms of data that `python -m orchestra.train.sft` reads: text, prompt and completion, chat.
"""

import json
import sys
from pathlib import Path

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

SUMS = [(f"{a} plus {b} is", f" {a + b}.") for a in range(12) for b in range(12)]


def main(folder):
    if (folder / "val.jsonl").exists():
        return
    make_model(folder / "model", make_tokenizer())
    records = [as_record(number % 3, question, answer) for number, (question, answer) in enumerate(SUMS)]
    write(folder / "train.jsonl", [record for number, record in enumerate(records) if number % 7])
    write(folder / "val.jsonl", records[::7])


def make_tokenizer():
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=300, special_tokens=["<s>", "</s>"], initial_alphabet=alphabet, show_progress=False
    )
    tokenizer.train_from_iterator([question + answer for question, answer in SUMS], trainer)
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, bos_token="<s>", eos_token="</s>")  # noqa: S106


def make_model(folder, tokenizer):
    torch.manual_seed(0)
    shape = {"hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2, "num_attention_heads": 4}
    config = LlamaConfig(
        vocab_size=len(tokenizer), num_key_value_heads=2, max_position_embeddings=256, tie_word_embeddings=True, **shape
    )
    LlamaForCausalLM(config).save_pretrained(folder)
    tokenizer.save_pretrained(folder)


def as_record(kind, question, answer):
    if kind == 0:
        return {"text": question + answer}
    if kind == 1:
        return {"prompt": question, "completion": answer}
    return {"messages": [{"role": "user", "content": question}, {"role": "assistant", "content": answer}]}


def write(path, records):
    draft = path.with_suffix(".tmp")
    draft.write_text("".join(json.dumps(record) + "\n" for record in records))
    draft.replace(path)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
