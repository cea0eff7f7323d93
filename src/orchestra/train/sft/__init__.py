"""Fine-tuning of Hugging Face causal language models: all weights, or a LoRA adapter. `python -m orchestra.train.sft`."""
