"""Orchestra: one job file runs distributed PyTorch training anywhere."""

__version__ = "0.1.0.dev0"
