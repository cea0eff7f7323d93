"""The GPT pre-trainer: dense or mixture of experts, on token files, on one CPU or many GPUs."""
