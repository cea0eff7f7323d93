"""Reading back the script and the launch spec that `render` itself wrote."""

from __future__ import annotations

import json
import re
import shlex
from dataclasses import dataclass, field
from typing import Any

from orchestra.render.script import MARK
from orchestra.render.words import unescaped

_SECTION = "# --- "


@dataclass
class Process:
    """What a pod does, whatever form it was written in."""

    words: list[str] = field(default_factory=list)
    """The launch line."""
    launcher: str | None = None
    """Known for sure; None: to be read from the words."""
    setup: str | list[str] | None = None
    environment: dict[str, Any] = field(default_factory=dict)
    workspace: dict[str, Any] = field(default_factory=dict)
    sync: dict[str, Any] = field(default_factory=dict)
    folders: dict[str, str] = field(default_factory=dict)
    """Where a foreign script kept `data` and `output`."""
    env: dict[str, str] = field(default_factory=dict)
    working_dir: str | None = None
    max_restarts: int | None = None
    hang_timeout: int | None = None
    guessed: list[str] = field(default_factory=list)
    left_out: list[str] = field(default_factory=list)


def is_our_script(text: str) -> bool:
    """Whether `render --plain` wrote it."""
    return MARK in text


def read_our_script(text: str) -> Process:
    """The plain script."""
    found = Process()
    read_sections(text, found)
    restarts = re.search(r"^MAX_RESTARTS=(\d+)$", text, re.MULTILINE)
    found.max_restarts = int(restarts[1]) if restarts else None
    _read_interval(text, found)
    body = text[text.index("\nlaunch() {\n") + len("\nlaunch() {\n") :]
    words = shlex.split(_balanced(body).replace("\\\n", " "))[1:]  # less `exec`
    found.words = words
    if not _is_launcher(words) or "\n# --- launch, as it is\n" in text:
        found.launcher = "none"
    return found


def _is_launcher(words: list[str]) -> bool:
    return words[0].rpartition("/")[2] in ("torchrun", "deepspeed", "ds") or (
        words[1:2] == ["-m"] and words[2:3] in (["torch.distributed.run"], ["deepspeed.launcher.runner"])
    )


def _balanced(text: str) -> str:
    """The first whole command of a text: until a line that does not continue, with all quotes closed."""
    lines: list[str] = []
    for line in text.split("\n"):
        lines.append(line)
        joined = "\n".join(lines)
        try:
            shlex.split(joined)
        except ValueError:
            continue
        if not line.endswith("\\"):
            return joined
    return text


def read_launch_spec(text: str, upload: str) -> Process:
    """The agent's launch spec, and the sidecar's script."""
    spec = json.loads(text)
    found = Process(launcher=spec["launcher"], max_restarts=spec.get("start", {}).get("maxRestarts"))
    found.hang_timeout = spec.get("hangTimeoutSeconds")
    program = [unescaped(word) for word in spec["program"]]
    launcher = [unescaped(word) for word in spec["launcherArgv"]]
    found.words = [*launcher, *_after_launcher(launcher, program)] if launcher else program
    setup = [unescaped(word) for word in spec["setup"]]
    if setup[:2] == ["/bin/sh", "-ec"] and _SECTION in setup[2]:
        read_sections(setup[2], found)
    else:
        found.setup = as_setup(setup)
    _read_interval(upload, found)
    return found


def _read_interval(text: str, found: Process) -> None:
    interval = re.search(r'"\$\{SYNC_SECONDS:-(\d+)\}"', text)
    if interval and "output" in found.sync:
        found.sync["interval"] = int(interval[1])


def _after_launcher(launcher: list[str], program: list[str]) -> list[str]:
    """The program as the launcher's own arguments: it starts Python itself."""
    beside = launcher[0].rpartition("/")[0]
    python = launcher[0] if launcher[1:2] == ["-m"] else f"{beside}/python" if beside else "python"
    if program[:2] == [python, "-u"] or (program[:2] == ["python3", "-u"] and not beside):
        return program[2:]
    return ["--no_python" if "deepspeed" in launcher[0] else "--no-python", *program]


def as_setup(words: list[str]) -> str | list[str] | None:
    """A set-up command as a user writes it."""
    if not words:
        return None
    return words[2] if words[:2] == ["/bin/sh", "-ec"] and len(words) == 3 else words


def read_sections(text: str, found: Process) -> None:
    """The sections that `steps.preparation` writes."""
    lines = text.split("\n")
    for number, line in enumerate(lines):
        if not line.startswith(_SECTION):
            continue
        rest = "\n".join(lines[number + 1 :])
        _read_section(line.removeprefix(_SECTION), rest, found)


def _read_section(title: str, rest: str, found: Process) -> None:
    body = rest.split(f"\n{_SECTION}")[0]
    if title == "set-up command":
        words = shlex.split(_balanced(rest))
        found.setup = as_setup(words[1:] if words[0] == "run" else words)
    elif title == "code from git":
        clone = re.search(r"git clone (.*)$", body, re.MULTILINE)
        ref = re.search(r"git -C .* checkout (.*)$", body, re.MULTILINE)
        if clone:
            found.workspace = {"source": "git", "url": shlex.split(clone[1])[0]}
        if ref:
            found.workspace["ref"] = shlex.split(ref[1])[0]
    elif title == "workspace from the object store":
        found.workspace = {"source": "s3", "url": _synced_from(body)}
    elif title in ("code", "data"):
        found.sync[title] = _synced_from(body)
    elif title.startswith("output of earlier runs"):
        found.sync["output"] = _synced_from(body)
    elif title == "environment":
        found.environment = _environment(body)


def _synced_from(body: str) -> str | None:
    line = re.search(r"aws s3 sync (.*)$", body, re.MULTILINE)
    return next((word for word in shlex.split(line[1]) if word.startswith("s3://")), None) if line else None


def _environment(body: str) -> dict[str, Any]:
    conda = re.search(r"conda create -y -p \S+ python(?:=(\S+))?", body)
    venv = re.search(r"python(\d[\d.]*) -m venv", body)
    requirements = re.search(r"pip install -r (.*)$", body, re.MULTILINE)
    found: dict[str, Any] = {"requirements": shlex.split(requirements[1])[0]} if requirements else {}
    if conda:
        found["manager"] = "conda"
    python = conda[1] if conda else venv[1] if venv and venv[1] != "3" else None
    return found | ({"python": python} if python else {})
