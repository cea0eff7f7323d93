"""Which checkpoint a resume picks."""

import json
import zlib
from collections.abc import Callable
from pathlib import Path

import pytest

from orchestra.train.fencing import take
from orchestra.train.manifest import (
    Manifest,
    Part,
    Position,
    chain,
    choose,
    highest_fence,
    last_complete,
    next_position,
    positions,
    set_aside,
)


def a_checkpoint(folder: Path, name: str, content: bytes = b"weights", fence: int = 0) -> Path:
    path = folder / name
    path.mkdir(parents=True)
    (path / "state.pt").write_bytes(content)
    step = int(name.removeprefix("step-").partition(".")[0])
    Manifest(step, 2, 1, {"state.pt": Part(len(content), zlib.crc32(content))}, fence).write(path)
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


def test_readers_follow_what_each_attempt_resumed_from(tmp_path: Path) -> None:
    a_checkpoint(tmp_path, "step-00000010", fence=1)
    a_checkpoint(tmp_path, "step-00000020", fence=1)
    assert take(tmp_path, 1, None) is not None
    assert last_complete(tmp_path) == tmp_path / "step-00000020"
    assert take(tmp_path, 2, "step-00000010") is not None
    assert last_complete(tmp_path) == tmp_path / "step-00000010", "20 came from the attempt before, and too late"
    a_checkpoint(tmp_path, "step-00000030", fence=1)
    a_checkpoint(tmp_path, "step-00000011", fence=2)
    assert chain(tmp_path) == [Position(11), Position(10)]
    assert take(tmp_path, 3, "step-00000011") is not None
    assert chain(tmp_path) == [Position(11), Position(10)]
    assert take(tmp_path, 3, None) is None, "only one can have a number"
    assert take(tmp_path, 4, None) is not None
    assert chain(tmp_path) == [], "a training that began anew reads nothing of the others"


def test_what_an_attempt_resumed_from_may_be_gone(tmp_path: Path) -> None:
    a_checkpoint(tmp_path, "step-00000005", fence=1)
    take(tmp_path, 1, None)
    take(tmp_path, 2, "step-00000010")
    assert chain(tmp_path) == [Position(5)]


def test_folders_that_were_copied_without_the_fences_are_found_and_a_new_attempt_counts_on(tmp_path: Path) -> None:
    a_checkpoint(tmp_path, "step-00000020", fence=4)
    a_checkpoint(tmp_path, "step-00000030", fence=3)
    a_checkpoint(tmp_path, "step-00000010", fence=3)
    assert chain(tmp_path) == [Position(20), Position(10)]
    assert highest_fence(tmp_path) == 4
    take(tmp_path, 5, "step-00000020")
    a_checkpoint(tmp_path, "step-00000021", fence=5)
    assert chain(tmp_path) == [Position(21), Position(20), Position(10)]


def test_a_fence_cut_short_is_as_if_it_were_not_there(tmp_path: Path) -> None:
    a_checkpoint(tmp_path, "step-00000005", fence=1)
    take(tmp_path, 1, None)
    (tmp_path / "fence" / "2").write_text("{")
    assert chain(tmp_path) == [Position(5)]
    assert highest_fence(tmp_path) == 2, "but its number is taken"
