"""`diff`: what changed in this folder since a job's snapshot was taken."""

from __future__ import annotations

import argparse
import difflib
from pathlib import Path
from typing import TYPE_CHECKING

from orchestra.cli import exit_codes

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from orchestra.cluster.engine import KubernetesEngine
    from orchestra.local.engine import LocalEngine
    from orchestra.sync.manifest import Manifest

    Kept = Mapping[str, bytes | None]

EPILOG = """\
Compares the folder that the job was submitted from with the code that it runs. `{program} sync JOB` brings the
changes into a running job.
"""
_LONGEST = 1 << 20


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declares the arguments."""
    from orchestra.cli.engines import add_job_argument

    add_job_argument(parser)
    parser.add_argument("--name-only", action="store_true", help="only the names of the files")


def run(args: argparse.Namespace) -> int:
    """0 where nothing has changed, 1 where something has, as `diff` does."""
    from orchestra.api.engine import EngineError
    from orchestra.cli.commands.sync import chosen
    from orchestra.cli.engines import next_line
    from orchestra.sync.errors import SyncError
    from orchestra.sync.snapshot import changes, snapshot

    engine, name = chosen(args)
    folder = engine.folder(name)
    try:
        (old, read), now = _code_of(engine, name), snapshot(folder)
        found = changes(old, now.manifest)
        before = {entry.path: entry.content for entry in old.entries if entry.has_blob}
        kept = {} if args.name_only else read({before[path] for path in found.touched if path in before})
    except SyncError as error:
        raise EngineError(str(error)) from error
    after = {entry.path for entry in now.manifest.entries if entry.has_blob}
    marks = {"A": found.added, "D": found.removed, "M": found.changed}
    for path, mark in sorted((path, mark) for mark, paths in marks.items() for path in paths):
        print(f"{mark} {path}")
        if not args.name_only:
            was = kept.get(before[path]) if path in before else b""
            for line in _lines(path, was, (folder / path).read_bytes() if path in after else b""):
                print(line)
    if found:
        print(next_line(args, f"sync {name}"))
    return exit_codes.ERROR if found else exit_codes.OK


def _code_of(engine: LocalEngine | KubernetesEngine, name: str) -> tuple[Manifest, Callable[[set[str]], Kept]]:
    """The code that a job runs, and how its files are read."""
    from orchestra.api.engine import EngineError
    from orchestra.local.code import Codes
    from orchestra.local.engine import LocalEngine
    from orchestra.local.submitted_code import snapshot_of

    if not isinstance(engine, LocalEngine):
        reloading = engine.reloading(name)
        return reloading.manifest(), reloading.contents
    id = snapshot_of(engine.get(name))
    if id is None:
        raise EngineError(f"{name} runs in its folder itself, not on a snapshot: there is nothing to compare")
    codes = Codes(engine.home)
    return codes.manifest(id), lambda names: {one: codes.content(one) for one in names}


def _lines(path: str, was: bytes | None, now: bytes) -> Iterator[str]:
    if was is None or len(was) > _LONGEST or len(now) > _LONGEST or b"\0" in was or b"\0" in now:
        yield "  (not shown: no text, or too long)"
        return
    one, other = was.decode("utf-8", "replace").splitlines(), now.decode("utf-8", "replace").splitlines()
    yield from difflib.unified_diff(one, other, str(Path("job") / path), path, lineterm="")
