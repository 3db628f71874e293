"""Delta debugging of a failed run: the fewest faults, then less of everything else.

Pure: the caller passes ``fails``, which tries candidates and returns the first of them that still
fails in the same way. Zeller and Hildebrandt, "Simplifying and Isolating Failure-Inducing Input"
(2002).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import pairwise
from typing import TypeVar

T = TypeVar("T")


def fewest(items: Sequence[T], fails: Callable[[list[tuple[T, ...]]], int | None]) -> tuple[T, ...]:
    """A part of ``items``, in their order, that still fails and from which no single item can be
    removed. ``fails`` gets candidates and returns the index of one that fails, or ``None``.

    ``items`` as a whole is known to fail. The empty part is tried first: often the faults are not
    the cause.
    """
    kept = tuple(items)
    if not kept or fails([()]) is not None:
        return ()
    parts = 2
    while len(kept) > 1:
        candidates = list(_smaller(kept, parts))
        place = fails(candidates)
        if place is not None:
            shorter = candidates[place]
            # A part alone: begin anew with it; all but a part: go on as finely.
            parts = max(2, parts - 1) if len(shorter) > len(kept) // 2 else 2
            kept = shorter
        elif parts >= len(kept):
            break
        else:
            parts = min(len(kept), 2 * parts)
    return kept


def _smaller(items: tuple[T, ...], parts: int) -> Iterator[tuple[T, ...]]:
    """Each of ``parts`` equal pieces alone, then all without each of them."""
    # Bounds by products: the pieces differ in length by one item at most.
    bounds = [len(items) * part // parts for part in range(parts + 1)]
    pieces = [(low, high) for low, high in pairwise(bounds) if low < high]
    for low, high in pieces:
        if high - low < len(items):
            yield items[low:high]
    if parts > 2:  # of two pieces, the complement of one is the other
        for low, high in pieces:
            yield items[:low] + items[high:]


def least(
    value: T,
    ways: Callable[[T], Sequence[T]],
    fails: Callable[[list[T]], T | None],
) -> T:
    """``value`` made smaller by any of ``ways``, repeatedly, as long as the result fails."""
    while True:
        candidates = list(ways(value))
        smaller = fails(candidates) if candidates else None
        if smaller is None:
            return value
        value = smaller
