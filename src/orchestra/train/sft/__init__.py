"""Fine-tuning of Hugging Face causal language models, all weights or an adapter: `python -m orchestra.train.sft`."""
