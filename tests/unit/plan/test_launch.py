"""Each kind of command plans to the right launch."""

from __future__ import annotations

from typing import Any

import pytest

from builders import a_cpu_queue, a_job, a_queue
from orchestra.api import Invalid
from orchestra.plan import Plan, Where, plan
from orchestra.plan.options import (
    DEEPSPEED_SHORT,
    TORCHRUN_SHORT,
    TORCHRUN_SWITCHES,
    TORCHRUN_VALUES,
    read_deepspeed,
)


def planned(command: str | list[str], **spec: Any) -> Plan:
    spec = {"numNodes": 1, "procsPerNode": 2} | spec
    return plan(a_cpu_queue(), a_job(command=command, **{key: value for key, value in spec.items() if value}))


def tail(made: Plan, launcher: str = "torchrun") -> list[str]:
    """What stands behind the options that we add."""
    argv = made.nodes[0].argv
    assert argv[0] == launcher
    return [
        word
        for word in argv[1:]
        if not word.startswith(("--nnodes=", "--nproc-per-node=", "--rdzv", "--max-res", "--local-"))
    ]


@pytest.mark.parametrize(
    ("command", "after", "program"),
    [
        ("python train.py --lr 1", ["train.py", "--lr", "1"], ["python", "-u", "train.py", "--lr", "1"]),
        ("python3 -u train.py", ["train.py"], ["python3", "-u", "train.py"]),
        ("python -m pkg.train -x", ["-m", "pkg.train", "-x"], ["python", "-u", "-m", "pkg.train", "-x"]),
        ("python -O train.py", ["--no-python", "python", "-O", "train.py"], ["python", "-u", "-O", "train.py"]),
        ("python -W error train.py", ["--no-python", "python", "-W", "error", "train.py"],
         ["python", "-u", "-W", "error", "train.py"]),
        (["python", "-c", "print(1)\nprint(2)"], ["--no-python", "python", "-c", "print(1)\nprint(2)"],
         ["python", "-u", "-c", "print(1)\nprint(2)"]),
        ("torchrun train.py", ["train.py"], ["python", "-u", "train.py"]),
        ("torchrun -m pkg.train", ["-m", "pkg.train"], ["python", "-u", "-m", "pkg.train"]),
        ("torchrun --tee 3 --no-python ./run", ["--tee", "3", "--no-python", "./run"], ["./run"]),
    ],
)  # fmt: skip
def test_python_and_torchrun_lines(command: str | list[str], after: list[str], program: list[str]) -> None:
    made = planned(command)
    assert made.launch.launcher == "torchrun"
    assert tail(made) == after
    assert made.launch.program == program


def test_an_interpreter_with_a_path_launches_with_its_own_torch() -> None:
    made = planned("/opt/env/bin/python train.py")
    assert made.nodes[0].argv[:3] == ["/opt/env/bin/python", "-m", "torch.distributed.run"]
    made = planned("/opt/env/bin/torchrun train.py")
    assert made.launch.program[0] == "/opt/env/bin/python"
    made = planned("python3 -m torch.distributed.run --tee=3 train.py")
    assert made.nodes[0].argv[:3] == ["python3", "-m", "torch.distributed.run"]
    assert made.nodes[0].argv[-2:] == ["--tee=3", "train.py"]


def test_torchrun_keeps_the_users_flags_and_gets_only_what_is_missing() -> None:
    made = plan(a_cpu_queue(), a_job(command="torchrun --nproc_per_node=2 --max_restarts 7 train.py"))
    argv = made.nodes[0].argv
    assert made.procs_per_node == 2
    assert argv.count("--nproc_per_node=2") == 1
    assert not any(word.startswith(("--nproc-per-node", "--max-restarts=")) for word in argv)
    assert argv[argv.index("--max_restarts") + 1] == "7"
    assert any(word.startswith("--rdzv-endpoint=") for word in argv)


def test_flags_filled_from_our_variables_are_ours() -> None:
    line = (
        "torchrun --nnodes=$NNODES --node_rank=$RANK --nproc_per_node=$NPROC_PER_NODE --rdzv_backend=c10d "
        "--rdzv_endpoint=$MASTER_ADDR:$MASTER_PORT k8s/train.py --epochs 2"
    )
    made = planned(line, numNodes=2)
    assert "--nnodes=2" in made.nodes[1].argv
    assert not any("$" in word for word in made.nodes[1].argv)
    assert not made.notes


def test_a_foreign_rendezvous_keeps_its_own_host() -> None:
    made = planned("torchrun --rdzv-backend=c10d --rdzv-endpoint=store:1234 train.py", numNodes=2)
    assert made.rendezvous.store == "store:1234"
    assert not made.rendezvous.own_store
    assert not any("is_host" in word for word in made.nodes[0].argv)
    made = planned("torchrun --master_addr=head --master_port=23456 train.py", numNodes=2)
    assert made.rendezvous.backend == "static"
    assert "--node-rank=1" in made.nodes[1].argv


def test_standalone_brings_its_own_rendezvous() -> None:
    made = planned("torchrun --standalone train.py")
    assert not any(word.startswith("--rdzv") for word in made.nodes[0].argv)
    assert not made.rendezvous.own_store


def test_deepspeed_on_one_node_and_on_two() -> None:
    one = planned("deepspeed train.py --deepspeed ds.json")
    assert one.nodes[0].argv == [
        "deepspeed",
        "--num_gpus=2",
        "--master_port=29500",
        "train.py",
        "--deepspeed",
        "ds.json",
    ]
    two = planned("deepspeed train.py", numNodes=2)
    assert two.nodes[1].argv == [
        "deepspeed", "--hostfile=/run/orchestra/hostfile", "--no_ssh", "--node_rank=1",
        "--master_addr=job-0.job", "--master_port=29500", "train.py",
    ]  # fmt: skip
    assert two.launch.files == {"/run/orchestra/hostfile": "job-0.job slots=2\njob-1.job slots=2\n"}
    made = planned("python train.py", launcher="deepspeed")
    assert made.nodes[0].argv[0] == "deepspeed"
    assert plan(a_queue(), a_job(command="deepspeed --num_gpus=4 train.py", numNodes=1)).procs_per_node == 4


def test_a_plain_command_runs_as_it_is_once_a_node() -> None:
    made = planned("bash run.sh --flag 'a b'", numNodes=2, procsPerNode=None)
    assert [node.argv for node in made.nodes] == [["bash", "run.sh", "--flag", "a b"]] * 2
    assert made.nodes[1].env["RANK"] == "1"
    assert made.nodes[1].env["WORLD_SIZE"] == "2"
    forced = planned("bash run.sh", launcher="torchrun")
    assert tail(forced) == ["--no-python", "bash", "run.sh"]
    assert planned("python train.py", launcher="none").nodes[0].argv == ["python", "train.py"]


@pytest.mark.parametrize(
    "command",
    ["python", "python -", "python -m", "torchrun", "torchrun --nnodes", "torchrun --what train.py", "deepspeed",
     "cd src && python train.py", "python 'train.py", "   ", ["", "x"]],
)  # fmt: skip
def test_a_command_that_cannot_be_launched_is_refused_with_a_mend(command: str | list[str]) -> None:
    with pytest.raises(Invalid) as caught:
        planned(command)
    (problem,) = caught.value.problems
    assert problem.path == "spec.command"
    assert problem.mend


def test_each_node_knows_itself_and_the_first() -> None:
    made = planned("python train.py", numNodes=3)
    for index, node in enumerate(made.nodes):
        assert node.env["NODE_RANK"] == str(index)
        assert node.env["MASTER_ADDR"] == "job-0.job"
        assert (node.env["NNODES"], node.env["NPROC_PER_NODE"]) == ("3", "2")
        assert node.env["PET_NNODES"] == "3"
        assert node.env["PET_RDZV_ENDPOINT"] == "job-rdzv:29500"
        assert node.env["TORCH_DISABLE_SHARE_RDZV_TCP_STORE"] == "1"
        assert f"--local-addr=job-{index}.job" in node.argv
        assert "is_host=0" in node.env["PET_RDZV_CONF"]


def test_an_engine_says_where_and_the_plan_follows() -> None:
    where = Where(
        run_id="uid-4", store="127.0.0.1:5000", hosts=["127.0.0.1", "127.0.0.1"], port=5001,
        store_on_first_node=True, restarts_left=1,
    )  # fmt: skip
    made = plan(a_cpu_queue(), a_job(numNodes=2), where)
    assert "--rdzv-endpoint=127.0.0.1:5000" in made.nodes[0].argv
    assert "--rdzv-id=uid-4" in made.nodes[0].argv
    assert "--max-restarts=1" in made.nodes[0].argv
    assert made.nodes[0].env["PET_RDZV_CONF"].startswith("is_host=1")
    assert made.nodes[1].env["PET_RDZV_CONF"].startswith("is_host=0")
    assert made.nodes[1].env["MASTER_PORT"] == "5001"


def test_a_users_variable_wins_except_where_nodes_would_come_apart() -> None:
    env = [{"name": "OMP_NUM_THREADS", "value": "3"}, {"name": "MASTER_ADDR", "value": "elsewhere"}]
    made = planned("python train.py", env=env)
    assert made.nodes[0].env["OMP_NUM_THREADS"] == "3"
    assert made.nodes[0].env["MASTER_ADDR"] == "job-0.job"
    assert any("MASTER_ADDR" in note for note in made.notes)


def test_never_restarting_leaves_torchrun_no_restarts() -> None:
    assert "--max-restarts=0" in planned("python train.py", restartPolicy="Never").nodes[0].argv


def test_a_set_up_line_is_for_a_shell_and_a_list_is_not() -> None:
    assert planned("python t.py", setupCommand="a && b").launch.setup == ["/bin/sh", "-ec", "a && b"]
    assert planned("python t.py", setupCommand=["a", "&&"]).launch.setup == ["a", "&&"]


@pytest.mark.torch
def test_the_option_table_is_torchruns_own() -> None:
    from torch.distributed.run import get_args_parser

    values: set[str] = set()
    switches: set[str] = set()
    short: dict[str, str] = {}
    for action in get_args_parser()._actions:
        long = [option for option in action.option_strings if option.startswith("--")]
        if not long:
            continue
        name = long[0].removeprefix("--").replace("_", "-")
        (switches if action.nargs == 0 else values).add(name)
        short.update({option: name for option in action.option_strings if not option.startswith("--")})
    assert values <= TORCHRUN_VALUES
    assert switches <= TORCHRUN_SWITCHES
    assert short == TORCHRUN_SHORT


def test_deepspeed_short_options_take_values() -> None:
    assert read_deepspeed(["-i", "a:0", "train.py"]).program == ["train.py"]
    assert set(DEEPSPEED_SHORT) == {"-H", "-i", "-e", "-h"}
