"""The plain script, run by real shells with stub programs: stops, uploads, restarts, exit codes."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from builders import a_job, a_queue
from orchestra.render import Options, Target, render
from orchestra.render.site import STATE

AWS = """\
#!/bin/sh
echo "aws $*" >> "$RECORD/aws"
[ ! -e "$RECORD/aws-fails" ]
"""
TORCHRUN = """\
#!/bin/sh
echo "$*" >> "$RECORD/torchrun"
env > "$RECORD/env"
echo $$ > "$RECORD/torchrun.pid"
[ -z "${TRAINS_FOR:-}" ] || {
  trap 'echo saved >> "$RECORD/saved"; exit 1' TERM
  sleep "$TRAINS_FOR" &
  wait
}
exit "$(cat "$RECORD/code" 2>/dev/null || echo 0)"
"""


class Pod:
    """A folder that stands for the pod, and the script in it."""

    def __init__(self, folder: Path, shell: str) -> None:
        self.folder, self.shell = folder, shell
        self._started: list[subprocess.Popen[bytes]] = []
        self.state = folder / "state"
        self.record = folder / "record"
        (folder / "bin").mkdir()
        self.record.mkdir()
        for name, text in (("aws", AWS), ("torchrun", TORCHRUN)):
            (folder / "bin" / name).write_text(text)
            (folder / "bin" / name).chmod(0o755)

    def script(self, target: Target = "job", **spec: Any) -> str:
        """The rendered script, with the pod's folders in place of a real pod's."""
        given: dict[str, Any] = {"numNodes": 2, "command": "python train.py --lr '$HOME'"} | spec
        objects = render(a_queue(image="image"), a_job(**given), target, Options(plain=True)).objects
        text: str = next(one for one in objects if one["kind"] == "ConfigMap")["data"]["script.sh"]
        return text.replace(STATE, str(self.state)).replace("/dev/termination-log", str(self.folder / "log"))

    def start(self, script: str, **env: str) -> subprocess.Popen[bytes]:
        file = self.folder / "script.sh"
        file.write_text(script)
        path = f"{self.folder / 'bin'}:{os.environ['PATH']}"
        known = {"PATH": path, "RECORD": str(self.record), "NNODES": "2", "BACKOFF_SECONDS": "0"}
        with (self.folder / "output").open("ab") as output:
            process = subprocess.Popen(
                [self.shell, str(file)],
                env=known | {"POD_NAME": "job-1", "HOME": "/nowhere"} | env,
                stdout=output,
                stderr=output,
                start_new_session=True,
            )
        self._started.append(process)
        return process

    def run(self, script: str, **env: str) -> tuple[int, str]:
        code = self.start(script, **env).wait(timeout=20)
        return code, self.said

    @property
    def said(self) -> str:
        return (self.folder / "output").read_text()

    def end(self) -> None:
        """As the end of process 1 ends a pod: with everything in it."""
        for process in self._started:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()

    def lines(self, name: str) -> list[str]:
        file = self.record / name
        return file.read_text().splitlines() if file.exists() else []

    def wait_for(self, what: Path) -> None:
        deadline = time.monotonic() + 10
        while not what.exists():
            assert time.monotonic() < deadline, f"{what} never came"
            time.sleep(0.02)


@pytest.fixture(params=["sh", "bash"])
def pod(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Pod]:
    shell = shutil.which(request.param)
    if shell is None:
        pytest.skip(f"there is no {request.param} here")
    pod = Pod(tmp_path, shell)
    yield pod
    pod.end()


def output(url: str = "s3://bucket/out", interval: int = 600) -> dict[str, Any]:
    return {"sync": {"output": url, "interval": interval}}


def test_the_launch_line_is_the_nodes_own_and_nothing_of_the_users_is_expanded(pod: Pod) -> None:
    code, _ = pod.run(pod.script(), NODE_RANK="1")
    assert code == 0
    words = pod.lines("torchrun")[0].split()
    assert "--nnodes=2" in words
    assert "--local-addr=job-1.job" in words
    assert "--rdzv-endpoint=job-0.job:29500" in words
    assert next(word for word in words if "is_host" in word).startswith("--rdzv-conf=is_host=0,")
    assert words[-3:] == ["train.py", "--lr", "$HOME"]


def test_node_0_hosts_the_store(pod: Pod) -> None:
    pod.run(pod.script(), NODE_RANK="0")
    assert "is_host=1," in pod.lines("torchrun")[0]


def test_without_the_index_label_the_rank_comes_from_the_pods_name(pod: Pod) -> None:
    process = pod.start(pod.script("statefulset"), NODE_RANK="", POD_NAME="job-7")
    pod.wait_for(pod.state / "finished")
    process.terminate()
    process.wait(timeout=10)
    assert "--local-addr=job-7.job" in pod.lines("torchrun")[0]


@pytest.mark.parametrize("spelling", ["HF_TOKEN", "HUGGINGFACE_HUB_TOKEN", "HUGGING_FACE_HUB_TOKEN"])
def test_every_spelling_of_the_token_reaches_the_trainer_as_hf_token(pod: Pod, spelling: str) -> None:
    pod.run(pod.script(), NODE_RANK="0", **{spelling: "secret"})
    assert "HF_TOKEN=secret" in pod.lines("env")


def test_no_token_is_no_empty_token(pod: Pod) -> None:
    pod.run(pod.script(), NODE_RANK="0")
    assert not [line for line in pod.lines("env") if line.startswith("HF_TOKEN")]


def test_it_is_healthy_before_anything_long_happens(pod: Pod) -> None:
    process = pod.start(pod.script(setupCommand="sleep 30"), NODE_RANK="0")
    pod.wait_for(pod.state / "healthy")
    assert not (pod.state / "ready").exists()
    process.terminate()
    process.wait(timeout=10)
    assert process.returncode == 143


def test_the_exit_code_is_the_trainers_and_the_last_upload_happens_all_the_same(pod: Pod) -> None:
    (pod.record / "code").write_text("7")
    (out := pod.folder / "out").mkdir()
    script = (
        pod.script(restartPolicy="Never", **output()).replace("/out", str(out)).replace(f"bucket{out}", "bucket/out")
    )
    code, _ = pod.run(script, NODE_RANK="0")
    assert code == 7
    assert [line.split()[-2:] for line in pod.lines("aws")] == [
        ["s3://bucket/out", str(out)],
        [str(out), "s3://bucket/out"],
    ]
    assert (pod.folder / "log").read_text() == "node 0 ended with 7 after 0 restarts\n"


def test_a_failed_last_upload_is_a_failure(pod: Pod) -> None:
    (out := pod.folder / "o").mkdir()
    script = pod.script(**output()).replace("LOCAL_OUTPUT_DIR=/out", f"LOCAL_OUTPUT_DIR={out}")
    script = script.replace("run aws", "run true").replace("mkdir -p /out", "true")
    (pod.record / "aws-fails").touch()
    code, said = pod.run(script, NODE_RANK="0")
    assert (code, "the last upload failed" in said) == (1, True)


def test_a_stop_reaches_the_trainer_is_waited_for_and_uploads_last(pod: Pod) -> None:
    (out := pod.folder / "o").mkdir()
    script = pod.script(**output()).replace("LOCAL_OUTPUT_DIR=/out", f"LOCAL_OUTPUT_DIR={out}")
    script = script.replace("mkdir -p /out", "true")
    process = pod.start(script, NODE_RANK="0", TRAINS_FOR="60")
    pod.wait_for(pod.record / "torchrun.pid")
    time.sleep(0.2)
    process.send_signal(signal.SIGTERM)
    process.wait(timeout=10)
    assert process.returncode == 143  # not the launcher's 1: a stop is no failure
    assert pod.lines("saved") == ["saved"]
    assert len(pod.lines("aws")) == 2
    assert len(pod.lines("torchrun")) == 1


def test_a_trainer_that_ignores_the_stop_is_killed_while_there_is_time_to_upload(pod: Pod) -> None:
    (pod.folder / "bin" / "torchrun").write_text(
        TORCHRUN.replace("trap 'echo saved >> \"$RECORD/saved\"; exit 1' TERM", "trap '' TERM")
    )
    (out := pod.folder / "o").mkdir()
    script = pod.script(**output()).replace("LOCAL_OUTPUT_DIR=/out", f"LOCAL_OUTPUT_DIR={out}")
    script = script.replace("mkdir -p /out", "true")
    process = pod.start(script, NODE_RANK="0", TRAINS_FOR="8", GRACE_SECONDS="1")
    pod.wait_for(pod.record / "torchrun.pid")
    time.sleep(0.2)
    began = time.monotonic()
    process.send_signal(signal.SIGTERM)
    process.wait(timeout=10)
    assert time.monotonic() - began < 5
    assert len(pod.lines("aws")) == 2


def test_the_background_upload_runs_and_is_ended(pod: Pod) -> None:
    (out := pod.folder / "o").mkdir()
    script = pod.script(**output(interval=600)).replace("LOCAL_OUTPUT_DIR=/out", f"LOCAL_OUTPUT_DIR={out}")
    script = script.replace("mkdir -p /out", "true")
    code, _ = pod.run(script, NODE_RANK="0", TRAINS_FOR="1", SYNC_SECONDS="0.2")
    assert code == 0
    uploads = len(pod.lines("aws"))
    assert uploads >= 4  # the fetch, at least two while training, the last
    time.sleep(0.6)
    assert len(pod.lines("aws")) == uploads


def test_what_is_killed_is_started_again_in_the_same_pod(pod: Pod) -> None:
    process = pod.start(pod.script(), NODE_RANK="0", TRAINS_FOR="60")
    pod.wait_for(pod.record / "torchrun.pid")
    first = int((pod.record / "torchrun.pid").read_text())
    os.kill(first, signal.SIGKILL)
    deadline = time.monotonic() + 10
    while len(pod.lines("torchrun")) < 2 and time.monotonic() < deadline:
        time.sleep(0.02)
    process.terminate()
    process.wait(timeout=10)
    assert "ended with 137; starting again (1 of 3)" in pod.said
    assert process.returncode == 143


def test_failures_are_counted_across_restarts_of_the_container(pod: Pod) -> None:
    (pod.record / "code").write_text("1")
    assert pod.run(pod.script(maxRestarts=2), NODE_RANK="0")[0] == 1
    assert len(pod.lines("torchrun")) == 3
    pod.run(pod.script(maxRestarts=2), NODE_RANK="0")
    assert len(pod.lines("torchrun")) == 4


def test_a_failed_set_up_is_the_end(pod: Pod) -> None:
    code, _ = pod.run(pod.script(setupCommand="exit 3"), NODE_RANK="0")
    assert (code, pod.lines("torchrun")) == (3, [])


def test_a_finished_pod_of_a_statefulset_idles_and_does_not_train_again(pod: Pod) -> None:
    for _ in range(2):
        process = pod.start(pod.script("statefulset"), NODE_RANK="0")
        pod.wait_for(pod.state / "finished")
        time.sleep(0.2)
        assert process.poll() is None
        process.terminate()
        process.wait(timeout=10)
        assert process.returncode == 0
    assert len(pod.lines("torchrun")) == 1


def test_deepspeed_finds_its_hosts(pod: Pod) -> None:
    shutil.copy(pod.folder / "bin" / "torchrun", pod.folder / "bin" / "deepspeed")
    pod.run(pod.script(command="deepspeed train.py"), NODE_RANK="1")
    words = pod.lines("torchrun")[0].split()
    assert {"--no_ssh", "--node_rank=1", "--master_addr=job-0.job"} <= set(words)
    hostfile = next(word for word in words if word.startswith("--hostfile=")).partition("=")[2]
    assert Path(hostfile).read_text() == "job-0.job slots=8\njob-1.job slots=8\n"


def test_a_command_without_a_launcher_gets_its_rank(pod: Pod) -> None:
    (pod.folder / "bin" / "mine").write_text('#!/bin/sh\necho "$RANK, $PET_RDZV_CONF"\n')
    (pod.folder / "bin" / "mine").chmod(0o755)
    script = pod.script("pytorchjob", command="mine", procsPerNode=1)
    _, said = pod.run(script, RANK="1")
    assert said.startswith("1, is_host=0,")
