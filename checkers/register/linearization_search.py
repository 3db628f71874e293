"""Bounded search: registers with compare-and-set, or with values that were written twice.

Just-in-time linearization (Lowe, *Testing for linearizability*, 2017): the ends of operations are
taken in order of time, and a *configuration* is a possible value of the register and what has
become of the operations that are open. An operation must have taken effect only when it ends: then
a configuration is extended, change by change, until it has. If none can be carried over some end,
no order explains the history.

The configuration that has come farthest goes on first, so that of a history that some order
explains little more than that order is looked at. What leads nowhere else is left out:

* A read takes effect at once where it would find its value. So may a write where it changes
  nothing, and every open write just before another one, which no operation sees. Each of these is
  then *owed* no more, but can still be used where its value is found, until its end at the latest.
* Of two configurations with one value and the same compare-and-sets, the one that owes nothing and
  has *spent* nothing but what the other has, too, can do all that the other can. Operations of
  unknown outcome are never owed: only those that are spent count.
* Of operations with one effect the first to end is used: they may change places. So may a write
  and a compare-and-set with its effect that ends no later, where no write is owed.
* A write whose value nothing open would find can as well come later, or unseen: but at its end,
  and where it leaves the register as it is over what is owed.

Without these each operation of unknown outcome, and each open write, doubles the configurations.
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence

import attrs

from checkers.register.ops import CAS, INITIAL, NEVER
from checkers.register.timeline import End, Op, Timeline

# Configurations tried for each operation of a key, beside the limit that is given: the number of
# open operations makes a history hard, not its length. A key that needs more is undecided.
CONFIGURATIONS_EACH = 200
COMPARISONS_EACH = 16  # of two burdens: as many cost as much as a configuration


@attrs.frozen
class Linearization:
    """Some order explains all operations."""


@attrs.frozen
class Contradiction:
    """No order lets ``op`` take effect by its end; before what was open then took effect, the
    register could only hold one of ``held``.
    """

    op: int
    held: tuple[int, ...]


@attrs.frozen
class SearchExhausted:
    """The limit was reached before an answer."""


Answer = Linearization | Contradiction | SearchExhausted


def search_from(bases: Sequence[int], ops: list[Op], configurations_max: int) -> Answer:
    """Decide whether some order explains ``ops`` from a register that holds one of ``bases``; the
    contradiction is that of the first.
    """
    answers = [search(ops, configurations_max, base) for base in bases]
    for kind in (Linearization, SearchExhausted):
        found = next((answer for answer in answers if isinstance(answer, kind)), None)
        if found is not None:
            return found
    return answers[0]


def search(ops: list[Op], configurations_max: int, base: int = INITIAL) -> Answer:
    """Decide whether some order of ``ops`` explains them, from a register that holds ``base``.

    Gives up after ``configurations_max`` configurations, and ``CONFIGURATIONS_EACH`` for each
    operation. Operations that touch are concurrent; those that end ``NEVER`` may have taken effect
    or not. A contradiction names the first end that no configuration passes.
    """
    return _Search(Timeline.of(ops)).run(base, configurations_max + CONFIGURATIONS_EACH * len(ops))


# What the register holds; the marks: a bit for each open compare-and-set that has taken effect, and
# for a write that is to be seen at its end; and the burden: a bit for each read and write that is
# owed, for each open write that is spent, and for each operation of unknown outcome that is.
_Configuration = tuple[int, int, int]
# The end of the change that was added last, and what comes of it.
_Option = tuple[int, _Configuration]
# Of a configuration that waits: its weight, a number that lets the newest go first, and the changes
# since the end before.
_Waiting = tuple[int, int, int, _Configuration]


class _Search:
    """The configurations that were met before each end, and those of them that wait."""

    def __init__(self, timeline: Timeline) -> None:
        self._timeline, self._ends, self._width = timeline, timeline.ends, timeline.width
        # By value and marks: the burdens of which none is a part of another.
        self._met: list[dict[tuple[int, int], list[int]]] = [{} for _ in self._ends]
        self._waiting: list[list[_Waiting]] = [[] for _ in self._ends]
        self._farthest, self._held = -1, set[int]()  # the values there
        self._top = -1  # no configuration waits before a later end
        self._serial = self._tried = 0

    def run(self, base: int, limit: int) -> Answer:
        """The answer, from a register that holds ``base``, within ``limit`` configurations."""
        if self._enters(0, (base, 0, 0)):
            return Linearization()
        while (found := self._next()) is not None:
            place, steps, configuration = found
            for after in self._extended(place, configuration):
                if self._carried(place, steps + 1, after):
                    return Linearization()
            if self._tried > limit:
                return SearchExhausted()
        return Contradiction(self._ends[self._farthest].number, tuple(sorted(self._held)))

    def _next(self) -> tuple[int, int, _Configuration] | None:
        """The place of the configuration that has come farthest, and of those has least weight; the
        changes since the end before, and itself.
        """
        while self._top >= 0:
            waiting = self._waiting[self._top]
            while waiting:
                _, _, steps, configuration = heapq.heappop(waiting)
                held, marks, burden = configuration
                # A lighter one may have taken its place meanwhile.
                if burden in self._met[self._top][held, marks]:
                    return self._top, steps, configuration
            self._top -= 1
        return None

    def _enters(self, place: int, configuration: _Configuration) -> bool:
        """Carry ``configuration`` over the ends that ask for nothing more; whether over all."""
        held, marks, burden = configuration
        for at in range(place, len(self._ends)):
            end = self._ends[at]
            burden = (burden | end.begun) & ~end.served.get(held, 0) & end.lasting
            if not _passes(end, marks, burden):
                if at > self._farthest:
                    self._farthest, self._held = at, set()
                if at == self._farthest:
                    self._held.add(held)
                self._add(at, 0, (held, marks, burden))
                return False
            marks, burden = self._over(at, 0, (held, marks, burden))
        return True

    def _carried(self, place: int, steps: int, configuration: _Configuration) -> bool:
        """Take in what a change has made before the end at ``place``; whether it explains all."""
        held, marks, burden = configuration
        end = self._ends[place]
        if not _passes(end, marks, burden):
            self._add(place, steps, configuration)
            return False
        return self._enters(place + 1, (held, *self._over(place, steps, configuration)))

    def _over(self, place: int, steps: int, configuration: _Configuration) -> tuple[int, int]:
        """The marks and the burden behind the end at ``place``, which ``configuration`` passes."""
        held, marks, burden = configuration
        end = self._ends[place]
        if end.leaves is not None and not burden >> self._width & end.bit:
            if end.found_later:
                # Or it is seen at its end: what begins later may find its value.
                self._add(place, steps, (held, marks | end.bit, burden))
            if end.leaves == held:
                # At its end it may have been written over all that is owed.
                burden &= ~end.writes
        return marks & ~end.bit, burden & ~(end.bit | end.bit << self._width)

    def _add(self, place: int, steps: int, configuration: _Configuration) -> None:
        """Let ``configuration`` wait before the end at ``place``, unless one that was met there can
        do all that it can.
        """
        held, marks, burden = configuration
        met = self._met[place].setdefault((held, marks), [])
        self._tried += 1 + len(met) // COMPARISONS_EACH
        if any(not lighter & ~burden for lighter in met):
            return
        met[:] = [heavier for heavier in met if burden & ~heavier]
        met.append(burden)
        self._serial -= 1
        weight = burden.bit_count() + steps
        heapq.heappush(self._waiting[place], (weight, self._serial, steps, configuration))
        self._top = max(self._top, place)

    def _extended(self, place: int, configuration: _Configuration) -> list[_Configuration]:
        """``configuration`` with one more change that has taken effect, the most urgent last."""
        held, marks, burden = configuration
        end = self._ends[place]
        found = self._found(end, marks, burden) - {held}
        # What is owed may have been written just before a write that changes nothing.
        written = found | {held} if burden & end.writes else found
        # By the value that it leaves: the end of a change, and what comes of it.
        swaps, writes = dict[int, _Option](), dict[int, _Option]()
        for bit, op in end.changes:
            if op.f == CAS:
                if op.seen == held and not bit & marks:
                    after = op.left, marks | bit, burden & ~end.served.get(op.left, 0)
                    swaps.setdefault(op.left, (op.finish, after))
            elif bit == end.bit or (op.left in written and not burden >> self._width & bit):
                after = op.left, marks & ~bit, _written(end, op.left, burden | bit << self._width)
                writes.setdefault(op.left, (op.finish, after))
        self._add_unknown(place, configuration, written, swaps, writes)
        options = [*swaps.values()]
        for value, write in writes.items():
            swap = swaps.get(value)
            if swap is None or write[0] < swap[0] or burden & end.writes:
                options.append(write)
        options.sort(reverse=True)
        return [after for _, after in options]

    def _found(self, end: End, marks: int, burden: int) -> set[int]:
        """The values that something which has not taken effect would find."""
        found = set(self._timeline.found_by_unknown)
        found.update(value for value, bits in end.reads.items() if bits & burden)
        found.update(op.seen for bit, op in end.changes if op.f == CAS and not bit & marks)
        return found

    def _add_unknown(
        self,
        place: int,
        configuration: _Configuration,
        found: set[int],
        swaps: dict[int, _Option],
        writes: dict[int, _Option],
    ) -> None:
        """Add the changes of unknown outcome, where no other of the same effect is there."""
        held, marks, burden = configuration
        end, shift = self._ends[place], 2 * self._width
        for value in found:
            bit = self._timeline.unused((held, value), place, burden >> shift)
            if bit and value not in swaps:
                spent = burden & ~end.served.get(value, 0) | bit << shift
                swaps[value] = NEVER, (value, marks, spent)
            bit = self._timeline.unused((None, value), place, burden >> shift)
            if bit and value not in writes:
                spent = _written(end, value, burden | bit << shift)
                writes[value] = NEVER, (value, marks, spent)


def _passes(end: End, marks: int, burden: int) -> bool:
    """Whether the operation that ends has taken effect."""
    return bool(marks & end.bit) if end.swaps else not (burden | marks) & end.bit


def _written(end: End, value: int, burden: int) -> int:
    """``burden`` once ``value`` was written: every other open write may have been written just
    before, and every read of the value is served.
    """
    return burden & ~(end.writes | end.served.get(value, 0))
