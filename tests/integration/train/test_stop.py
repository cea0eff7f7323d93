"""Stopping, seen from within one process, and a user's own script."""

import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

import orchestra.train
from integration.train.ranks import environment

pytestmark = pytest.mark.torch

FORKS = """
import os, signal, sys
from orchestra.train import Stop

stop = Stop()
for _ in range(50):  # at once: the signal meets a child that has hardly begun
    child = os.fork()
    if child == 0:
        signal.pause()
    os.kill(child, signal.SIGTERM)
    assert os.WTERMSIG(os.waitpid(child, 0)[1]) == signal.SIGTERM
assert not stop.agreed()
print("alive", flush=True)
sys.stdin.readline()
"""


def test_a_stop_file_is_seen_at_the_next_point_even_without_a_signal(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "stop.json"
    monkeypatch.setenv("ORCHESTRA_STOP_FILE", str(file))
    stop = orchestra.train.Stop()
    try:
        assert not stop.agreed()
        file.write_text("{}")
        assert stop.agreed()
        assert (stop.point, stop.requested_by) == (2, 0)
        signal.raise_signal(signal.SIGTERM)  # would end us, were the request not known
    finally:
        stop.close()
    assert signal.getsignal(signal.SIGTERM) == signal.SIG_DFL


def test_without_an_agent_sigterm_keeps_its_default_action(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("ORCHESTRA_STOP_FILE", raising=False)
    stop = orchestra.train.Stop()
    assert not stop.agreed()
    assert signal.getsignal(signal.SIGTERM) == signal.SIG_DFL
    stop.close()


def test_a_sigterm_to_a_forked_child_ends_the_child_and_only_the_child(tmp_path: Path) -> None:
    variables = environment() | {"ORCHESTRA_STOP_FILE": str(tmp_path / "stop.json")}
    with subprocess.Popen(
        [sys.executable, "-c", FORKS], env=variables, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as parent:
        assert parent.communicate("\n", timeout=60)[0] == "alive\n"
        assert parent.returncode == 0


def test_a_users_own_script_runs_under_plain_torchrun_and_says_when_it_is_done(tmp_path: Path) -> None:
    script = Path(__file__).parents[3] / "examples" / "train.py"
    result = tmp_path / "result.json"
    done = subprocess.run(
        [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=1", str(script)],
        env=environment() | {"ORCHESTRA_RESULT_FILE": str(result)},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    losses = [float(loss) for loss in re.findall(r"epoch \d/4 loss (\S+)", done.stdout)]
    assert len(losses) == 4
    assert losses[-1] < losses[0] / 2
    assert '"state": "done"' in result.read_text()
