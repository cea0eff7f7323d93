"""From bytes to lines."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from orchestra.agent.lines import LineSplitter


def split(*chunks: bytes, limit: int = 100) -> list[str]:
    splitter = LineSplitter(limit)
    return [line for chunk in chunks for line in splitter.feed(chunk, 0.0)] + splitter.flush()


def test_lines_are_put_together_from_chunks() -> None:
    assert split(b"a", b"b\nc", b"d\n\ne") == ["ab", "cd", "", "e"]


def test_a_bar_becomes_its_last_state_however_it_is_cut() -> None:
    assert split(b"\r 1%\r 2%", b"\r", b" 3%", b"\n", b"next\n") == [" 3%", "next"]
    assert split(b"1%\r2%\r") == ["2%"]


def test_windows_line_ends_are_line_ends() -> None:
    assert split(b"a\r\nb\r", b"\n") == ["a", "b"]


def test_an_erased_bar_leaves_nothing() -> None:
    assert split(b"\r50%\r      \r", b"\ntext\n") == ["text"]


def test_a_bar_that_is_drawn_for_long_is_shown_now_and_then() -> None:
    splitter = LineSplitter()
    shown = [line for second in range(100) for line in splitter.feed(b"\r%d s" % second, float(second))]
    assert shown == ["29 s", "59 s", "89 s"]


def test_a_long_line_is_cut_and_the_next_one_is_whole() -> None:
    assert split(b"x" * 150, b"y" * 10 + b"\nshort\n") == ["x" * 100 + " … [60 bytes cut]", "short"]


def test_what_is_no_text_is_shown_all_the_same() -> None:
    assert split(b"\xff\xfe ok\n") == ["\ufffd\ufffd ok"]


@given(st.lists(st.binary(max_size=30), max_size=20))
def test_where_the_stream_is_cut_makes_no_difference(chunks: list[bytes]) -> None:
    assert split(*chunks) == split(b"".join(chunks))
