"""Spans of time, asked which of them reaches from one moment to another."""

from __future__ import annotations

import bisect
import itertools
from collections.abc import Iterable

import attrs

FOREVER_NS = 2**62


@attrs.frozen(kw_only=True)
class Spans:
    """Spans in the order of their begins (``starts``). ``latest_end[i]`` is the last end among the
    first ``i`` + 1 of them: a question takes the logarithm of their number.
    """

    starts: tuple[int, ...] = ()
    latest_end: tuple[int, ...] = ()

    @classmethod
    def of(cls, spans: Iterable[tuple[int, int | None]]) -> Spans:
        """Order ``spans``, each its begin and its end in ns; an end of ``None`` never comes."""
        ordered = sorted((start, FOREVER_NS if end is None else end) for start, end in spans)
        return cls(
            starts=tuple(start for start, _ in ordered),
            latest_end=tuple(itertools.accumulate((end for _, end in ordered), max)),
        )

    def any_from_to(self, by_ns: int, until_ns: int) -> bool:
        """Tell whether one began at ``by_ns`` or before, and ended at ``until_ns`` or later."""
        begun = bisect.bisect_right(self.starts, by_ns)
        return begun > 0 and self.latest_end[begun - 1] >= until_ns
