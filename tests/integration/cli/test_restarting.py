"""A restart in place that cannot be: one worker does not answer. Real agents; only the way to one of them is cut."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from integration.agent.worker import Worker as Agent
from integration.agent.worker import until
from local_engine import COOPERATIVE
from orchestra.api.engine import EngineError
from orchestra.cli import restarting
from orchestra.cli.restarting import Worker, restart

PATIENCE = 60.0


@pytest.fixture
def agents(tmp_path: Path) -> Iterator[list[Agent]]:
    """Two workers that train, each on its own."""
    made = [Agent(tmp_path / str(number)) for number in range(2)]
    for number, one in enumerate(made):
        output = tmp_path / str(number) / "out"
        output.mkdir()
        env = {"ORCHESTRA_OUTPUT_DIR": str(output), "ORCHESTRA_PRELOAD": ""}
        one.start([sys.executable, str(COOPERATIVE), "100000", "0.05"], env=env, node=number, nodes=2)
    for one in made:
        one.says("begin at 0", PATIENCE)
    yield made
    for one in made:
        one.end()


def begun(agent: Agent) -> list[int]:
    """The steps at which its program began."""
    return [int(text.split()[-1]) for _, text in agent.log() if text.startswith("begin at ")]


def reached(agent: Agent, name: str) -> Worker:
    return Worker(name, [], str(agent.folder))


def test_all_stop_at_their_step_and_start_again(agents: list[Agent]) -> None:
    said: list[str] = []
    answer = restart([reached(one, f"pod-{number}") for number, one in enumerate(agents)], 30.0, said.append)
    assert answer["saved"]
    assert said[0] == "every worker is ready; stopping"
    for one in agents:
        until(lambda one=one: len(begun(one)) == 2, PATIENCE, "the second beginning")  # type: ignore[misc]
        assert begun(one)[1] > 0, "it went on, and did not begin anew"


def test_a_pod_that_does_not_answer_is_named_and_nobody_is_stopped(
    agents: list[Agent], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(restarting, "_PREPARE_SECONDS", 3.0)
    frozen = agents[1].process
    assert frozen is not None
    os.kill(frozen.pid, signal.SIGSTOP)
    try:
        with pytest.raises(EngineError, match=r"pod-1: no answer within 3 s; nobody was stopped"):
            restart([reached(agents[0], "pod-0"), reached(agents[1], "pod-1")], 30.0, lambda _: None)
    finally:
        os.kill(frozen.pid, signal.SIGCONT)
    monkeypatch.undo()
    restart([reached(agents[0], "pod-0"), reached(agents[1], "pod-1")], 30.0, lambda _: None)  # now it can be
    for one in agents:
        until(lambda one=one: len(begun(one)) == 2, PATIENCE, "the second beginning")  # type: ignore[misc]


def test_a_container_without_an_agent_is_told_so(agents: list[Agent], tmp_path: Path) -> None:
    empty = Worker("pod-1", [], str(tmp_path / "nothing"))
    with pytest.raises(EngineError, match=r"pod-1: there is no agent in this container; nobody was stopped"):
        restart([reached(agents[0], "pod-0"), empty], 30.0, lambda _: None)
    assert len(begun(agents[0])) == 1


class LostOnStop(Worker):
    """Reached at first; when it is told to stop, the way to it is cut."""

    def ask(self, order: dict[str, Any], seconds: float) -> subprocess.Popen[str]:
        if order["order"] != "stop":
            return super().ask(order, seconds)
        words = [sys.executable, "-c", "import sys; sys.exit('error: pod not found')"]
        return subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def test_half_way_everybody_is_let_go_so_that_their_controller_starts_them_anew(agents: list[Agent]) -> None:
    lost = LostOnStop("pod-1", [], str(agents[1].folder))
    with pytest.raises(EngineError, match=r"stop: pod-1: error: pod not found; workers that had stopped start anew"):
        restart([reached(agents[0], "pod-0"), lost], 30.0, lambda _: None)
    assert agents[0].wait(PATIENCE) != 0, "it had stopped: it ends, and is started anew with all others"
    other = agents[1].process
    assert other is not None
    assert other.poll() is None, "it was never stopped"
