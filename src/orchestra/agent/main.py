"""`agent.pyz run SPEC.json` and `agent.pyz rank -- PROGRAM...`."""

from __future__ import annotations

import signal
import sys
from pathlib import Path

_USAGE = "usage: agent.pyz run SPEC.json|env:NAME | agent.pyz rank -- PROGRAM..."


def main(words: list[str], agent_file: str) -> int:
    """Runs the agent, or one shim. `agent_file` is how shims start this program again."""
    if len(words) == 2 and words[0] == "run":
        # Before anything is loaded: process 1 of a pod never sees a SIGTERM that it has no handler for.
        early: list[int] = []
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, lambda received, _: early.append(received))
        from .agent import run_agent

        return run_agent(words[1], str(Path(agent_file).absolute()), early)
    if len(words) > 1 and words[0] == "rank":
        from .shim import run_rank  # the shim starts in a few milliseconds: it loads no HTTP server

        return run_rank(words[2:] if words[1] == "--" else words[1:], agent_file)
    if len(words) == 2 and words[0] == "environment":
        from .venvs import make

        return make(words[1])
    if len(words) > 1 and words[0] == "preload":
        from .preload import wait_and_run

        return wait_and_run(int(words[1]), words[2:])
    print(_USAGE, file=sys.stderr)
    return 2
