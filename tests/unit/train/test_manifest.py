"""Which checkpoint a resume picks."""

import json
import zlib
from collections.abc import Callable
from pathlib import Path

import pytest

from orchestra.train.manifest import (
    Manifest,
    Part,
    Position,
    choose,
    last_complete,
    next_position,
    positions,
    set_aside,
)


def a_checkpoint(folder: Path, name: str, content: bytes = b"weights") -> Path:
    path = folder / name
    path.mkdir(parents=True)
    (path / "state.pt").write_bytes(content)
    step = int(name.removeprefix("step-").partition(".")[0])
    Manifest(step, 2, 1, {"state.pt": Part(len(content), zlib.crc32(content))}).write(path)
    return path


def test_a_manifest_is_read_as_it_was_written(tmp_path: Path) -> None:
    manifest = Manifest(7, 4, 2, {"state.pt": Part(5, 0xAB), "extra": Part(0, 0)})
    manifest.write(tmp_path)
    assert Manifest.read(tmp_path) == manifest


def test_the_newest_complete_checkpoint_is_chosen(tmp_path: Path) -> None:
    for name in ("step-00000002", "step-00000010", "step-00000009"):
        a_checkpoint(tmp_path, name)
    assert last_complete(tmp_path) == tmp_path / "step-00000010"


def test_of_one_step_the_later_save_is_newer(tmp_path: Path) -> None:
    for name in ("step-00000002.10", "step-00000002.9", "step-00000002", "step-00000001.99"):
        a_checkpoint(tmp_path, name)
    assert last_complete(tmp_path) == tmp_path / "step-00000002.10"
    assert next_position(tmp_path, 2).name == "step-00000002.11"
    assert next_position(tmp_path, 3).name == "step-00000003"


def truncated(path: Path) -> None:
    (path / "state.pt").write_bytes(b"weig")


def flipped(path: Path) -> None:
    (path / "state.pt").write_bytes(b"weightz")


def without_state(path: Path) -> None:
    (path / "state.pt").unlink()


def without_manifest(path: Path) -> None:
    (path / "manifest.json").unlink()


def with_half_a_manifest(path: Path) -> None:
    text = (path / "manifest.json").read_text()
    (path / "manifest.json").write_text(text[: len(text) // 2])


def with_a_list_as_manifest(path: Path) -> None:
    (path / "manifest.json").write_text("[]")


def with_a_manifest_of_the_future(path: Path) -> None:
    (path / "manifest.json").write_text(json.dumps({"version": 99}))


@pytest.mark.parametrize(
    ("spoil", "reason"),
    [
        (truncated, "4 bytes instead of 7"),
        (flipped, "damaged"),
        (without_state, "state.pt cannot be read"),
        (without_manifest, "no manifest.json"),
        (with_half_a_manifest, "cannot be read"),
        (with_a_list_as_manifest, "cannot be read"),
        (with_a_manifest_of_the_future, "version 99"),
    ],
)
def test_an_incomplete_checkpoint_is_passed_over_with_the_reason(
    tmp_path: Path, spoil: Callable[[Path], None], reason: str
) -> None:
    a_checkpoint(tmp_path, "step-00000001")
    spoil(a_checkpoint(tmp_path, "step-00000002"))
    choice = choose(tmp_path)
    assert choice.position == Position(1)
    assert list(choice.unfit) == [Position(2)]
    assert reason in choice.unfit[Position(2)]


def test_drafts_links_and_foreign_folders_are_no_checkpoints(tmp_path: Path) -> None:
    a_checkpoint(tmp_path, "step-00000001")
    (tmp_path / "tmp-step-00000005-77").mkdir()
    (tmp_path / "incomplete-step-00000006").mkdir()
    (tmp_path / "step-best").mkdir()
    (tmp_path / "step-00000009").write_text("a file")
    (tmp_path / "step-00000008").symlink_to("step-00000001")
    assert positions(tmp_path) == [Position(1)]


def test_what_is_set_aside_keeps_its_files_and_is_not_looked_at_again(tmp_path: Path) -> None:
    for expected in ("incomplete-step-00000003", "incomplete-step-00000003-1"):
        without_manifest(a_checkpoint(tmp_path, "step-00000003"))
        assert set_aside(tmp_path, Position(3)).name == expected
        assert (tmp_path / expected / "state.pt").read_bytes() == b"weights"
    assert choose(tmp_path).unfit == {}


def test_a_folder_that_does_not_exist_holds_nothing(tmp_path: Path) -> None:
    assert last_complete(tmp_path / "nowhere") is None
