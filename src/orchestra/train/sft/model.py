"""The model to train: loaded, given an adapter where asked, and able to say its loss for a batch."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

from orchestra.train.sft import attention
from orchestra.train.sft.hub import load_model
from orchestra.train.sft.loss import chunked_cross_entropy
from orchestra.train.sft.options import Options
from orchestra.train.sft.rows import IGNORED
from orchestra.train.world import Refused

_LOGITS_CHANGED = ("final_logit_softcapping", "logits_scaling", "logit_scale")


def make(options: Options, device: torch.device) -> LossOf:
    """Load the model and make it ready, on the device."""
    dtype = precision(options, device)
    model = load_model(options, dtype if options.lora_rank else torch.float32)
    _refuse_short_sight(model.config, options)
    model.config.use_cache = False
    _use_document_attention(model)
    model.to(device)
    if options.lora_rank:
        model = with_adapter(model, options, device)
    if options.recompute:
        model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
        model.enable_input_require_grads()
    return LossOf(model, dtype)


def precision(options: Options, device: torch.device) -> torch.dtype:
    """The numbers to compute with."""
    if options.dtype == "auto":
        return torch.bfloat16 if device.type == "cuda" else torch.float32
    return {"bf16": torch.bfloat16, "fp32": torch.float32}[options.dtype]


def with_adapter(model: Any, options: Options, device: torch.device) -> Any:
    """The model with a fresh adapter, the same on all ranks."""
    from peft import LoraConfig, get_peft_model

    from orchestra.train.sft.quick_lora import quicken, refuse_without_fp8

    targets = options.lora_targets
    config = LoraConfig(
        r=options.lora_rank,
        lora_alpha=options.lora_alpha,
        lora_dropout=options.lora_dropout,
        target_modules=targets if targets == "all-linear" else [name.strip() for name in targets.split(",")],
        task_type="CAUSAL_LM",
    )
    if options.fp8:
        refuse_without_fp8(device)
    torch.manual_seed(options.seed)
    try:
        adapted = get_peft_model(model, config)
    except ValueError as error:
        raise Refused(f"--lora-targets {targets}: {error}") from error
    if options.parallel != "deepspeed":  # it gathers weights layer by layer, where PEFT's own forward looks for them
        quicken(adapted, fp8=options.fp8)
    return adapted


class LossOf(torch.nn.Module):
    """A causal language model as a function from a batch to the sum of its losses."""

    def __init__(self, model: Any, dtype: torch.dtype) -> None:
        super().__init__()
        self.model = model
        self.dtype = dtype
        self.in_chunks = True
        """False where the last layer's weights are there only while the layer itself runs."""

    @property
    def inner(self) -> Any:
        """The model without adapter and wrapping."""
        return self.model.get_base_model() if hasattr(self.model, "get_base_model") else self.model

    @property
    def layers(self) -> Any:
        """The decoder's layers."""
        decoder = self.inner.get_decoder()
        return getattr(decoder, "layers", None) or getattr(decoder, "h", [])

    def compile_layers(self) -> None:
        """Compile each layer by itself: all of them share the result, and start-up is short."""
        torch._dynamo.config.cache_size_limit = max(torch._dynamo.config.cache_size_limit, 64)
        for layer in self.layers:
            layer.compile()

    def forward(
        self, tokens: torch.Tensor, positions: torch.Tensor, labels: torch.Tensor, known: dict[str, Any]
    ) -> torch.Tensor:
        """The sum of the losses. `known` is what attention has to know."""
        cast = self.dtype != torch.float32 and not hasattr(self.model, "peft_config")
        with torch.autocast(tokens.device.type, dtype=self.dtype, enabled=cast):
            inner = self.inner
            hidden = inner.get_decoder()(
                input_ids=tokens, position_ids=positions, attention_mask=None, use_cache=False, **known
            ).last_hidden_state
            head = inner.get_output_embeddings()
            plain = type(head) is torch.nn.Linear and head.bias is None
            if self.in_chunks and plain and not any(getattr(inner.config, name, None) for name in _LOGITS_CHANGED):
                if self.dtype != torch.float32:
                    hidden = hidden.to(self.dtype)
                return chunked_cross_entropy(hidden.reshape(-1, hidden.shape[-1]), head.weight, labels.reshape(-1))
            logits = head(hidden).float()
        return torch.nn.functional.cross_entropy(
            _changed(logits, inner.config).reshape(-1, logits.shape[-1]),
            labels.reshape(-1),
            ignore_index=IGNORED,
            reduction="sum",
        )

    def write(self, folder: Path, state: dict[str, Any]) -> None:
        """Write the adapter in PEFT's format, or the model in transformers', from gathered weights."""
        weights = {name[len("model.") :]: tensor for name, tensor in state.items()}
        if hasattr(self.model, "peft_config"):
            from peft import get_peft_model_state_dict

            self.model.save_pretrained(folder, state_dict=get_peft_model_state_dict(self.model, state_dict=weights))
        else:
            self.inner.save_pretrained(folder, state_dict=weights)


def write_merged(folder: Path, adapter: Path, options: Options, dtype: torch.dtype) -> None:
    """Write the model with an adapter added to its weights. Loads both anew: what is in memory may be cut or 8 bits."""
    from peft import PeftModel

    PeftModel.from_pretrained(load_model(options, dtype), adapter).merge_and_unload().save_pretrained(folder)


def _use_document_attention(model: Any) -> None:
    attention.register()
    try:
        model.set_attn_implementation(attention.NAME)
    except ValueError as error:
        raise Refused(
            f"{type(model).__name__} does not let its attention be replaced, which keeps documents apart: {error}"
        ) from error


def _refuse_short_sight(config: Any, options: Options) -> None:
    window = getattr(config, "sliding_window", None)
    if getattr(config, "use_sliding_window", True) and window and window < options.max_length:
        raise Refused(f"this model sees {window} tokens back: give --max-length {window} or less.")
    room = getattr(config, "max_position_embeddings", None)
    if room and room < options.max_length:
        raise Refused(f"this model has {room} positions: give --max-length {room} or less.")


def _changed(logits: torch.Tensor, config: Any) -> torch.Tensor:
    cap = getattr(config, "final_logit_softcapping", None)
    if cap:
        logits = torch.tanh(logits / cap) * cap
    for name, power in (("logits_scaling", -1.0), ("logit_scale", 1.0)):
        factor = getattr(config, name, None)
        if factor:
            logits = logits * factor**power
    return logits
