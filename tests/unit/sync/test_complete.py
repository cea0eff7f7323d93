"""Which output files are complete, and which names may become files."""

import os
import time
from pathlib import Path

import pytest

from orchestra.api.problem import Invalid
from orchestra.sync.complete import complete_files
from orchestra.sync.transfer import _refuse_names

NOW = time.time() + 1000


def plant(folder: Path, *paths: str) -> None:
    for path in paths:
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_text("x")


def ready(folder: Path, now: float = NOW, quiet: float = 20.0) -> list[str]:
    return [one.path for one in complete_files(folder, now, quiet=quiet).ready]


def test_unfinished_names_never_ship_however_old(tmp_path: Path) -> None:
    plant(
        tmp_path,
        "a.pt",
        "a.pt.tmp",
        "tmp-step-1/a",
        "b.part",
        "c.partial",
        ".partial-1-1/x",
        "incomplete-step-3/x",
        "d.lock",
    )
    assert ready(tmp_path) == ["a.pt"]


def test_a_foreign_file_must_have_been_quiet(tmp_path: Path) -> None:
    plant(tmp_path, "a.pt")
    written = (tmp_path / "a.pt").stat().st_mtime
    assert ready(tmp_path, written + 19) == []
    assert complete_files(tmp_path, written + 19).waiting == ("a.pt",)
    assert ready(tmp_path, written + 21) == ["a.pt"]
    os.utime(tmp_path / "a.pt", (1, 1))  # an old mtime is no proof: a copy may set it before it is done
    assert ready(tmp_path, written + 10) == []


def test_a_checkpoint_of_our_library_is_complete_with_its_manifest(tmp_path: Path) -> None:
    plant(tmp_path, "step-00000016/state.pt", "step-00000016/manifest.json", "other/state.pt", "other/manifest.json")
    now = time.time()
    assert ready(tmp_path, now) == ["step-00000016/manifest.json", "step-00000016/state.pt"]
    time.sleep(0.02)
    plant(tmp_path, "step-00000016/later.bin")
    assert "step-00000016/later.bin" not in ready(tmp_path, now)


def test_a_distributed_checkpoint_waits_for_its_metadata(tmp_path: Path) -> None:
    plant(tmp_path, "c/__0_0.distcp", "c/__1_0.distcp")
    assert ready(tmp_path) == []
    plant(tmp_path, "c/.metadata")
    assert ready(tmp_path, time.time()) == ["c/.metadata", "c/__0_0.distcp", "c/__1_0.distcp"]


def test_links_are_not_followed(tmp_path: Path) -> None:
    plant(tmp_path, "out/a", "elsewhere/b")
    (tmp_path / "out" / "link").symlink_to(tmp_path / "elsewhere")
    (tmp_path / "out" / "file").symlink_to(tmp_path / "elsewhere" / "b")
    os.mkfifo(tmp_path / "out" / "fifo")
    assert ready(tmp_path / "out") == ["a"]


@pytest.mark.parametrize(
    "keys",
    [["../x"], ["/etc/passwd"], ["a//b"], ["a\\b"], ["A", "a"], ["a", "a/b"], ["x.partial"], ["a/./b"], ["a\0b"]],
)
def test_keys_that_cannot_be_files_are_refused(keys: list[str]) -> None:
    with pytest.raises(Invalid):
        _refuse_names(keys)
