"""`orchestra render` and `orchestra convert`, as a user types them."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import yaml

EXAMPLES = Path(__file__).resolve().parents[3] / "examples"
BIN = Path(sys.executable).parent


def run(*words: str, given: str | None = None) -> subprocess.CompletedProcess[str]:
    return subprocess.run([str(BIN / "orchestra"), *words], capture_output=True, text=True, input=given, check=False)


def test_render_prints_documents_and_warns_with_the_fields_place() -> None:
    file = EXAMPLES / "elastic.yaml"
    result = run("render", "--target", "job", "--plain", str(file))
    assert result.returncode == 0
    kinds = [document["kind"] for document in yaml.safe_load_all(result.stdout)]
    assert kinds == ["ConfigMap", "Service", "Job"]
    line = next(line for line in result.stderr.splitlines() if "spec.elastic" in line)
    number = next(n for n, text in enumerate(file.read_text().splitlines(), start=1) if text.startswith("  elastic:"))
    assert line.startswith(f"{file}:{number}:3: warning: spec.elastic: ")


def test_strict_makes_the_warning_an_error_and_prints_nothing_else() -> None:
    result = run("render", "--target", "job", "--strict", str(EXAMPLES / "elastic.yaml"))
    assert (result.returncode, result.stdout) == (1, "")
    assert "spec.elastic" in result.stderr


def test_a_warning_about_the_queue_stands_in_the_queue() -> None:
    file = EXAMPLES / "multi-node.yaml"
    number = next(n for n, text in enumerate(file.read_text().splitlines(), start=1) if text.startswith("  kaiQueue:"))
    assert f"{file}:{number}:3: warning: spec.kaiQueue" in run("render", "-t", "job", str(file)).stderr


def test_a_job_without_an_image_says_so_where_it_is() -> None:
    result = run("render", "-t", "job", str(EXAMPLES / "cpu.yaml"))
    assert result.returncode == 1
    assert "spec.image: a cluster needs an image" in result.stderr
    assert run("render", "-t", "job", "--image", "x", str(EXAMPLES / "cpu.yaml")).returncode == 0


def test_a_folder_gets_one_file_an_object_and_a_kustomization(tmp_path: Path) -> None:
    result = run(
        "render", "-t", "statefulset", "-o", str(tmp_path / "out"), "--kustomize", str(EXAMPLES / "single-node.yaml")
    )
    assert result.returncode == 0
    names = {path.name for path in (tmp_path / "out").iterdir()}
    resources = yaml.safe_load((tmp_path / "out" / "kustomization.yaml").read_text())["resources"]
    assert names == {*resources, "kustomization.yaml"}
    assert "statefulset-single-node.yaml" in names


def test_jobs_that_share_the_agent_render_it_once() -> None:
    result = run("render", "-t", "job", str(EXAMPLES / "several-queues.yaml"))
    names = [document["metadata"]["name"] for document in yaml.safe_load_all(result.stdout)]
    assert len([name for name in names if name.startswith("orchestra-agent-")]) == 1


def test_usage_mistakes_are_exit_code_2() -> None:
    assert run("render", "-t", "job").returncode == 2
    assert run("render", "-t", "job", "--kustomize", str(EXAMPLES / "elastic.yaml")).returncode == 2
    assert run("render", str(EXAMPLES / "elastic.yaml")).returncode == 2
    assert run("convert").returncode == 2


def test_what_render_writes_convert_reads_and_plan_plans() -> None:
    rendered = run("render", "-t", "statefulset", str(EXAMPLES / "single-node.yaml")).stdout
    converted = run("convert", "-", given=rendered)
    assert converted.returncode == 0
    assert run("plan", "-", given=converted.stdout).returncode == 0
    assert "single-node: understood: size: 1 node" in converted.stderr


def test_convert_a_launch_line() -> None:
    result = run("convert", "--command", "torchrun --nproc-per-node=2 train.py", "--name", "mine")
    assert [document["metadata"]["name"] for document in yaml.safe_load_all(result.stdout)] == ["mine-queue", "mine"]
    assert "guessed: a node has 2 GPUs" in result.stderr


def test_convert_names_the_file_that_it_cannot_read(tmp_path: Path) -> None:
    result = run("convert", str(tmp_path / "none.yaml"))
    assert result.returncode == 1
    assert result.stderr.startswith(f"{tmp_path / 'none.yaml'}:1:1: cannot be read")


def test_convert_files_without_a_workload() -> None:
    result = run("convert", "-", given="apiVersion: v1\nkind: Service\nmetadata: {name: x}\n")
    assert result.returncode == 1
    assert "PyTorchJob, TrainJob, StatefulSet or Job is expected" in result.stderr
