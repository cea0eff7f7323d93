"""From what the user wrote as `command` to what is launched, and by whom."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from pathlib import PurePosixPath
from typing import Literal

from orchestra.api.problem import Problem
from orchestra.plan.options import Options, UnknownOption, read_deepspeed, read_torchrun
from orchestra.plan.words import NeedsShell, OpenQuote, parse

Launcher = Literal["torchrun", "deepspeed", "none"]

_PYTHON = re.compile(r"^python(\d+(\.\d+)*)?$")
_SWITCH_WITH_VALUE = ("-W", "-X", "--check-hash-based-pycs")
_LAUNCHER_MODULES = {
    "torch.distributed.run": "torchrun",
    "torch.distributed.launch": "torchrun",
    "deepspeed.launcher.runner": "deepspeed",
}


@dataclass
class Command:
    """A command, understood."""

    launcher: Launcher
    executable: list[str]
    """How the launcher is started; empty without one."""
    options: Options = field(default_factory=Options)
    """The user's own launcher options, and what stands after them on the launch line."""
    program: list[str] = field(default_factory=list)
    """What one process runs, interpreter included."""
    env: dict[str, str] = field(default_factory=dict)
    """`NAME=value` in front of the command."""
    notes: list[str] = field(default_factory=list)

    @property
    def procs(self) -> int | None:
        """Processes a node that the command itself asks for."""
        names = ("nproc-per-node",) if self.launcher == "torchrun" else ("num-gpus", "num-accelerators")
        for name in names:
            value = self.options.given.get(name)
            if value is not None and value.isdigit() and int(value) > 0:
                return int(value)
        return None


def understand(command: str | list[str], wanted: str) -> Command | Problem:
    """Reads a command. `wanted` is the job's `launcher`."""
    env: dict[str, str] = {}
    notes: list[str] = []
    if isinstance(command, str):
        try:
            line = parse(command)
        except NeedsShell as error:
            mend = "write command: [bash, -c, '...'], or put what comes before into setupCommand"
            return Problem("spec.command", f"`{error.operator}` needs a shell, and none is used", mend)
        except OpenQuote as error:
            return Problem("spec.command", f"the quote {error.quote} is not closed", "close it")
        words, env = line.words, line.assignments
        if not words:
            return Problem("spec.command", "has no command", "write what to run")
        understood = _understand_words(words, wanted)
        notes = _unexpanded_notes(line.unexpanded, understood)
    else:
        if not command:
            return Problem("spec.command", "has no command", "write what to run")
        if not command[0]:
            return Problem("spec.command", "begins with an empty word", "write what to run")
        understood = _understand_words(list(command), wanted)
    if isinstance(understood, Command):
        understood.env.update(env)
        understood.notes += notes
    return understood


def _unexpanded_notes(unexpanded: list[str], understood: Command | Problem) -> list[str]:
    if isinstance(understood, Problem):
        return []
    kept = {*understood.options.words, *understood.options.program, *understood.program}
    words = [word for word in unexpanded if word in kept]
    if not words:
        return []
    listed = " ".join(dict.fromkeys(words))
    return [f"{listed} is passed as it stands: no shell expands it; write [bash, -c, '...'] if one should"]


def _understand_words(words: list[str], wanted: str) -> Command | Problem:
    name = PurePosixPath(words[0]).name
    if wanted == "none":
        return Command("none", [], Options(program=words), program=words)
    if name == "torchrun":
        return _torchrun(words[:1], words[1:], _python_beside(words[0]), wanted)
    if name in ("deepspeed", "ds"):
        return _deepspeed(words[:1], words[1:], _python_beside(words[0]), wanted)
    if _PYTHON.match(name):
        return _python(words, wanted)
    if wanted == "torchrun":
        return Command("torchrun", ["torchrun"], Options(program=["--no-python", *words]), program=words)
    if wanted == "deepspeed":
        return Command("deepspeed", ["deepspeed"], Options(program=["--no_python", *words]), program=words)
    return Command("none", [], Options(program=words), program=words)


def _python_beside(launcher: str) -> str:
    """`/opt/env/bin/torchrun` runs `/opt/env/bin/python`."""
    path = PurePosixPath(launcher)
    return str(path.with_name("python")) if len(path.parts) > 1 else "python"


def _python(words: list[str], wanted: str) -> Command | Problem:
    """`python ...`: a script or module that torchrun starts once a process."""
    interpreter, rest = words[0], words[1:]
    switches = 0
    while switches < len(rest) and rest[switches].startswith("-") and rest[switches] not in ("-m", "-c", "-"):
        switches += 2 if rest[switches] in _SWITCH_WITH_VALUE else 1
    given, target = rest[:switches], rest[switches:]
    if not target or target[0] == "-" or (target[0] in ("-m", "-c") and len(target) < 2):
        return Problem("spec.command", f"{' '.join(words)!r} names no script", "write python train.py ...")
    if target[0] == "-m" and target[1] in _LAUNCHER_MODULES:
        if _LAUNCHER_MODULES[target[1]] == "torchrun":
            return _torchrun([interpreter, *given, *target[:2]], target[2:], interpreter, wanted)
        return _deepspeed([interpreter, *given, *target[:2]], target[2:], interpreter, wanted)
    by_name = interpreter in ("python", "python3")
    plain = all(switch == "-u" for switch in given) and target[0] != "-c"  # torchrun passes -u itself
    program = [interpreter, *given, *target] if "-u" in given else [interpreter, "-u", *given, *target]
    if wanted == "deepspeed":
        executable = ["deepspeed"] if by_name else [interpreter, "-m", "deepspeed.launcher.runner"]
        flags = ["--module"] if target[0] == "-m" else []
        if not plain:
            return Command("deepspeed", executable, Options(program=["--no_python", *words]), program=program)
        return Command("deepspeed", executable, Options(program=[*flags, *_script(target)]), program=program)
    executable = ["torchrun"] if by_name else [interpreter, "-m", "torch.distributed.run"]
    launched = target if plain else ["--no-python", *words]
    return Command("torchrun", executable, Options(program=launched), program=program)


def _script(target: list[str]) -> list[str]:
    return target[1:] if target[0] == "-m" else target


def _torchrun(executable: list[str], words: list[str], interpreter: str, wanted: str) -> Command | Problem:
    if wanted == "deepspeed":
        return Problem("spec.launcher", "the command is a torchrun line", "use launcher: torchrun or auto")
    try:
        options = read_torchrun(words)
    except UnknownOption as error:
        return Problem("spec.command", f"torchrun: {error}", "see torchrun --help")
    if not options.program:
        return Problem("spec.command", "torchrun has no script to run", "write torchrun [options] train.py ...")
    return Command("torchrun", executable, options, program=_rank_program(options, interpreter))


def _deepspeed(executable: list[str], words: list[str], interpreter: str, wanted: str) -> Command | Problem:
    if wanted == "torchrun":
        return Problem("spec.launcher", "the command is a deepspeed line", "use launcher: deepspeed or auto")
    try:
        options = read_deepspeed(words)
    except UnknownOption as error:
        return Problem("spec.command", f"deepspeed: {error}", "see deepspeed --help")
    if not options.program:
        return Problem("spec.command", "deepspeed has no script to run", "write deepspeed [options] train.py ...")
    return Command("deepspeed", executable, options, program=_rank_program(options, interpreter))


def _rank_program(options: Options, interpreter: str) -> list[str]:
    if "no-python" in options.given:
        return options.program
    module = ["-m"] if "module" in options.given else []
    return [interpreter, "-u", *module, *options.program]
