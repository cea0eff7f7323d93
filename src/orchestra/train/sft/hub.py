"""Loading models and tokenizers, from folders or the hub, with errors that say what to do."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from orchestra.train.sft.options import Options
from orchestra.train.world import Refused

_SPELLINGS = ("HF_TOKEN", "HUGGINGFACE_HUB_TOKEN", "HUGGING_FACE_HUB_TOKEN")


def adopt_token() -> None:
    """Let the libraries find the token under whichever of its three names it was given. It is never printed."""
    token = next((os.environ[name] for name in _SPELLINGS if os.environ.get(name)), None)
    if token:
        os.environ["HF_TOKEN"] = token


def load_tokenizer(options: Options) -> Any:
    """The tokenizer."""
    from transformers import AutoTokenizer

    source = options.tokenizer
    _refuse_missing_folder("tokenizer", source, options)
    try:
        return AutoTokenizer.from_pretrained(source, local_files_only=options.local_files_only)
    except (OSError, ValueError, KeyError) as error:
        raise Refused(_why_not("tokenizer", source, options, error)) from error


def load_model(options: Options, dtype: Any) -> Any:
    """The model, on the CPU."""
    from transformers import AutoModelForCausalLM

    source = options.model
    _refuse_missing_folder("model", source, options)
    try:
        return AutoModelForCausalLM.from_pretrained(source, dtype=dtype, local_files_only=options.local_files_only)
    except (OSError, ValueError, KeyError) as error:
        raise Refused(_why_not("model", source, options, error)) from error


def _refuse_missing_folder(what: str, source: str, options: Options) -> None:
    flag = f"--{what}-local-dir"
    named_as_folder = source == getattr(options, f"{what}_local_dir") or source.startswith(("/", "./", "../", "~"))
    if named_as_folder and not Path(source).is_dir():
        raise Refused(f"the {what} folder {source} does not exist ({flag} or --model-name). Is its volume mounted?")


def _why_not(what: str, source: str, options: Options, error: Exception) -> str:
    reason = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
    if Path(source).is_dir():
        return f"the {what} in the folder {source} cannot be loaded: {reason}"
    if options.local_files_only:
        return (
            f"the {what} {source!r} is neither a folder here nor in the hub's cache, and --local-files-only forbids to "
            f"fetch it. Give its folder with --{what}-local-dir."
        )
    token = "HF_TOKEN is set" if os.environ.get("HF_TOKEN") else "no token is set: a gated model needs HF_TOKEN"
    return (
        f"the {what} {source!r} cannot be had from the hub ({token}): {reason} Without access to the hub, put it into "
        f"a folder and give --model-local-dir and --tokenizer-local-dir."
    )
