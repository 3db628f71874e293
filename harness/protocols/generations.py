"""Generations of a partition: values.

A forced reset lets a partition go on from the copies that survive, without regard to the majority
before. It begins a new *generation* of the partition, whose log is that of another generation up
to a base. Generations of a partition form a tree: usually a chain, each after the one before, and a
branch where a generation that a reset had cut off is taken up again (*chain unwind*).

A reset is known by its event, in mapped time: it took place at some moment from ``earliest_ns`` to
``latest_ns``, and what may lie on either side of it is no evidence.
"""

from __future__ import annotations

import bisect
import functools
from collections.abc import Iterable, Mapping
from typing import Any

import attrs
import msgspec

from harness.clock import NS_PER_S
from harness.history.records import EventKind

FIRST = 0
"""The generation of a partition that was never reset."""

APPLIED_WITHIN_NS = 5 * NS_PER_S
"""How much later than its line in a log a reset may take effect: the log tells of the request, and
the primary before may serve until its lease, of 5 s, is over. A store that numbers generations
reports a reset where it takes effect."""

ANSWERED_WITHIN_NS = NS_PER_S
"""How long an answer that was sent before a reset may be on its way: what is acknowledged later was
acknowledged by a generation that was over."""


class Reset(msgspec.Struct, frozen=True, kw_only=True):
    """A forced reset of ``partition``: ``generation`` goes on from ``previous``, up to the entry
    ``base_index`` of ``base_term``, with the copies on ``survivors``; all three ``None`` where the
    store does not tell. ``restores``: it takes up what an earlier reset had cut off. ``asked``: by
    an operator, so that the mode of the store says nothing of it.
    """

    partition: int
    generation: int
    previous: int
    earliest_ns: int
    latest_ns: int
    node: str
    text: str = ""
    base_index: int | None = None
    base_term: int | None = None
    survivors: tuple[str, ...] | None = None
    restores: bool = False
    asked: bool = False

    @property
    def begins_anew(self) -> bool:
        """Whether no copy was left to go on from: an operator has had the partition begin empty."""
        return self.asked and self.survivors == ()


OF_RESETS = (
    EventKind.RESET,
    EventKind.PARTITION_RESET,
    EventKind.RESTORED,
    EventKind.RESET_ASKED,
)
"""All that ``resets_of`` reads."""


def resets_of(events: Iterable[Mapping[str, Any]]) -> tuple[Reset, ...]:
    """Return the resets among ``events`` (rows of ``schema.EVENTS``), each once, by partition and
    time.

    Several nodes may report one: it took place when the first of them applied it. A store that
    tells resets without their generation (``EventKind.RESET``) has them numbered in order of time.
    """
    rows = [row for row in events if row["partition"] is not None]
    restored, asked = (
        {(row["partition"], row.get("generation")) for row in rows if row["kind"] == kind}
        for kind in (EventKind.RESTORED, EventKind.RESET_ASKED)
    )
    numbered: dict[tuple[int, int], list[Mapping[str, Any]]] = {}
    for row in rows:
        if row["kind"] == EventKind.PARTITION_RESET and row.get("generation") is not None:
            numbered.setdefault((row["partition"], row["generation"]), []).append(row)
    found = [
        _numbered(told, restores=where in restored, asked=where in asked)
        for where, told in numbered.items()
    ]
    partitions = {partition for partition, _ in numbered}
    plain: dict[int, list[Mapping[str, Any]]] = {}
    for row in sorted(rows, key=lambda row: (row["at_ns"], row["node"])):
        if row["kind"] == EventKind.RESET and row["partition"] not in partitions:
            plain.setdefault(row["partition"], []).append(row)
    for told in plain.values():
        found += [_plain(number, row) for number, row in enumerate(told, 1)]
    return tuple(sorted(found, key=lambda reset: (reset.partition, _order(reset))))


def _order(reset: Reset) -> tuple[int, int]:
    return reset.earliest_ns, reset.generation


def _numbered(told: list[Mapping[str, Any]], *, restores: bool, asked: bool) -> Reset:
    first = min(told, key=lambda row: (row["at_ns"], row["node"]))
    previous, survivors = first.get("previous_generation"), first.get("survivors")
    return Reset(
        partition=first["partition"],
        generation=first["generation"],
        previous=first["generation"] - 1 if previous is None else previous,
        earliest_ns=min(row["at_ns"] - row["uncertainty_ns"] for row in told),
        latest_ns=min(row["at_ns"] + row["uncertainty_ns"] for row in told),
        node=first["node"],
        text=first["text"],
        base_index=first.get("base_index"),
        base_term=first.get("base_term"),
        survivors=None if survivors is None else tuple(survivors),
        restores=restores,
        asked=asked,
    )


def _plain(number: int, row: Mapping[str, Any]) -> Reset:
    return Reset(
        partition=row["partition"],
        generation=number,
        previous=number - 1,
        earliest_ns=row["at_ns"] - row["uncertainty_ns"],
        latest_ns=row["at_ns"] + row["uncertainty_ns"] + APPLIED_WITHIN_NS,
        node=row["node"],
        text=row["text"],
    )


@attrs.frozen(kw_only=True)
class GenerationTree:
    """The generations of one partition by *place*, in the order in which they began: place 0 is the
    first generation, place i the one that ``resets[i - 1]`` began.

    ``parents[i]`` is the place of the generation from which generation i goes on (-1 of place 0).
    Generation i serves no earlier than ``begins[i]`` and no later than ``ends[i]``: both ascend.
    """

    partition: int
    resets: tuple[Reset, ...]
    parents: tuple[int, ...]
    begins: tuple[int, ...]
    ends: tuple[int, ...]

    def __len__(self) -> int:
        return len(self.parents)

    def reset(self, place: int) -> Reset | None:
        """Return the reset that began the generation at ``place``; the first has none."""
        return self.resets[place - 1] if place else None

    def span(self, start_ns: int, finish_ns: int) -> tuple[int, int]:
        """Return the first and the last generation in which an operation from ``start_ns`` to
        ``finish_ns`` may have taken effect.
        """
        first = min(bisect.bisect_left(self.ends, start_ns), len(self) - 1)
        last = bisect.bisect_right(self.begins, finish_ns) - 1
        return first, max(first, last)

    @functools.cached_property
    def branches(self) -> tuple[int, ...]:
        """The places of generations that go on from another than the one before them."""
        return tuple(i for i, parent in enumerate(self.parents) if i and parent != i - 1)

    def ways(self, since: int, until: int, first: int, last: int) -> tuple[range, ...]:
        """Return the generations that began on the way from one at ``since`` to ``until`` to one at
        ``first`` to ``last`` (all four inclusive), as ranges of places that ascend.

        Between branches each goes on from the one before: only where one branches off is a step.
        """
        found: dict[int, range] = {}
        begin, end = (bisect.bisect_right(self.branches, place) for place in (first, last))
        # Before the next branch the last one's way holds those of the others.
        for tip in (last, *(place - 1 for place in reversed(self.branches[begin:end]))):
            for way in self._way(since, until, tip):
                # Two that share a stretch between branches share its begin.
                found[way.start] = max(way, found.get(way.start, way), key=len)
        return tuple(way for _, way in sorted(found.items()))

    def _way(self, since: int, until: int, place: int) -> list[range]:
        """The way to the generation at ``place``; empty where it leads past all at ``since`` to
        ``until``.
        """
        found = list[range]()
        while place > since:
            branch = bisect.bisect_right(self.branches, place)
            start = self.branches[branch - 1] if branch else 0
            if start <= since:
                return [*found, range(since + 1, place + 1)]
            found.append(range(start, place + 1))
            place = self.parents[start]
        if place == since:
            return found
        # The first on the way is where the write was, not what came after it.
        return _but_first(found) if found and found[-1].start <= until else []

    @functools.cached_property
    def restoring(self) -> tuple[int, ...]:
        """The places of generations that take up what an earlier reset had cut off."""
        return tuple(place for place, reset in enumerate(self.resets, 1) if reset.restores)

    def ancestor(self, place: int, most: int) -> int:
        """Return the last generation whose log the one at ``place`` continues, itself included, of
        those at ``most`` or before; -1 where there is none.
        """
        if not self.branches:
            return min(place, most)
        while place > most:
            jump = self._jumps[place]
            place = jump if jump > most else self.parents[place]
        return place

    def continues(self, place: int, other: int) -> bool:
        """Tell whether the generation at ``place`` continues the log of the ``other`` one, or is
        it.
        """
        return self.ancestor(place, other) == other

    @functools.cached_property
    def _jumps(self) -> tuple[int, ...]:
        """From each generation one further up, so far that any is found in a logarithm of steps
        (Myers, "An applicative random-access stack").
        """
        depth, jumps = [0], [-1]
        for parent in self.parents[1:]:
            over, far = jumps[parent], jumps[jumps[parent]] if jumps[parent] >= 0 else -1
            even = over >= 0 and depth[parent] - depth[over] == depth[over] - (
                depth[far] if far >= 0 else -1
            )
            jumps.append(far if even else parent)
            depth.append(depth[parent] + 1)
        return tuple(jumps)

    def path(self, place: int) -> tuple[int, ...]:
        """Return the generations whose log the one at ``place`` continues, from the first one on,
        itself included.
        """
        found = []
        while place >= 0:
            found.append(place)
            place = self.parents[place]
        return tuple(reversed(found))

    def begun_anew(self, place: int) -> int | None:
        """Return the last generation on the way to the one at ``place`` that began empty; ``None``
        where there is none.
        """
        anew = (i for i in reversed(self.path(place)) if i and self.resets[i - 1].begins_anew)
        return next(anew, None)


def _but_first(ways: list[range]) -> list[range]:
    return [*ways[:-1], ways[-1][1:]]


_BEGINNING, _END = -(2**62), 2**62


def tree_of(partition: int, resets: Iterable[Reset]) -> GenerationTree:
    """Build the tree of ``partition`` from those of ``resets`` that are its own.

    A reset whose previous generation no event told goes on from the one that began before it.
    """
    own = tuple(sorted((r for r in resets if r.partition == partition), key=_order))
    places = {FIRST: 0}
    parents = [-1]
    begins, ends = [_BEGINNING], list[int]()
    for place, reset in enumerate(own, 1):
        parents.append(places.get(reset.previous, place - 1))
        places[reset.generation] = place
        begins.append(max(begins[-1], reset.earliest_ns))
        ends.append(max(ends[-1] if ends else _BEGINNING, reset.latest_ns))
    return GenerationTree(
        partition=partition,
        resets=own,
        parents=tuple(parents),
        begins=tuple(begins),
        ends=(*ends, max(_END, *ends)),
    )


def trees_of(resets: Iterable[Reset]) -> dict[int, GenerationTree]:
    """Return the trees of the partitions that were reset, by partition."""
    own: dict[int, list[Reset]] = {}
    for reset in resets:
        own.setdefault(reset.partition, []).append(reset)
    return {partition: tree_of(partition, its) for partition, its in sorted(own.items())}
