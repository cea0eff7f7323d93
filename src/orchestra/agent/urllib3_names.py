"""What torchrun's `etcd-v2` rendezvous needs of urllib3, which images without python-etcd lack too: one name.

Packed as `brought/urllib3.py`, which comes before everything else on the launcher's path: where the image has the real
one, it is put in our place.
"""

from __future__ import annotations

import importlib.machinery
import importlib.util
import os
import sys
import types

_OUR_FOLDER = os.path.dirname(os.path.abspath(__file__))  # noqa: PTH100, PTH120 -- the path of a module in a foreign image


def _take_our_place(name: str) -> bool:
    """Loads the real package under its name, if there is one."""
    others = [folder for folder in sys.path if os.path.abspath(folder or ".") != _OUR_FOLDER]  # noqa: PTH100
    found = importlib.machinery.PathFinder.find_spec(name, others)
    if found is None or found.loader is None:
        return False
    sys.modules[name] = module = importlib.util.module_from_spec(found)
    found.loader.exec_module(module)
    return True


if __name__ == "urllib3" and not _take_our_place(__name__):

    class HTTPError(Exception):
        """As urllib3 calls it."""

    class TimeoutError(HTTPError):
        """As urllib3 calls it; our own client never raises it."""

    exceptions = types.ModuleType("urllib3.exceptions")
    exceptions.HTTPError = HTTPError  # type: ignore[attr-defined]
    exceptions.TimeoutError = TimeoutError  # type: ignore[attr-defined]
    sys.modules["urllib3.exceptions"] = exceptions
