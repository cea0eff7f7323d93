"""Tokens and plugins are asked again when, and only when, it is time."""

import asyncio
import sys
from pathlib import Path

import pytest

from orchestra.kube.config import Access, ConfigError, ExecPlugin
from orchestra.kube.identity import Credential, Identity

API = "client.authentication.k8s.io/v1"


class Clock:
    now = 1000.0

    def __call__(self) -> float:
        return self.now


def test_a_token_file_is_read_again_each_minute_and_when_rejected(tmp_path: Path) -> None:
    file, clock = tmp_path / "token", Clock()
    file.write_text("one\n")

    async def run() -> None:
        identity = Identity(Access(server="https://a", token_file=file), clock=clock)
        first = await identity.credential()
        assert first == Credential("one")
        file.write_text("two\n")
        assert await identity.credential() is first
        second = await identity.credential(rejected=first)
        assert second == Credential("two")
        assert await identity.credential(rejected=first) is second  # somebody else has done it meanwhile
        file.write_text("three\n")
        clock.now += 61
        assert identity.cached() is None
        assert await identity.credential() == Credential("three")

    asyncio.run(run())


def plugin(script: Path, code: str) -> ExecPlugin:
    script.write_text(code)
    return ExecPlugin(command=sys.executable, args=[str(script)], api_version=API, env=[{"name": "WHO", "value": "me"}])


PRINT = """
import json, os, pathlib, sys
count = pathlib.Path(__file__ + ".count")
n = int(count.read_text()) + 1 if count.exists() else 1
count.write_text(str(n))
info = json.loads(os.environ["KUBERNETES_EXEC_INFO"])
assert info["kind"] == "ExecCredential" and not info["spec"]["interactive"]
status = {"token": f"{os.environ['WHO']}-{n}", "expirationTimestamp": "2030-01-01T00:00:00Z"}
print(json.dumps({"apiVersion": info["apiVersion"], "kind": "ExecCredential", "status": status}))
"""
END = 1893456000.0


def test_a_plugin_is_asked_once_and_again_before_its_credential_ends(tmp_path: Path) -> None:
    wall = Clock()
    wall.now = END - 3600

    async def run() -> None:
        access = Access(server="https://a", plugin=plugin(tmp_path / "p.py", PRINT))
        identity = Identity(access, wall_clock=wall)
        found = await asyncio.gather(*(identity.credential() for _ in range(10)))
        assert found == [Credential("me-1")] * 10
        wall.now = END - 5
        assert await identity.credential() == Credential("me-2")

    asyncio.run(run())


@pytest.mark.parametrize(
    ("code", "message"),
    [
        ("import sys; sys.exit('not logged in')", "ended with 1: not logged in"),
        ("print('hello')", "printed no ExecCredential"),
        ("print('{\"status\": {}}')", "printed neither a token nor a certificate"),
    ],
)
def test_a_plugin_that_fails_is_quoted(tmp_path: Path, code: str, message: str) -> None:
    access = Access(server="https://a", plugin=plugin(tmp_path / "p.py", code))

    async def run() -> None:
        await Identity(access).credential()

    with pytest.raises(ConfigError, match=message):
        asyncio.run(run())


def test_a_plugin_that_is_not_installed_comes_with_its_hint() -> None:
    missing = ExecPlugin(command="/nowhere/plugin", api_version=API, install_hint="Install it.")

    async def run() -> None:
        await Identity(Access(server="https://a", plugin=missing)).credential()

    with pytest.raises(ConfigError, match=r"does not start: No such file or directory\. Install it\."):
        asyncio.run(run())
