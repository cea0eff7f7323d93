"""What the benchmarks of the operator share: one control plane, contenders on it, and a client that watches pods."""
