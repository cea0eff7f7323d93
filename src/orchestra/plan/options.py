"""The options of the launchers we start, so that a user's own launch line can be read and completed.

Only names and whether they take a value; a test compares the tables with the real parsers.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field

TORCHRUN_VALUES = frozenset(
    [
        "nnodes",
        "nproc-per-node",
        "rdzv-backend",
        "rdzv-endpoint",
        "rdzv-id",
        "rdzv-conf",
        "max-restarts",
        "monitor-interval",
        "start-method",
        "event-log-handler",
        "role",
        "log-dir",
        "redirects",
        "tee",
        "local-ranks-filter",
        "duplicate-stdout-filters",
        "duplicate-stderr-filters",
        "node-rank",
        "master-addr",
        "master-port",
        "local-addr",
        "logs-specs",
        "numa-binding",
        "signals-to-handle",
        "shutdown-timeout",
    ]
)
TORCHRUN_SWITCHES = frozenset(["standalone", "module", "no-python", "run-path", "virtual-local-rank", "help"])
TORCHRUN_SHORT = {"-r": "redirects", "-t": "tee", "-m": "module", "-h": "help"}

DEEPSPEED_VALUES = frozenset(
    [
        "hostfile",
        "include",
        "exclude",
        "num-nodes",
        "min-elastic-nodes",
        "max-elastic-nodes",
        "num-gpus",
        "num-accelerators",
        "master-port",
        "master-addr",
        "node-rank",
        "launcher",
        "launcher-args",
        "autotuning",
        "enable-each-rank-log",
        "bind-core-list",
        "ssh-port",
        "venv-script",
    ]
)
DEEPSPEED_SWITCHES = frozenset(
    [
        "module",
        "no-python",
        "no-local-rank",
        "no-ssh",
        "no-ssh-check",
        "force-multi",
        "save-pid",
        "elastic-training",
        "bind-cores-to-rank",
        "help",
    ]
)
DEEPSPEED_SHORT = {"-H": "hostfile", "-i": "include", "-e": "exclude", "-h": "help"}

_KIND_OF_PROGRAM = ("module", "no-python", "run-path")

# `--nnodes=$NNODES`, as people write it in scripts: the variable is one of ours, so the flag is ours to fill in.
_OUR_VARIABLE = re.compile(r"^\$\{?(NNODES|NODE_RANK|RANK|NPROC_PER_NODE|MASTER_ADDR|MASTER_PORT|WORLD_SIZE)\}?")


@dataclass
class Options:
    """A launch line, taken apart."""

    given: dict[str, str | None] = field(default_factory=dict)
    """Options by their full name; None for a switch."""
    taken: list[tuple[str, list[str]]] = field(default_factory=list)
    """The options as the user wrote them, by name."""
    program: list[str] = field(default_factory=list)
    """What follows: the script and its arguments."""

    @property
    def words(self) -> list[str]:
        """The options as the user wrote them."""
        return [word for _, words in self.taken for word in words]

    @property
    def launcher_words(self) -> list[str]:
        """The same, less those that say what kind of program follows."""
        return [word for name, words in self.taken if name not in _KIND_OF_PROGRAM for word in words]


class UnknownOption(ValueError):
    """An option whose meaning, and so whose length, is not known."""


def read_torchrun(words: list[str]) -> Options:
    """The words after `torchrun`."""
    return _read(words, TORCHRUN_VALUES, TORCHRUN_SWITCHES, TORCHRUN_SHORT)


def read_deepspeed(words: list[str]) -> Options:
    """The words after `deepspeed`."""
    return _read(words, DEEPSPEED_VALUES, DEEPSPEED_SWITCHES, DEEPSPEED_SHORT)


def _read(words: list[str], values: frozenset[str], switches: frozenset[str], short: dict[str, str]) -> Options:
    options = Options()
    position = 0
    while position < len(words) and words[position].startswith("-") and words[position] != "-":
        word = words[position]
        if word == "--":
            position += 1
            break
        flag, equals, value = word.partition("=")
        name = short.get(flag) or _full_name(flag, values | switches)
        taken = [word]
        if name in values and not equals:
            if position + 1 >= len(words):
                raise UnknownOption(f"{flag} needs a value")
            value = words[position + 1]
            taken.append(value)
        elif name is None and not equals:
            raise UnknownOption(f"{flag} is not known; write {flag}=value if it is a new option")
        position += len(taken)
        if name in values and _OUR_VARIABLE.match(value):
            continue
        full_name = name or flag.lstrip("-")
        options.taken.append((full_name, taken))
        options.given[full_name] = value if name in values or equals else None
    options.program = words[position:]
    return options


def _full_name(flag: str, known: frozenset[str]) -> str | None:
    """The option that a flag means; argparse also takes any unambiguous beginning of one."""
    name = flag.removeprefix("--").replace("_", "-")
    if name in known:
        return name
    longer = [candidate for candidate in known if flag.startswith("--") and candidate.startswith(name)]
    return longer[0] if len(longer) == 1 else None
