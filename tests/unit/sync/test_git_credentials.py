"""A Secret's keys become git's own credentials: real git is asked what it would send."""

from __future__ import annotations

import os
import shutil
import subprocess

import pytest

from orchestra.sync.fetching import git_credentials

pytestmark = pytest.mark.skipif(shutil.which("git") is None, reason="needs git")


@pytest.mark.parametrize(
    ("secret", "user", "password"),
    [
        ({"username": "ann", "password": "p w$`'\""}, "ann", "p w$`'\""),
        ({"token": "t0k"}, "git", "t0k"),
        ({"GIT_USERNAME": "bot", "GIT_TOKEN": "t1"}, "bot", "t1"),
    ],
)
def test_git_sends_what_the_secret_holds(secret: dict[str, str], user: str, password: str) -> None:
    env = os.environ | {"GIT_TERMINAL_PROMPT": "0"} | git_credentials(secret)
    asked = "protocol=https\nhost=git.example\n\n"
    told = subprocess.run(
        ["git", "credential", "fill"], input=asked, env=env, capture_output=True, text=True, check=True
    )
    assert f"username={user}\n" in told.stdout
    assert f"password={password}\n" in told.stdout


def test_without_a_secret_git_is_left_alone() -> None:
    assert git_credentials({}) == {}
