"""Delays, rates, and numbers for dashboards."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orchestra.kube.backoff import Backoff
from orchestra.kube.errors import refusal_of
from orchestra.kube.limits import Bucket
from orchestra.kube.metrics import Metrics


def test_delays_double_up_to_the_longest() -> None:
    backoff = Backoff(first=0.2, longest=30.0)
    full = [backoff.delay(n, chance=lambda: 0.0) for n in (1, 2, 3, 8, 9, 10_000)]
    assert full == [0.2, 0.4, 0.8, 25.6, 30.0, 30.0]


@given(st.integers(0, 5000), st.floats(0, 1, exclude_max=True))
def test_jitter_only_shortens(failures: int, chance: float) -> None:
    backoff = Backoff(first=0.2, longest=30.0)
    longest = backoff.delay(failures, chance=lambda: 0.0)
    assert 0.7 * longest <= backoff.delay(failures, chance=lambda: chance) <= longest


def test_a_bucket_gives_a_burst_and_then_its_rate() -> None:
    now = [0.0]
    bucket = Bucket(rate=10, burst=3, clock=lambda: now[0])
    assert [bucket.reserve() for _ in range(5)] == pytest.approx([0, 0, 0, 0.1, 0.2])
    now[0] = 100.0
    assert [bucket.take() for _ in range(4)] == [True, True, True, False]
    now[0] += 0.1
    assert bucket.take()


def test_metrics_are_text_that_prometheus_reads() -> None:
    metrics = Metrics()
    metrics.counter("asked_total", "How often.", "who").labels('a "b"\n').inc()
    metrics.gauge("depth", "How deep.").labels().set(lambda: 2.5)
    took = metrics.histogram("took_seconds", "How long.", bounds=(0.1, 1.0)).labels()
    for value in (0.05, 0.1, 3.0):
        took.observe(value)
    assert metrics.text() == (
        "# HELP asked_total How often.\n# TYPE asked_total counter\n"
        'asked_total{who="a \\"b\\"\\n"} 1\n'
        "# HELP depth How deep.\n# TYPE depth gauge\n"
        "depth 2.5\n"
        "# HELP took_seconds How long.\n# TYPE took_seconds histogram\n"
        'took_seconds_bucket{le="0.1"} 2\ntook_seconds_bucket{le="1"} 2\ntook_seconds_bucket{le="+Inf"} 3\n'
        "took_seconds_sum 3.15\ntook_seconds_count 3\n"
    )


def test_a_name_is_one_kind_of_metric() -> None:
    metrics = Metrics()
    assert metrics.counter("a", "", "x") is metrics.counter("a", "", "x")
    with pytest.raises(ValueError, match="a is a counter with labels"):
        metrics.gauge("a", "")


def test_a_refusal_is_read_from_what_the_server_sends() -> None:
    body = (
        b'{"kind":"Status","code":429,"reason":"TooManyRequests","message":"later","details":{"retryAfterSeconds":3}}'
    )
    assert refusal_of(429, body).retry_after == 3
    assert refusal_of(429, body, "7").retry_after == 7
    assert refusal_of(502, b"<html>Bad Gateway</html>").message == "<html>Bad Gateway</html>"
    assert refusal_of(503, b"", "Wed, 21 Oct 2026 07:28:00 GMT").retry_after == 1
