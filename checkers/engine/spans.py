"""Spans of time, and questions to them that take the logarithm of their number each.

``Spans`` is asked whether one reaches from one moment to another, ``OwnedSpans`` whether another's
than one's own does, ``FirstInForce`` which of those in force comes first in their order, and
``Overlaps`` how long several went on.
"""

from __future__ import annotations

import bisect
import heapq
import itertools
from collections.abc import Iterable

import attrs
import numpy as np

from checkers.engine.arrays import Bools, Ints

FOREVER_NS = 2**62
_LAST_NS = 2**63 - 1  # that a table can tell
NONE = -1
"""The place of no span."""


@attrs.frozen(kw_only=True)
class Spans:
    """Spans in the order of their begins (``starts``). ``latest_end[i]`` is the last end among the
    first ``i`` + 1 of them.
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

    def latest_end_before(self, by_ns: int) -> int | None:
        """Return the last end of those that began before ``by_ns``; ``None`` where none did."""
        begun = bisect.bisect_left(self.starts, by_ns)
        return self.latest_end[begun - 1] if begun else None


@attrs.frozen(kw_only=True, eq=False)
class OwnedSpans:
    """Spans in the order of their begins (``starts``), each of an owner. Among the first ``i`` of
    them the last end is ``latest_end[i]``, of a span of ``owner[i]``, and ``next_end[i]`` that of
    another owner's.
    """

    starts: Ints
    latest_end: Ints
    owner: Ints
    next_end: Ints

    @classmethod
    def of(cls, spans: Iterable[tuple[int, int, int]]) -> OwnedSpans:
        """Order ``spans``, each its owner, its begin, and its end in ns."""
        ordered = sorted((start, min(end, _LAST_NS), owner) for owner, start, end in spans)
        never = -FOREVER_NS
        last, owned_by, following = never, NONE, never
        rows = [(last, owned_by, following)]
        for _, end, owner in ordered:
            if owner == owned_by:
                last = max(last, end)
            elif end > last:
                last, owned_by, following = end, owner, last
            else:
                following = max(following, end)
            rows.append((last, owned_by, following))
        latest_end, owners, next_end = np.array(rows, np.int64).T
        starts = np.array([start for start, _, _ in ordered], np.int64)
        return cls(starts=starts, latest_end=latest_end, owner=owners, next_end=next_end)

    def others_from_to(self, owner: int, by_ns: Ints, until_ns: Ints) -> Bools:
        """Tell for each pair of moments whether a span of another than ``owner`` began at the first
        or before, and ended at the second or later.
        """
        begun = np.searchsorted(self.starts, by_ns, side="right")
        end = np.where(self.owner[begun] == owner, self.next_end[begun], self.latest_end[begun])
        found: Bools = end >= until_ns
        return found

    def several_at(self, moments: Ints) -> Bools:
        """Tell at which of ``moments`` spans of two owners or more went on."""
        found: Bools = self.next_end[np.searchsorted(self.starts, moments, side="right")] >= moments
        return found


@attrs.frozen(kw_only=True, eq=False)
class FirstInForce:
    """Which of some spans, in an order of theirs, is the first that is in force: from
    ``moments[i]`` up to the next of them that at ``place[i]``, or ``NONE``.
    """

    moments: Ints
    place: Ints

    @classmethod
    def of(cls, begins: Iterable[int], ends: Iterable[int]) -> FirstInForce:
        """Of the spans from ``begins`` to ``ends``, both of them included."""
        spans = list(zip(begins, ends, strict=True))
        starting = sorted(
            (begin, place) for place, (begin, end) in enumerate(spans) if begin <= end
        )
        over = (min(spans[place][1] + 1, _LAST_NS) for _, place in starting)
        moments = sorted({*(begin for begin, _ in starting), *over})
        begun, in_force, found = 0, list[int](), list[int]()
        for at in moments:
            while begun < len(starting) and starting[begun][0] <= at:
                heapq.heappush(in_force, starting[begun][1])
                begun += 1
            while in_force and spans[in_force[0]][1] < at:
                heapq.heappop(in_force)
            found.append(in_force[0] if in_force else NONE)
        return cls(moments=np.array(moments, np.int64), place=np.array([*found, NONE], np.int64))

    def at(self, moments: Ints) -> Ints:
        """Return the place of the first span that is in force at each of ``moments``."""
        # Before all of them: the last place, which is of none.
        found: Ints = self.place[np.searchsorted(self.moments, moments, side="right") - 1]
        return found


@attrs.frozen(kw_only=True, eq=False)
class Overlaps:
    """How long two or more of some spans went on together: ``total_ns[i]`` up to ``moments[i]``,
    and from there on where ``open[i]``.
    """

    moments: tuple[int, ...]
    total_ns: tuple[int, ...]
    open: tuple[bool, ...]

    @classmethod
    def of(cls, spans: Iterable[tuple[int, int]]) -> Overlaps:
        """Those of ``spans``, each its begin and its end."""
        changes: dict[int, int] = {}
        for begin, end in spans:
            if begin < end:
                changes[begin] = changes.get(begin, 0) + 1
                changes[end] = changes.get(end, 0) - 1
        moments = sorted(changes)
        several = [n > 1 for n in itertools.accumulate(changes[at] for at in moments)]
        steps = itertools.pairwise(moments)
        lengths = ((end - at) * on for (at, end), on in zip(steps, several, strict=False))
        total = itertools.accumulate(lengths, initial=0)
        return cls(moments=tuple(moments), total_ns=tuple(total), open=tuple(several))

    def between_ns(self, start_ns: int, end_ns: int) -> int:
        """Return how long they did from ``start_ns`` to ``end_ns``."""
        return max(0, self._up_to_ns(end_ns) - self._up_to_ns(start_ns))

    def _up_to_ns(self, at_ns: int) -> int:
        place = bisect.bisect_right(self.moments, at_ns) - 1
        if place < 0:
            return 0
        return self.total_ns[place] + (at_ns - self.moments[place]) * self.open[place]
