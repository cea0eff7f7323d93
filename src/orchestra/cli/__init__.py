"""The face: `orchestra`, and the same program as `kubectl torchrun`."""
