"""The etcd client that the agent brings, against a real etcd: by itself, and under torchrun."""

from __future__ import annotations

import io
import os
import subprocess
import sys
import threading
import time
import zipfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from orchestra.agent import etcd_v2 as etcd
from orchestra.agent.environment import with_brought, without_brought
from orchestra.agent.pack import SIZE_LIMIT, agent_bytes
from testbed import etcd_v2

pytestmark = [pytest.mark.etcd_v2, pytest.mark.timeout(300)]


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with etcd_v2.running(tmp_path_factory.mktemp("etcd") / "data") as endpoint:
        yield endpoint


@pytest.fixture
def client(server: str) -> etcd.Client:
    host, _, port = server.partition(":")
    return etcd.Client(host, int(port), allow_reconnect=True)


def test_it_answers_as_python_etcd_would(client: etcd.Client) -> None:
    assert client.machines
    client.write("/run", None, dir=True, prevExist=False)
    with pytest.raises(etcd.EtcdAlreadyExist):
        client.write("/run", None, dir=True, prevExist=False)
    assert [child.key for child in client.get("/run").children] == ["/run"], "an empty folder is its own child"
    made = client.write("/run/a", "1", prevExist=False, ttl=30)
    assert (made.value, made.ttl, made.dir) == ("1", 30, False)
    assert client.test_and_set("/run/a", "2", "1").value == "2"
    with pytest.raises(etcd.EtcdCompareFailed):
        client.test_and_set("/run/a", "3", "1")
    counter = client.get("/run/a")
    counter.value = "4"
    assert client.update(counter).value == "4"
    with pytest.raises(etcd.EtcdCompareFailed):
        client.update(counter)
    client.set("/run/lease", None, ttl=1)
    client.refresh("/run/lease", ttl=60)
    assert {child.key for child in client.get("/run").children} == {"/run/a", "/run/lease"}
    with pytest.raises(etcd.EtcdNotFile):
        client.write("/run", "x")
    client.delete("/run/a", prevValue="4")
    with pytest.raises(etcd.EtcdKeyNotFound):
        client.get("/run/a")
    with pytest.raises(etcd.EtcdKeyNotFound):
        client.refresh("/run/none", ttl=5)


def test_a_watch_hears_what_happens_and_times_out_when_nothing_does(client: etcd.Client) -> None:
    seen = client.set("/watched", "1").etcd_index
    with pytest.raises(etcd.EtcdWatchTimedOut):
        client.watch("/watched", index=client.get("/watched").etcd_index + 1, timeout=0.3)
    heard: list[str | None] = []
    thread = threading.Thread(target=lambda: heard.append(client.watch("/watched", index=seen + 1, timeout=60).value))
    thread.start()
    client.set("/watched", "2")
    thread.join(60)
    assert heard == ["2"]


def test_a_server_that_is_not_there_yet_is_waited_for(tmp_path: Path) -> None:
    with etcd_v2.running(tmp_path / "first") as endpoint:
        pass
    host, _, port = endpoint.partition(":")
    late = etcd.Client(host, int(port))
    began = time.monotonic()
    failed = []

    def ask() -> None:
        try:
            late.get("/")
        except etcd.EtcdException as error:
            failed.append(error)

    thread = threading.Thread(target=ask, daemon=True)
    thread.start()
    thread.join(1.5)
    assert thread.is_alive(), f"it gave up after {time.monotonic() - began:.1f} s: {failed}"


@pytest.mark.torch
def test_torchrun_meets_by_etcd_v2_with_nothing_but_the_agents_own_client(server: str, tmp_path: Path) -> None:
    packed = agent_bytes()
    assert len(packed) < SIZE_LIMIT
    zipfile.ZipFile(io.BytesIO(packed)).extractall(tmp_path / "agent")
    env = with_brought({**os.environ, "PET_RDZV_BACKEND": "etcd-v2"}, str(tmp_path / "agent"))
    script = tmp_path / "script.py"
    script.write_text("import os\nprint('rank', os.environ['RANK'], 'of', os.environ['WORLD_SIZE'])\n")
    words = [sys.executable, "-m", "torch.distributed.run", "--nnodes=2", "--nproc-per-node=1", "--max-restarts=0"]
    words += ["--rdzv-backend=etcd-v2", f"--rdzv-endpoint={server}", "--rdzv-id=test", "--local-addr=127.0.0.1"]
    nodes = [
        subprocess.Popen([*words, str(script)], env=env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        for _ in range(2)
    ]
    said = "".join(node.communicate(timeout=240)[0] for node in nodes)
    assert [node.returncode for node in nodes] == [0, 0], said
    assert "rank 0 of 2" in said
    assert "rank 1 of 2" in said


def test_the_real_urllib3_is_used_where_there_is_one_and_its_names_where_not(tmp_path: Path) -> None:
    zipfile.ZipFile(io.BytesIO(agent_bytes())).extractall(tmp_path / "agent")
    show = "import urllib3.exceptions as e, urllib3; print(e.TimeoutError.__module__, getattr(urllib3, 'MINE', None))"
    words = [sys.executable, "-S", "-c", show]  # -S: without the packages of this environment
    brought = str(tmp_path / "agent" / "brought")
    without = subprocess.run(words, env={"PYTHONPATH": brought}, capture_output=True, text=True, check=True)
    assert without.stdout == "urllib3 None\n"
    package = tmp_path / "real" / "urllib3"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text("MINE = 'real'\n")
    (package / "exceptions.py").write_text("class TimeoutError(Exception): ...\n")
    env = {"PYTHONPATH": f"{brought}:{package.parent}"}
    there = subprocess.run(words, env=env, capture_output=True, text=True, check=True)
    assert there.stdout == "urllib3.exceptions real\n"


def test_ranks_do_not_see_what_their_launcher_was_brought() -> None:
    env = with_brought({"PET_RDZV_BACKEND": "etcd-v2", "PYTHONPATH": "/mine"}, "/agent")
    assert env["PYTHONPATH"] == "/agent/brought:/mine"
    assert without_brought({**env, "TORCHELASTIC_RUN_ID": "x"})["PYTHONPATH"] == "/mine"
    assert without_brought(env)["PYTHONPATH"] == env["PYTHONPATH"], "a script that is a launcher keeps it"
    assert with_brought({"PET_RDZV_BACKEND": "c10d"}, "/agent") == {"PET_RDZV_BACKEND": "c10d"}
