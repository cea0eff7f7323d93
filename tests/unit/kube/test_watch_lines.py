"""Lines come whole, whatever the pieces they travelled in."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orchestra.kube.watch import LineSplitter, decode_bookmark, decode_event, error_of, newer


@given(st.lists(st.binary(min_size=1).filter(lambda line: b"\n" not in line and line.strip() != b"")), st.data())
def test_lines_are_the_same_however_they_are_cut(lines: list[bytes], data: st.DataObject) -> None:
    stream = b"".join(line + b"\n" for line in lines)
    cuts = sorted(data.draw(st.lists(st.integers(0, len(stream)))))
    splitter, found = LineSplitter(), []
    for start, end in zip([0, *cuts], [*cuts, len(stream)], strict=True):
        found += splitter.feed(stream[start:end])
    assert found == lines


def test_an_unfinished_line_is_never_given_out() -> None:
    splitter = LineSplitter()
    assert splitter.feed(b'{"type":"ADDED","obj') == []
    assert splitter.feed(b"x" * 1_000_000) == []
    assert len(splitter.feed(b"\n")[0]) == 1_000_020


def test_an_error_event_says_410_like_a_status_line() -> None:
    line = b'{"type":"ERROR","object":{"kind":"Status","code":410,"reason":"Expired","message":"too old"}}'
    error = error_of(decode_event(line), "pods")
    assert error.gone
    assert str(error) == "WATCH pods: 410 Expired: too old"


def test_the_end_of_the_initial_objects_is_a_bookmark() -> None:
    line = b'{"type":"BOOKMARK","object":{"metadata":{"resourceVersion":"7","annotations":{"k8s.io/initial-events-end":"true"}}}}'
    bookmark = decode_bookmark(decode_event(line).object)
    assert bookmark.ends_initial_events
    assert bookmark.metadata.resource_version == "7"


@pytest.mark.parametrize(
    ("version", "than", "expected"), [("10", "9", True), ("9", "9", False), ("9", "10", False), ("x", "9", True)]
)
def test_versions_are_numbers_where_they_are(version: str, than: str, expected: bool) -> None:
    assert newer(version, than) is expected
