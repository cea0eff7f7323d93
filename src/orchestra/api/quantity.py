"""Kubernetes quantities: `512Gi`, `500m`, `1e3`, exact and comparable."""

from __future__ import annotations

import re
from fractions import Fraction
from functools import total_ordering

# The expression Kubernetes itself publishes for quantities in CRDs.
PATTERN = (
    r"^(\+|-)?(([0-9]+(\.[0-9]*)?)|(\.[0-9]+))"
    r"(([KMGTPE]i)|[numkMGTPE]|([eE](\+|-)?(([0-9]+(\.[0-9]*)?)|(\.[0-9]+))))?$"
)
_SPLIT = re.compile(r"^([+-]?[0-9]*\.?[0-9]*)([KMGTPE]i|[numkMGTPE]|[eE][+-]?[0-9]+|)$")
_DECIMAL = {
    "n": Fraction(1, 10**9), "u": Fraction(1, 10**6), "m": Fraction(1, 10**3), "": Fraction(1),
    "k": Fraction(10**3), "M": Fraction(10**6), "G": Fraction(10**9), "T": Fraction(10**12),
    "P": Fraction(10**15), "E": Fraction(10**18),
}  # fmt: skip
_BINARY = {f"{prefix}i": Fraction(1024**power) for power, prefix in enumerate("KMGTPE", start=1)}
_MAX_EXPONENT = 30  # far above any machine, and far below what would make arithmetic slow


@total_ordering
class Quantity:
    """An amount of cpu, memory, storage or GPUs. Keeps the user's spelling; compares by value."""

    __slots__ = ("text", "value")

    def __init__(self, text: str | int) -> None:
        self.text = str(text).strip()
        match = _SPLIT.match(self.text)
        if not match or not re.match(PATTERN, self.text):
            raise ValueError(f"{self.text!r} is not a quantity")
        number, suffix = match.groups()
        if suffix[:1] in ("e", "E") and len(suffix) > 1 and not suffix.endswith("i"):
            exponent = int(suffix[1:])
            if abs(exponent) > _MAX_EXPONENT:
                raise ValueError(f"{self.text!r} is out of range")
            factor = Fraction(10) ** exponent
        else:
            factor = _BINARY.get(suffix) or _DECIMAL[suffix]
        self.value = Fraction(number) * factor

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Quantity) and self.value == other.value

    def __lt__(self, other: Quantity) -> bool:
        return self.value < other.value

    def __hash__(self) -> int:
        return hash(self.value)

    def __repr__(self) -> str:
        return f"Quantity({self.text!r})"

    def __str__(self) -> str:
        return self.text

    @property
    def whole(self) -> int:
        """In whole units (bytes of memory, say), rounded down."""
        return int(self.value // 1)

    def bytes_times(self, factor: Fraction | int) -> Quantity:
        """Scaled and rounded down to a whole byte, in the largest binary unit that keeps it exact."""
        return binary_quantity(int(self.value * factor // 1))

    def millis_times(self, factor: Fraction | int) -> Quantity:
        """Scaled and rounded down to a thousandth, as cpu amounts are written."""
        millis = int(self.value * factor * 1000 // 1)
        return Quantity(millis // 1000) if millis % 1000 == 0 else Quantity(f"{millis}m")


def binary_quantity(amount: int) -> Quantity:
    """`amount` bytes in the largest binary unit that divides it."""
    for suffix, factor in reversed(_BINARY.items()):
        if amount and amount % factor == 0:
            return Quantity(f"{amount // int(factor)}{suffix}")
    return Quantity(amount)
