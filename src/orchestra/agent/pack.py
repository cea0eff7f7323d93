"""Packs the agent into one file, `agent.pyz`.

The only module here that stays at home: it may use whatever Orchestra's own Python offers.
"""

from __future__ import annotations

import functools
import hashlib
import io
import zipfile
from importlib import resources

PACKAGE = "orchestra_agent"
SIZE_LIMIT = 128 * 1024
_BROUGHT = {"etcd.py": "etcd_v2.py", "urllib3.py": "urllib3_names.py"}
"""Modules that launchers import by their own names, and so not part of our package."""
_AT_HOME = {"pack.py", *_BROUGHT.values()}
_SHEBANG = b"#!/usr/bin/env python3\n"
_MAIN = f"""\
import sys
from {PACKAGE}.main import main
sys.exit(main(sys.argv[1:], sys.path[0]))
"""
_EPOCH = (1980, 1, 1, 0, 0, 0)


def agent_sources() -> dict[str, str]:
    """The modules that go into the package, by file name."""
    folder = resources.files(__package__)
    files = sorted((file for file in folder.iterdir() if file.name.endswith(".py")), key=lambda file: file.name)
    return {file.name: file.read_text("utf-8") for file in files if file.name not in _AT_HOME}


@functools.cache
def agent_bytes() -> bytes:
    """The program. The same sources give the same bytes, on every machine and at any time."""
    buffer = io.BytesIO(_SHEBANG)
    with zipfile.ZipFile(buffer, "a", zipfile.ZIP_DEFLATED, compresslevel=9) as archive:
        files = {"__main__.py": _MAIN, **_brought(), **_in_package(agent_sources())}
        for name, text in files.items():
            entry = zipfile.ZipInfo(name, _EPOCH)
            entry.compress_type = zipfile.ZIP_DEFLATED
            entry.external_attr = 0o644 << 16
            entry.create_system = 3
            archive.writestr(entry, text)
    return buffer.getvalue()


@functools.cache
def agent_hash() -> str:
    """Names the program: sixteen hexadecimal digits that change with any of its sources."""
    return hashlib.sha256(agent_bytes()).hexdigest()[:16]


def _brought() -> dict[str, str]:
    folder = resources.files(__package__)
    return {f"brought/{name}": (folder / source).read_text("utf-8") for name, source in _BROUGHT.items()}


def _in_package(sources: dict[str, str]) -> dict[str, str]:
    return {f"{PACKAGE}/{name}": text for name, text in sources.items()}
