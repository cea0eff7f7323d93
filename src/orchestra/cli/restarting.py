"""A restart in running pods: the ranks stop at one agreed step and start anew in place; no pod is recreated.

The same orders as a hot reload on this machine (docs/worker-contract.md), carried into the pods by kubectl exec: an
order goes out when every worker has answered the last one, so that all change or none.
"""

from __future__ import annotations

import json
import subprocess
import time
from collections.abc import Callable, Sequence
from typing import Any

from orchestra.api.engine import EngineError

Json = dict[str, Any]

# Runs in the worker: writes the order, waits for the answer of this agent, prints it. Python 3.8, standard library.
_ASK = """
import glob, json, os, sys, time
about, seconds, state = json.loads(sys.argv[1]), float(sys.argv[2]), sys.argv[3]
found = glob.glob(state + "/*/agent.json") + glob.glob(state + "/agent.json")
if not found:
    sys.exit("there is no agent in this container")
folder = os.path.dirname(max(found, key=os.path.getmtime))
agent = json.load(open(os.path.join(folder, "agent.json")))
about["attempt"] = agent["attempt"]
draft = os.path.join(folder, ".reload.json.draft")
with open(draft, "w") as file:
    json.dump(about, file)
os.replace(draft, os.path.join(folder, "reload.json"))
until = time.time() + seconds
while time.time() < until:
    try:
        told = json.load(open(os.path.join(folder, "reloaded.json")))
    except (OSError, ValueError):
        told = {}
    same = told.get("generation") == about["generation"] and told.get("pid") == agent["pid"]
    if same and (told.get("state") == "failed" or told.get("order") == about["order"]):
        print(json.dumps(told))
        sys.exit(0)
    time.sleep(0.05)
sys.exit("no answer within %g s" % seconds)
"""
STATE = "/run/orchestra"
_PREPARE_SECONDS, _START_SECONDS, _MARGIN = 120.0, 120.0, 15.0


class Worker:
    """One pod, reached by kubectl."""

    def __init__(self, name: str, words: Sequence[str], state: str = STATE) -> None:
        """`words`: kubectl exec up to the command. `state`: the agent's folder there."""
        self.name, self._words, self._state = name, list(words), state

    def ask(self, order: Json, seconds: float) -> subprocess.Popen[str]:
        """Starts asking; the answer is the process's output."""
        ask = ["python3", "-c", _ASK, json.dumps(order), f"{seconds:g}", self._state]
        return subprocess.Popen([*self._words, *ask], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def restart(workers: Sequence[Worker], grace: float, say: Callable[[str], None]) -> Json:
    """Stops the ranks of all workers and starts them again; the answer has `step` and `saved`.

    A worker that does not get ready: nobody stops. `EngineError` names it.
    """
    generation = int(time.time())
    about = {"generation": generation, "workingDir": None}
    try:
        _all(workers, about | {"order": "prepare"}, _PREPARE_SECONDS)
    except EngineError as error:
        _abort(workers, about)
        raise EngineError(f"{error}; nobody was stopped") from error
    say("every worker is ready; stopping")
    try:
        return _stop_and_start(workers, about, grace, say)
    except EngineError as error:
        # Some have stopped and cannot go back: let go, they end, and their controller starts them anew.
        _abort(workers, about)
        raise EngineError(f"{error}; workers that had stopped start anew from the last checkpoint") from error


def _stop_and_start(workers: Sequence[Worker], about: Json, grace: float, say: Callable[[str], None]) -> Json:
    stopped = _all(workers, about | {"order": "stop"}, grace + _MARGIN)
    steps = {answer.get("step") for answer in stopped}
    step = steps.pop() if len(steps) == 1 else None
    saved = all(answer.get("saved") for answer in stopped)
    lost = "stopped; nothing was saved, so it starts from its own last checkpoint"
    say(f"stopped at step {step}, saved" if saved else lost)
    _all(workers, about | {"order": "start"}, _START_SECONDS)
    return {"step": step, "saved": saved}


def _all(workers: Sequence[Worker], order: Json, seconds: float) -> list[Json]:
    asked = [(worker, worker.ask(order, seconds)) for worker in workers]
    answers, problems = [], []
    for worker, process in asked:
        out, said = process.communicate()
        answer: Json = json.loads(out) if process.returncode == 0 and out.strip() else {}
        if answer and answer.get("state") != "failed":
            answers.append(answer)
        else:
            why = answer.get("message") or said.strip().splitlines()[-1:] or "it did not answer"
            problems.append(f"{worker.name}: {why if isinstance(why, str) else why[0]}")
    if problems:
        raise EngineError(f"{order['order']}: {'; '.join(problems)}")
    return answers


def _abort(workers: Sequence[Worker], about: Json) -> None:
    for worker in workers:
        worker.ask(about | {"order": "abort"}, 5.0).communicate()
