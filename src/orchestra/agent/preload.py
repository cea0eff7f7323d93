"""The next generation's rank, waiting: it has torch imported, and continues as the program when it is told to.

Runs under the user's own interpreter, in the rank's environment, and never touches CUDA: what a process has asked a
GPU for cannot be given back. Nothing of ours is left in `sys.modules` or `sys.path` when the program begins.
"""

from __future__ import annotations

import builtins
import json
import os
import runpy
import sys
import time
from importlib.machinery import SourceFileLoader
from typing import Any


def wait_and_run(answers: int, modules: list[str]) -> int:
    """`agent preload FD MODULE...`: import, say so on FD, wait on stdin for the order, and become the program."""
    began = time.time()
    reason = _import(modules) or _unsafe()
    _answer(answers, {"ready": not reason, "reason": reason, "seconds": time.time() - began})
    line = sys.stdin.buffer.readline()
    if not line:
        return 0  # the shim is gone, or needs us no more
    order = json.loads(line.decode())
    null = os.open(os.devnull, os.O_RDONLY)
    os.dup2(null, 0)
    os.close(null)
    os.environ.update(order["env"])
    os.chdir(order["cwd"])
    _answer(answers, {"running": time.time()})
    os.close(answers)
    _leave_no_trace()
    _run(order["argv"])
    return 0


def _import(modules: list[str]) -> str:
    for name in modules:
        try:
            __import__(name)
        except Exception as error:  # noqa: BLE001 (whatever is wrong with their torch, a cold start shows it)
            return f"import {name} failed: {type(error).__name__}: {error}"
    return ""


def _unsafe() -> str:
    threading, torch = sys.modules.get("threading"), sys.modules.get("torch")
    if threading is not None and threading.active_count() > 1:
        return "an import has started threads"
    cuda = getattr(torch, "cuda", None)
    if cuda is not None and cuda.is_initialized():
        return "an import has initialised CUDA"
    return ""


def _answer(to: int, message: dict[str, Any]) -> None:
    os.write(to, json.dumps(message).encode() + b"\n")


def _leave_no_trace() -> None:
    package = __name__.rpartition(".")[0]
    for name in [name for name in sys.modules if name == package or name.startswith(f"{package}.")]:
        del sys.modules[name]
    del sys.path[0]  # where we were found


def _run(argv: list[str]) -> None:
    """As `python argv...` does it: the script's folder, or the working folder for `-m`, comes first."""
    safe = bool(getattr(sys.flags, "safe_path", False) or sys.flags.isolated)
    if argv[0] == "-m":
        if not safe:
            sys.path.insert(0, os.getcwd())  # noqa: PTH109
        sys.argv = argv[1:]
        runpy._run_module_as_main(argv[1])  # type: ignore[attr-defined]
        return
    script = argv[0]
    if not safe:
        sys.path.insert(0, os.path.dirname(os.path.realpath(script)))  # noqa: PTH120
    sys.argv = argv
    main = sys.modules["__main__"].__dict__
    main.clear()
    main.update(
        __name__="__main__", __builtins__=builtins, __file__=script, __doc__=None, __package__=None, __spec__=None,
        __loader__=SourceFileLoader("__main__", script), __cached__=None, __annotations__={},
    )  # fmt: skip
    with open(script, "rb") as file:  # noqa: PTH123
        code = compile(file.read(), script, "exec")
    exec(code, main)  # noqa: S102 (it is the program)
