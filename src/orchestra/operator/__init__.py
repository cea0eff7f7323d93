"""The operator: TorchrunQueue and TorchrunJob on a cluster."""
