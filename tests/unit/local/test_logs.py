"""Reading the logs of several nodes and attempts."""

from __future__ import annotations

from pathlib import Path

from orchestra.api.engine import LogQuery
from orchestra.local.home import JobFolder
from orchestra.local.logs import read_logs


def write(folder: Path, node: int, name: str, *lines: str) -> Path:
    path = folder / "nodes" / str(node) / "logs" / name
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a") as file:
        file.writelines(f"{line}\n" for line in lines)
    return path


def texts(folder: Path, query: LogQuery | None = None, ended: bool = True) -> list[str]:
    return [line.text for line in read_logs(JobFolder(folder), query or LogQuery(), lambda: ended)]


def test_lines_of_all_nodes_are_in_the_order_of_their_time(tmp_path: Path) -> None:
    write(tmp_path, 0, "attempt-1.log", "1.0 r0 a", "3.0 r0 c")
    write(tmp_path, 1, "attempt-1.log", "2.0 r1 b")
    write(tmp_path, 0, "attempt-2.log", "4.0 r0 d e  f")
    assert texts(tmp_path) == ["a", "b", "c", "d e  f"]


def test_rotated_files_come_first_and_broken_lines_are_passed_over(tmp_path: Path) -> None:
    write(tmp_path, 0, "attempt-1.log.2", "1.0 r0 a")
    write(tmp_path, 0, "attempt-1.log.1", "2.0 r0 b", "half a li")
    write(tmp_path, 0, "attempt-1.log", "3.0 r0 c")
    assert texts(tmp_path) == ["a", "b", "c"]


def test_a_query_chooses(tmp_path: Path) -> None:
    write(tmp_path, 0, "attempt-1.log", "1.0 r0 one", "2.0 r1 two", "3.0 agent three", "4.0 r10 four")
    assert texts(tmp_path, LogQuery(ranks=[1, 10])) == ["two", "four"]
    assert texts(tmp_path, LogQuery(since=2.5)) == ["three", "four"]
    assert texts(tmp_path, LogQuery(tail=1)) == ["four"]
    assert texts(tmp_path, LogQuery(grep="^t")) == ["two", "three"]


def test_following_sees_new_lines_new_files_and_rotation(tmp_path: Path) -> None:
    path = write(tmp_path, 0, "attempt-1.log", "1.0 r0 a")
    steps = iter(range(10))

    def ended() -> bool:
        step = next(steps)
        if step == 0:
            write(tmp_path, 0, "attempt-1.log", "2.0 r0 b")
        elif step == 1:
            path.rename(path.with_name("attempt-1.log.1"))
            write(tmp_path, 0, "attempt-1.log", "3.0 r0 c")
            write(tmp_path, 1, "attempt-1.log", "3.5 r1 d")
        return step >= 2

    lines = [line.text for line in read_logs(JobFolder(tmp_path), LogQuery(follow=True), ended)]
    assert lines == ["a", "b", "c", "d"]
