"""Times for people: in the unit that their span asks for, or indices where no time is known."""

from __future__ import annotations

import attrs

_UNITS = (("s", 1_000_000_000), ("ms", 1_000_000), ("µs", 1_000), ("ns", 1))
PLACE = "index"
COARSE = 10  # units that a span must hold at least, or the next finer unit is taken


@attrs.frozen
class Scale:
    """How positions on a history's axis are told. ``per_unit`` is nanoseconds (or indices) in one
    ``unit``.
    """

    unit: str
    per_unit: int

    @property
    def timed(self) -> bool:
        """Whether positions are times at all."""
        return self.unit != PLACE

    def at(self, position: int) -> str:
        """A position as a number, without the unit."""
        if self.per_unit == 1:
            return str(position)
        return f"{position / self.per_unit:.3f}"

    def span(self, length: int) -> str:
        """A distance between positions, with its unit if it is a time."""
        if not self.timed:
            return f"{length:,}"
        return duration(length)


SECONDS = Scale("s", 1_000_000_000)
PLACES = Scale(PLACE, 1)


def scale_of(span_ns: int) -> Scale:
    """The scale of a history that lasts ``span_ns``: seconds for whatever lasts some seconds."""
    return next((Scale(u, n) for u, n in _UNITS if span_ns >= COARSE * n), Scale(*_UNITS[-1]))


def duration(length_ns: int) -> str:
    """A length of time to three digits, in the unit that suits it: ``44.9 s``, ``3.2 ms``."""
    unit, per_unit = next((u for u in _UNITS if abs(length_ns) >= u[1]), _UNITS[-1])
    value = length_ns / per_unit
    digits = 0 if abs(value) >= 100 or per_unit == 1 else 1 if abs(value) >= 10 else 2
    shown = f"{value:.{digits}f}"
    return f"{shown.rstrip('0').rstrip('.') if '.' in shown else shown} {unit}"
