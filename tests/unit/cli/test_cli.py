"""The command line, as a user types it."""

from __future__ import annotations

import json
import resource
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

EXAMPLES = Path(__file__).resolve().parents[3] / "examples"
BIN = Path(sys.executable).parent

FIVE_MISTAKES = """\
apiVersion: torchrun.ai/v1alpha1
kind: TorchrunQueue
metadata: {name: q}
spec: {nodeResources: {gpus: 8}}
---
apiVersion: torchrun.ai/v1alpha1
kind: TorchrunJob
metadata: {name: Wrong_Name}
spec:
  jobQueue: q
  numGPUs: 13
  command: cd src && python train.py
  env: [{name: A, value: 8}]
  restartpolicy: Never
"""


def run(*words: str, program: str = "orchestra", given: str | None = None) -> subprocess.CompletedProcess[str]:
    return subprocess.run([str(BIN / program), *words], capture_output=True, text=True, input=given, check=False)


def test_five_mistakes_are_five_lines_with_their_places(tmp_path: Path) -> None:
    file = tmp_path / "job.yaml"
    file.write_text(FIVE_MISTAKES)
    result = run("validate", str(file))
    assert result.returncode == 1
    assert "Traceback" not in result.stderr
    places = {line.split(": ")[0].removeprefix(f"{file}:"): line.split(": ")[1] for line in result.stderr.splitlines()}
    assert places == {
        "8:12": "metadata.name",
        "11:3": "spec.numGPUs",
        "12:3": "spec.command",
        "13:26": "spec.env[0].value",
        "14:3": "spec.restartpolicy",
    }


def test_every_example_is_valid_and_plans() -> None:
    result = run("validate", str(EXAMPLES))
    assert (result.returncode, result.stderr) == (0, "")
    planned = json.loads(run("plan", str(EXAMPLES), "-o", "json").stdout)
    files = [document for path in EXAMPLES.rglob("*.yaml") for document in yaml.safe_load_all(path.read_text())]
    assert len(planned) == sum(document["kind"] == "TorchrunJob" for document in files)


@pytest.mark.parametrize("example", sorted(EXAMPLES.glob("*.yaml")), ids=lambda path: path.stem)
def test_each_example_stands_alone(example: Path) -> None:
    assert run("plan", str(example)).returncode == 0


def test_the_seeds_jobs_plan_as_the_seed_says() -> None:
    plans = json.loads(run("plan", str(EXAMPLES / "seed"), "-o", "json").stdout)
    sizes = {one["job"]: (len(one["nodes"]), one["procsPerNode"], one["worldSize"]) for one in plans}
    assert sizes == {"training-job": (2, 8, 16), "vit-training": (4, 8, 32)}


def test_plan_as_json_is_an_object_for_one_job_and_has_each_nodes_argv_and_env() -> None:
    result = run("plan", "-f", str(EXAMPLES / "multi-node.yaml"), "-o", "json")
    one = json.loads(result.stdout)
    assert (one["job"], one["queue"], one["procsPerNode"], one["worldSize"]) == ("multi-node", "h100", 8, 16)
    assert [node["env"]["NODE_RANK"] for node in one["nodes"]] == ["0", "1"]
    assert all(node["argv"][0] == "torchrun" for node in one["nodes"])
    assert yaml.safe_load(run("plan", str(EXAMPLES / "multi-node.yaml"), "-o", "yaml").stdout) == one


def test_plan_for_people_says_what_and_why() -> None:
    text = run("plan", str(EXAMPLES / "multi-node.yaml")).stdout
    assert "2 nodes x 8 processes = 16" in text
    assert "16 GPUs fill 2 nodes of 8" in text


def test_a_missing_queue_is_named_with_its_place() -> None:
    result = run("plan", str(EXAMPLES / "seed" / "training-job.yaml"))
    assert result.returncode == 1
    assert "spec.jobQueue: there is no TorchrunQueue 'gpu-training-queue'" in result.stderr


def test_standard_input_and_usage() -> None:
    assert run("validate", "-", given=(EXAMPLES / "cpu.yaml").read_text()).returncode == 0
    assert run("validate").returncode == 2
    assert run("nonsense").returncode == 2
    assert run("plan", "/does/not/exist.yaml").returncode == 1


def test_as_a_kubectl_plugin_the_usage_says_so() -> None:
    assert "usage: kubectl torchrun" in run("--help", program="kubectl-torchrun").stdout
    assert "usage: orchestra" in run("--help").stdout
    assert "kubectl torchrun plan job.yaml" in run("plan", "--help", program="kubectl-torchrun").stdout


def test_version_says_its_name() -> None:
    assert run("version").stdout.startswith("orchestra ")
    assert json.loads(run("version", "-o", "json").stdout)["apiVersion"] == "torchrun.ai/v1alpha1"


def test_completion_offers_verbs_options_choices_and_files() -> None:
    def offered(*words: str) -> list[str]:
        return run(*words, program="orchestra-complete").stdout.split()

    assert "plan" in offered("pl")
    assert "--output" in offered("plan", "--out")
    assert offered("plan", "-o", "") == ["table", "json", "yaml"]
    assert offered("plan", "") == [":files"]
    assert offered("completion", "") == ["bash", "fish", "zsh"]
    assert run("plan", "-o", "j", program="kubectl_complete-torchrun").stdout.split() == ["json", ":4"]
    assert run("plan", "", program="kubectl_complete-torchrun").stdout.split() == [":0"]


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion_scripts_are_printed(shell: str) -> None:
    assert "orchestra-complete" in run("completion", shell).stdout


def test_bash_really_completes() -> None:
    script = run("completion", "bash").stdout
    asks = 'COMP_WORDS=(orchestra pl); COMP_CWORD=1; _orchestra; printf "%s\\n" "${COMPREPLY[@]}"'
    shell = ["bash", "--norc", "-c", f'PATH="{BIN}:$PATH"\n{script}\n{asks}']
    assert subprocess.run(shell, capture_output=True, text=True, check=True).stdout.split() == ["plan"]


def test_a_closed_pipe_is_no_error() -> None:
    line = f'"{BIN}/orchestra" plan "{EXAMPLES}" -o json | head -1; exit ${{PIPESTATUS[0]}}'
    result = subprocess.run(["bash", "-c", line], capture_output=True, text=True, check=False)
    assert "Traceback" not in result.stderr
    assert "BrokenPipe" not in result.stderr


def test_help_is_quick() -> None:
    """The goal is 0.2 s of CPU, shown by a benchmark; here only that nothing heavy is imported."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN).ru_utime
    run("--help")
    assert resource.getrusage(resource.RUSAGE_CHILDREN).ru_utime - before < 2.0
    heavy = subprocess.run(
        [sys.executable, "-X", "importtime", "-c", "from orchestra.cli.main import build_parser as b; b('x', None)"],
        capture_output=True, text=True, check=True,
    ).stderr  # fmt: skip
    assert not any(name in heavy for name in ("msgspec", "yaml", "torch", "aiohttp"))
