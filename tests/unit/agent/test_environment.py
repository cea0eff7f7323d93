"""Command lines and environments."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from orchestra.agent import environment
from orchestra.agent.environment import worker_environment
from orchestra.agent.program import launch_argv, python_words, with_local_rank
from orchestra.agent.ranks import Round
from orchestra.agent.report import metrics, progress_report
from orchestra.agent.spec import BadSpec, LaunchSpec, parse_spec
from orchestra.agent.store import store_port


def a_spec(**fields: Any) -> LaunchSpec:
    return parse_spec({"version": 1, "program": ["python", "train.py"], "folder": "/state", "job": "j", **fields})


def env_of(spec: LaunchSpec, **inherited: str) -> dict[str, str]:
    return worker_environment(spec, inherited, "marker", "socket", cores=8)


def test_the_shim_stands_between_launcher_and_program() -> None:
    spec = a_spec(launcher="torchrun", launcherArgv=["torchrun", "--nnodes=1"])
    argv = launch_argv(spec, "/a.pyz")
    assert argv[:3] == ["torchrun", "--nnodes=1", "--no-python"]
    assert argv[4:] == ["-I", "-S", "/a.pyz", "rank", "--", "python", "train.py"]
    assert launch_argv(a_spec(), "/a.pyz")[3:] == ["/a.pyz", "rank", "--", "python", "train.py"]


def test_deepspeeds_local_rank_comes_to_the_script_by_the_shim() -> None:
    spec = a_spec(launcher="deepspeed", launcherArgv=["deepspeed", "--num_gpus=2"])
    assert launch_argv(spec, "/a.pyz")[2:4] == ["--no_python", "--no_local_rank"]
    assert env_of(spec)["ORCHESTRA_LOCAL_RANK_WORD"] == "1"
    assert with_local_rank(["python", "-u", "t.py", "--x"], 1) == ["python", "-u", "t.py", "--local_rank=1", "--x"]
    assert with_local_rank(["/bin/python3.11", "-m", "t"], 1) == ["/bin/python3.11", "-m", "t", "--local_rank=1"]
    assert with_local_rank(["python", "-X", "dev", "t.py"], 0)[-1] == "--local_rank=0"
    assert with_local_rank(["./train", "a"], 0) == ["./train", "--local_rank=0", "a"]


def test_the_users_values_win_over_defaults_and_ours_over_all() -> None:
    env = env_of(a_spec(procsPerNode=2, env={"PYTHONUNBUFFERED": "0", "ORCHESTRA_RUN": "x"}), HOME="/h")
    assert env["OMP_NUM_THREADS"] == "4"
    assert env["PYTHONUNBUFFERED"] == "0"
    assert env["PYTHONFAULTHANDLER"] == "1"
    assert env["ORCHESTRA_RUN"] == "marker"
    assert env["HOME"] == "/h"
    assert env["ORCHESTRA_STOP_FILE"] == "/state/stop.json"
    assert env_of(a_spec(), OMP_NUM_THREADS="3")["OMP_NUM_THREADS"] == "3"


def test_nccls_flight_recorder_is_on_with_nccl_only(tmp_path: Path) -> None:
    assert "TORCH_FR_BUFFER_SIZE" not in env_of(a_spec())
    env = env_of(a_spec(env={"ORCHESTRA_BACKEND": "nccl"}, folder=str(tmp_path)))
    assert env["TORCH_NCCL_DUMP_ON_TIMEOUT"] == "1"
    assert env["TORCH_NCCL_DEBUG_INFO_PIPE_FILE"] == f"{tmp_path}/flight/rank_"
    assert (tmp_path / "flight").is_dir(), "torch aborts a rank that cannot make its pipe"
    (tmp_path / "file").touch()
    env = env_of(a_spec(env={"ORCHESTRA_BACKEND": "nccl"}, folder=str(tmp_path / "file")))
    assert "TORCH_NCCL_DEBUG_INFO_PIPE_FILE" not in env


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"version": 2}, "version"),
        ({"program": []}, "program"),
        ({"program": "python train.py"}, "program"),
        ({"folder": ""}, "folder"),
        ({"launcher": "mpirun"}, "launcher"),
        ({"launcher": "torchrun"}, "launcherArgv"),
    ],
)
def test_a_bad_spec_names_the_field(change: dict[str, Any], field: str) -> None:
    with pytest.raises(BadSpec, match=field):
        a_spec(**change)


def test_who_holds_the_store() -> None:
    argv = ["torchrun", "--rdzv-endpoint=10.0.0.1:2950", "--rdzv-conf=is_host=1,x=2"]
    assert a_spec(launcher="torchrun", launcherArgv=argv, nodes=2).hosts_store
    assert not a_spec(launcher="torchrun", launcherArgv=argv, nodes=1).hosts_store
    assert store_port(argv) == 2950
    assert store_port(["torchrun"]) is None


def test_metrics_escape_what_a_label_must_not_hold() -> None:
    report = progress_report("running", 0, 1, Round(1), None, 0.0)
    text = metrics(report, 'a "b"', 5, 0)
    assert 'orchestra_attempt{job_name="a \\"b\\"",node="0"} 1' in text
    assert "# TYPE orchestra_restarts_total counter" in text


def test_the_kernels_count_of_memory_kills_and_the_quota_of_both_versions(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(environment, "_CGROUP", tmp_path)
    monkeypatch.setattr(environment, "_own_group", lambda _: "own")
    own_1 = tmp_path / "memory" / "own"
    own_1.mkdir(parents=True)
    (own_1 / "memory.oom_control").write_text("oom_kill_disable 0\nunder_oom 0\noom_kill 2\n")
    assert environment.oom_kills() == 2
    (tmp_path / "own").mkdir()
    (tmp_path / "own" / "memory.events").write_text("low 0\noom 9\noom_kill 3\n")
    assert environment.oom_kills() == 3
    (tmp_path / "own" / "cpu.max").write_text("100000 100000\n")
    assert environment.usable_cores() == 1
    (tmp_path / "own" / "cpu.max").write_text("max 100000\n")
    assert environment.usable_cores() >= 1


def test_a_python_program_is_taken_apart_for_its_successor() -> None:
    assert python_words(["python3", "-u", "train.py", "--lr", "1"]) == (["python3", "-u"], ["train.py", "--lr", "1"])
    assert python_words(["/opt/bin/python", "-X", "dev", "-m", "pkg", "x"]) == (
        ["/opt/bin/python", "-X", "dev"],
        ["-m", "pkg", "x"],
    )
    for other in (["sh", "-c", "x"], ["python", "-c", "x"], ["python"], ["python", "-m"], ["python", "-"]):
        assert python_words(other) is None
