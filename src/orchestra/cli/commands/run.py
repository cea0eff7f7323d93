"""`run`: submit on this machine, and follow."""

from __future__ import annotations

from orchestra.cli.commands.submit import EPILOG, add_arguments, run

__all__ = ["EPILOG", "add_arguments", "run"]
