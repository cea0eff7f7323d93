"""What stays home, compared with git itself, and what we add to git's rules."""

import os
import subprocess
import tempfile
from pathlib import Path

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from orchestra.sync.walk import walk


def plant(folder: Path, *paths: str, **texts: str) -> Path:
    for path in paths:
        target = folder / path
        if path.endswith("/"):
            target.mkdir(parents=True, exist_ok=True)
        else:
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_text(texts.get(path, "x"))
    return folder


def ships(folder: Path, **options: list[str]) -> list[str]:
    return [found.path for found in walk(folder, named=options.get("named", ())).found]


def reasons(folder: Path) -> dict[str, str]:
    return {left.path: left.reason for left in walk(folder).left}


_NAMES = st.sampled_from(["a", "b", "ab", "a.x", "b.x", "ba.y", "#c", "!d", "a b"])
_PATHS = st.lists(_NAMES, min_size=1, max_size=4).map("/".join)
_SEGMENTS = st.sampled_from(
    ["a", "b", "ab", "*", "**", "*.x", "a*", "*b", "?", "[ab]", "[!a]", "[a-b].x", "\\#c", "\\!d", "a b", "?.?"]
)
_LINES = st.builds(
    lambda bang, slash, segments, end: bang + slash + "/".join(segments) + end,
    st.sampled_from(["", "", "!"]),
    st.sampled_from(["", "/"]),
    st.lists(_SEGMENTS, min_size=1, max_size=3),
    st.sampled_from(["", "/", " ", "/**"]),
)
_FILES = st.lists(_LINES, max_size=5).map("\n".join)


@settings(max_examples=50, deadline=None)
@given(paths=st.lists(_PATHS, min_size=1, max_size=12), root=_FILES, nested=_FILES)
@example(paths=["a.x/b.x", "a.x/a"], root="*.x\n!a.x", nested="")
@example(paths=["a/b", "a/ab/b"], root="a/**\n!a/ab/", nested="")
@example(paths=["a/b/a.x", "b"], root="*/", nested="!b")
@example(paths=["a/a.x", "a/b.x"], root="*.x", nested="!a.x")
@example(paths=["a/b", "b"], root="*\n!*/", nested="")
@example(paths=["a/a", "a/b/c", "b/a/x"], root="a/**/", nested="")
@example(paths=["a/b/c", "b/c"], root="/**/", nested="!b/")
def test_gitignore_files_mean_what_they_mean_to_git(paths: list[str], root: str, nested: str) -> None:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        subprocess.run(["git", "init", "-q", name], check=True)
        for path in paths:
            target = folder / path
            if any((folder / Path(*Path(path).parts[:n])).is_file() for n in range(1, len(Path(path).parts))):
                continue
            if not target.exists():
                target.parent.mkdir(parents=True, exist_ok=True)
                target.write_text("x")
        (folder / ".gitignore").write_text(root)
        if (folder / "a").is_dir():
            (folder / "a" / ".gitignore").write_text(nested)
        every = [
            os.path.relpath(Path(at) / one, folder)
            for at, below, files in os.walk(folder)
            for one in files
            if ".git/" not in f"{at}/"
        ]
        asked = subprocess.run(
            ["git", "-C", name, "check-ignore", "--no-index", "-z", "--stdin"],
            input="\0".join(every).encode(), capture_output=True, check=False,
        )  # fmt: skip
        ignored = set(asked.stdout.decode().split("\0"))
        expected = sorted(path for path in every if path not in ignored)
        got = sorted(found.path for found in walk(folder).found if found.kind == "file")
        assert got == expected, (root, nested)


def test_the_built_in_rules_hold_without_any_file(tmp_path: Path) -> None:
    plant(
        tmp_path, "train.py", ".git/HEAD", ".venv/bin/python", "a/__pycache__/x.pyc", "a/b.py", "wandb/run/x", "x.pyc"
    )
    assert ships(tmp_path) == ["a/b.py", "train.py"]
    assert reasons(tmp_path)[".venv/"] == "built-in rule: .venv/"
    assert reasons(tmp_path)["a/__pycache__/"] == "built-in rule: __pycache__/"


def test_a_gitignore_that_lists_what_to_keep_does_not_bring_back_the_virtual_environment(tmp_path: Path) -> None:
    plant(tmp_path, ".venv/lib/x.py", "a.py", "a.bin")
    (tmp_path / ".gitignore").write_text("*\n!*/\n!*.py\n")
    assert ships(tmp_path) == ["a.py"]
    assert reasons(tmp_path)["a.bin"] == ".gitignore:1: *"


def test_torchrunignore_overrides_gitignore_and_built_in_rules(tmp_path: Path) -> None:
    plant(tmp_path, "data/small.csv", "data/large.bin", "wandb/settings", "notes.txt", "out/deep/er/keep.txt", "out/x")
    (tmp_path / ".gitignore").write_text("data/\nout/\n")
    (tmp_path / ".torchrunignore").write_text("!data/small.csv\n!wandb/\nnotes.txt\n!out/deep/er/keep.txt\n")
    assert ships(tmp_path) == [
        ".gitignore", ".torchrunignore", "data/small.csv", "out/deep/er/keep.txt", "wandb/settings",
    ]  # fmt: skip
    assert reasons(tmp_path)["data/large.bin"] == ".gitignore:1: data/"
    assert reasons(tmp_path)["notes.txt"] == ".torchrunignore:3: notes.txt"


_SECRETS = [
    ".env", ".env.production", "server.pem", "id_rsa", "id_ed25519.pub", ".aws/credentials", ".kube/config",
    "credentials", "a/credentials.json", ".netrc", "ID_RSA", "prod.kubeconfig",
]  # fmt: skip


@pytest.mark.parametrize("secret", _SECRETS)
def test_secrets_stay_home_and_it_is_said(tmp_path: Path, secret: str) -> None:
    plant(tmp_path, secret, "train.py")
    (tmp_path / ".gitignore").write_text(f"!{secret}\n")
    (tmp_path / ".torchrunignore").write_text("!*\n!.*\n!**/*\n")
    walked = walk(tmp_path)
    assert secret not in [found.path for found in walked.found]
    told = [left for left in walked.left if left.secret]
    assert told
    assert "looks like a secret" in told[0].reason


@pytest.mark.parametrize("secret", _SECRETS)
def test_a_secret_ships_when_it_is_asked_for_by_name(tmp_path: Path, secret: str) -> None:
    plant(tmp_path, secret, "train.py")
    assert secret in ships(tmp_path, named=[secret])
    (tmp_path / ".torchrunignore").write_text(f"!{secret}\n")
    assert secret in ships(tmp_path)


def test_source_files_that_sound_like_keys_ship(tmp_path: Path) -> None:
    plant(tmp_path, "id_map.py", "credentials.py", "environment.yml", "env/wrapper.py", "keys.json")
    assert ships(tmp_path) == ["credentials.py", "env/wrapper.py", "environment.yml", "id_map.py", "keys.json"]
