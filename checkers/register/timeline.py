"""The operations on one register as a search meets them: by the ends of those that have one.

Operations of unknown outcome have no end. They are grouped by their effect, since two of the same
effect are as good as each other once both have begun: the first of a group is used first.
"""

from __future__ import annotations

import bisect
import heapq
from collections.abc import Callable, Iterator, Mapping, Sequence

import attrs

from checkers.register.ops import CAS, NEVER, READ, WRITE

Effect = tuple[int | None, int]
"""The value that a change must find, ``None`` for a write, and the value that it leaves."""


@attrs.frozen
class Op:
    """An operation: the value that it must find (reads, compare-and-set) and the value that it
    leaves.
    """

    f: int
    seen: int
    left: int
    start: int
    finish: int

    @property
    def effect(self) -> Effect:
        """What it does to the register, if it is no read."""
        return (self.seen if self.f == CAS else None), self.left


@attrs.frozen(kw_only=True)
class End:
    """The end of an operation, and what is open then, itself included: has begun and not ended
    before. Each open operation has a bit.

    ``number`` and ``bit``: of the operation that ends; ``swaps``: it is a compare-and-set;
    ``leaves``: the value that it writes, ``None`` if it is no write; ``found_later``: an operation
    that ends later finds what it leaves. ``changes``: the open writes and compare-and-sets, the
    first to end first; ``served``: by the value of the
    register the reads that find it and the writes that leave it; ``reads``: the reads alone;
    ``writes``: all writes; ``begun``: the reads and writes that began behind the end before.
    ``lasting``: what a burden is made of, without the operations of unknown outcome whose values
    are found no more.
    """

    number: int
    bit: int
    swaps: bool
    leaves: int | None
    found_later: bool
    changes: tuple[tuple[int, Op], ...]
    served: Mapping[int, int]
    reads: Mapping[int, int]
    writes: int
    begun: int
    lasting: int


@attrs.frozen
class Unknown:
    """The operations of unknown outcome with one effect: ``begun`` are the places of the first ends
    behind their beginnings, in order; the first of them has the bit ``1 << first``.
    """

    first: int
    begun: tuple[int, ...]

    @property
    def bits(self) -> int:
        """The bits of all."""
        return ((1 << len(self.begun)) - 1) << self.first


@attrs.frozen(kw_only=True)
class Timeline:
    """The ends of all operations that have one, in order of time, and the operations of unknown
    outcome by effect.

    ``width``: the bits that open operations have. ``last_found``: by value the place of the last
    end of an operation that found it, or that found what an operation of unknown outcome makes of
    it. ``found_by_unknown``: the values that compare-and-sets of unknown outcome must find.
    """

    ends: tuple[End, ...]
    width: int
    unknown: Mapping[Effect, Unknown]
    last_found: Mapping[int, int]
    found_by_unknown: frozenset[int]

    @classmethod
    def of(cls, ops: Sequence[Op]) -> Timeline:
        """The timeline of ``ops``. Operations that touch are concurrent."""
        order = sorted((n for n, op in enumerate(ops) if op.finish != NEVER), key=_by_finish(ops))
        ended = [ops[number] for number in order]
        changes = [op for op in ops if op.finish == NEVER and op.f != READ]
        last_found, width = _last_found(ended, changes), _most_open(ended)
        unknown = _by_effect(changes, [op.finish for op in ended], last_found)
        lasting = _lasting(unknown, last_found, len(order), width)
        ends = []
        for place, (is_open, begun) in enumerate(_open_at(ended, width)):
            later = last_found.get(ended[place].left, -1) > place
            end = _end(
                order[place], is_open, begun=begun, lasting=lasting[place], found_later=later
            )
            ends.append(end)
        return cls(
            ends=tuple(ends),
            width=width,
            unknown=unknown,
            last_found=last_found,
            found_by_unknown=frozenset(seen for seen, _ in unknown if seen is not None),
        )

    def unused(self, effect: Effect, place: int, used: int) -> int:
        """The bit of an operation of unknown outcome with ``effect`` that is not among ``used``,
        has begun by the end at ``place`` and leaves what may be found yet; 0 if there is none.
        """
        group = self.unknown.get(effect)
        if group is None or self.last_found[effect[1]] < place:
            return 0
        count = (used & group.bits).bit_count()
        begun = bisect.bisect_right(group.begun, place)
        return 1 << (group.first + count) if count < begun else 0


def _by_finish(ops: Sequence[Op]) -> Callable[[int], tuple[int, int]]:
    return lambda number: (ops[number].finish, number)


def _last_found(ended: Sequence[Op], unknown: Sequence[Op]) -> dict[int, int]:
    found = {op.seen: place for place, op in enumerate(ended) if op.f != WRITE}
    swaps = {(op.seen, op.left) for op in unknown if op.f == CAS}
    while later := {
        seen: found[left] for seen, left in swaps if found.get(left, -1) > found.get(seen, -1)
    }:
        found.update(later)
    return found


def _by_effect(
    changes: Sequence[Op], finishes: Sequence[int], last_found: Mapping[int, int]
) -> dict[Effect, Unknown]:
    begun: dict[Effect, list[int]] = {}
    for op in changes:
        place = bisect.bisect_left(finishes, op.start)
        # Leaving out what nothing finds any more never makes a history harder to explain.
        if place <= last_found.get(op.left, -1):
            begun.setdefault(op.effect, []).append(place)
    found, first = dict[Effect, Unknown](), 0
    for effect, places in begun.items():
        found[effect] = Unknown(first, tuple(sorted(places)))
        first += len(places)
    return found


def _lasting(
    unknown: Mapping[Effect, Unknown], last_found: Mapping[int, int], places: int, width: int
) -> list[int]:
    """See ``End``: by place."""
    until: dict[int, int] = {}
    for (_, left), group in unknown.items():
        until[last_found[left]] = until.get(last_found[left], 0) | group.bits << 2 * width
    lasting, bits = [0] * places, (1 << 2 * width) - 1
    for place in reversed(range(places)):
        bits |= until.get(place, 0)
        lasting[place] = bits
    return lasting


def _most_open(ended: Sequence[Op]) -> int:
    """How many of the operations, which are in order of their ends, are open at once, at most."""
    starts = sorted(op.start for op in ended)
    return max(
        (bisect.bisect_right(starts, op.finish) - place for place, op in enumerate(ended)),
        default=0,
    )


def _open_at(ended: Sequence[Op], width: int) -> Iterator[tuple[list[tuple[int, Op]], int]]:
    """Yield, for each end, the operations that are open then, each with its bit, the first to end
    first; and the bits of the reads and writes that began behind the end before.
    """
    coming = sorted(range(len(ended)), key=lambda place: ended[place].start)
    free = [1 << slot for slot in range(width)]
    is_open: list[tuple[int, int]] = []  # the place of each one's end, and its bit
    began = 0
    for op in ended:
        new = list[tuple[int, int]]()
        while began < len(coming) and ended[coming[began]].start <= op.finish:
            new.append((coming[began], heapq.heappop(free)))
            began += 1
        is_open = sorted(is_open + new)
        begun = sum(bit for place, bit in new if ended[place].f != CAS)
        yield [(bit, ended[place]) for place, bit in is_open], begun
        heapq.heappush(free, is_open.pop(0)[1])  # the first to end is the one that ends here


def _end(
    number: int, is_open: Sequence[tuple[int, Op]], *, begun: int, lasting: int, found_later: bool
) -> End:
    served, reads = dict[int, int](), dict[int, int]()
    for bit, op in is_open:
        if op.f != CAS:
            served[op.left] = served.get(op.left, 0) | bit
        if op.f == READ:
            reads[op.seen] = reads.get(op.seen, 0) | bit
    first_bit, first = is_open[0]
    return End(
        number=number,
        bit=first_bit,
        swaps=first.f == CAS,
        leaves=first.left if first.f == WRITE else None,
        found_later=found_later,
        changes=tuple((bit, op) for bit, op in is_open if op.f != READ),
        served=served,
        reads=reads,
        writes=sum(bit for bit, op in is_open if op.f == WRITE),
        begun=begun,
        lasting=lasting,
    )
