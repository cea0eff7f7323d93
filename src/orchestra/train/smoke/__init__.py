"""The smoke trainer: a small classifier on synthetic data, to see that a machine or a cluster can train at all."""
