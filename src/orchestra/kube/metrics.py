"""Counters, gauges and histograms in Prometheus' text format. No dependency, no threads, no locks."""

import bisect
from collections.abc import Callable, Sequence
from typing import Generic, TypeVar

SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0)
WORKQUEUE_SECONDS = (1e-6, 1e-5, 1e-4, 1e-3, 1e-2, 0.1, 1.0, 10.0, 100.0, 1000.0)
"""client-go's buckets: waits in a queue go from microseconds to minutes."""


class Counter:
    """Only goes up."""

    def __init__(self) -> None:
        self.value = 0.0

    def inc(self, by: float = 1.0) -> None:
        """Count."""
        self.value += by

    def samples(self) -> list[tuple[str, str, float]]:
        """(suffix of the name, extra label, value)."""
        return [("", "", self.value)]


class Gauge:
    """Goes up and down, or is asked for when somebody looks."""

    def __init__(self) -> None:
        self._value: float | Callable[[], float] = 0.0

    def set(self, value: float | Callable[[], float]) -> None:
        """A number, or a function that is called at each scrape."""
        self._value = value

    @property
    def value(self) -> float:
        """What it shows now."""
        return self._value() if callable(self._value) else self._value

    def samples(self) -> list[tuple[str, str, float]]:
        """(suffix of the name, extra label, value)."""
        return [("", "", self.value)]


class Histogram:
    """How often a value fell under each bound."""

    def __init__(self, bounds: Sequence[float] = SECONDS) -> None:
        self._bounds = bounds
        self._counts = [0] * (len(bounds) + 1)
        self.sum = 0.0

    def observe(self, value: float) -> None:
        """Count one value."""
        self._counts[bisect.bisect_left(self._bounds, value)] += 1
        self.sum += value

    @property
    def count(self) -> int:
        """How many values there were."""
        return sum(self._counts)

    def samples(self) -> list[tuple[str, str, float]]:
        """(suffix of the name, extra label, value)."""
        total, lines = 0, []
        for bound, count in zip((*self._bounds, float("inf")), self._counts, strict=True):
            total += count
            lines.append(("_bucket", f'le="{_number(bound)}"', float(total)))
        return [*lines, ("_sum", "", self.sum), ("_count", "", float(total))]


M = TypeVar("M", Counter, Gauge, Histogram)


class Family(Generic[M]):
    """All metrics of one name, told apart by the values of their labels."""

    def __init__(self, kind: str, help_text: str, names: tuple[str, ...], make: Callable[[], M]) -> None:
        self.kind = kind
        self.help_text = help_text
        self.names = names
        self._make: Callable[[], M] = make
        self._children: dict[tuple[str, ...], M] = {}

    def labels(self, *values: str) -> M:
        """The metric with these label values; made when first asked for."""
        child = self._children.get(values)
        if child is None:
            if len(values) != len(self.names):
                raise ValueError(f"labels {self.names} got values {values}")
            child = self._children[values] = self._make()
        return child

    def lines(self, name: str) -> list[str]:
        """As text."""
        lines = [f"# HELP {name} {self.help_text}", f"# TYPE {name} {self.kind}"]
        for values, child in self._children.items():
            own: list[str] = [f'{label}="{_escaped(value)}"' for label, value in zip(self.names, values, strict=True)]
            for suffix, extra, value in child.samples():
                labels = ",".join([*own, extra] if extra else own)
                lines.append(
                    f"{name}{suffix}{{{labels}}} {_number(value)}" if labels else f"{name}{suffix} {_number(value)}"
                )
        return lines


class Metrics:
    """All metrics of one process. Asking twice for a name gives the same family."""

    def __init__(self) -> None:
        self._families: dict[str, Family[Counter] | Family[Gauge] | Family[Histogram]] = {}

    def counter(self, name: str, help_text: str, *labels: str) -> Family[Counter]:
        """A family of counters."""
        return self._family(name, Family("counter", help_text, labels, Counter))

    def gauge(self, name: str, help_text: str, *labels: str) -> Family[Gauge]:
        """A family of gauges."""
        return self._family(name, Family("gauge", help_text, labels, Gauge))

    def histogram(
        self, name: str, help_text: str, *labels: str, bounds: Sequence[float] = SECONDS
    ) -> Family[Histogram]:
        """A family of histograms."""
        return self._family(name, Family("histogram", help_text, labels, lambda: Histogram(bounds)))

    def text(self) -> str:
        """Everything, in the format that Prometheus scrapes."""
        return "".join(f"{line}\n" for name, family in self._families.items() for line in family.lines(name))

    def _family(self, name: str, made: Family[M]) -> Family[M]:
        known = self._families.setdefault(name, made)
        if known.kind != made.kind or known.names != made.names:
            raise ValueError(f"{name} is a {known.kind} with labels {known.names} already")
        return known  # type: ignore[return-value]  # the kind was compared


def _number(value: float) -> str:
    if value == float("inf"):
        return "+Inf"
    return str(int(value)) if value == int(value) else repr(value)


def _escaped(value: str) -> str:
    return value.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")
