"""Bounded search: registers with compare-and-set, or with values that were written twice.

Just-in-time linearization (Lowe, *Testing for linearizability*, 2017): events are taken in order of
time, and a *configuration* is a possible value of the register and the set of open operations that
have taken effect. An operation must have taken effect only when it ends: then every configuration
is extended, operation by operation, until it has. If no configuration is left, no order explains
the history. Equal configurations are merged.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator, Sequence

import attrs

from checkers.register.ops import CAS, INITIAL, NEVER, READ

# Configurations tried for each operation of a key, beside the limit that is given. Ten clients of
# one key need some 60 an operation: the number of open operations makes a history hard, not its
# length. A key that needs more is undecided.
CONFIGURATIONS_EACH = 200


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


@attrs.frozen
class Linearization:
    """Some order explains all operations."""


@attrs.frozen
class Contradiction:
    """No order lets ``op`` take effect by its end; the register could only hold ``held`` then."""

    op: int
    held: tuple[int, ...]


@attrs.frozen
class SearchExhausted:
    """The limit was reached before an answer."""


Answer = Linearization | Contradiction | SearchExhausted

_Configuration = tuple[int, int]  # what the register holds; a bit for each open op that is done


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
    or not.
    """
    limit = configurations_max + CONFIGURATIONS_EACH * len(ops)
    ops_needed = _needed(ops)
    configurations: set[_Configuration] = {(base, 0)}
    pending = _Pending()
    tried = 0
    for begins, number in _events(ops, ops_needed):
        if begins:
            begun = pending.begin(number, ops[number])
            if begun.op.f == READ:
                configurations = {_with_read(c, begun) for c in configurations}
            continue
        held = tuple(sorted({state for state, _ in configurations}))
        ended = pending.open[number]
        carried, cost = _carried(configurations, ended.bit, pending, limit - tried)
        tried += cost
        if tried > limit:
            return SearchExhausted()
        if not carried:
            return Contradiction(number, held)
        pending.end(number)
        # All hold the ended operation: without its bit more of them are equal, and merge.
        configurations = {(state, done & ~ended.bit) for state, done in carried}
    return Linearization()


@attrs.frozen
class _Open:
    """An operation that has begun, and its bit in configurations; ``lasting``: one that changes the
    register, if ever, and never ends, or several of them that do the same, with the bits of all.
    """

    op: Op
    bit: int
    lasting: bool = False


class _Pending:
    """The operations that have begun and not ended. A bit is given to another one when its
    operation has ended, so that configurations stay as small as the open operations are few.
    """

    def __init__(self) -> None:
        self.open: dict[int, _Open] = {}
        self._free: list[int] = []
        self._top = 0
        self._alike: dict[tuple[int, int, int], _Open] = {}

    def begin(self, number: int, op: Op) -> _Open:
        lasting = op.finish == NEVER and op.f != READ
        if self._free and not lasting:
            slot = heapq.heappop(self._free)
        else:
            slot, self._top = self._top, self._top + 1
        begun = _Open(op, 1 << slot)
        if lasting:
            # Those that never end and do the same are interchangeable: which of them has taken
            # effect makes no difference, so that the first ones, by their bits, stand for any.
            alike = (op.f, op.seen, op.left)
            bits = begun.bit | (self._alike[alike].bit if alike in self._alike else 0)
            self._alike[alike] = _Open(op, bits, lasting=True)
        else:
            self.open[number] = begun
        return begun

    def end(self, number: int) -> None:
        heapq.heappush(self._free, self.open.pop(number).bit.bit_length() - 1)

    def reads(self) -> list[_Open]:
        return [each for each in self.open.values() if each.op.f == READ]

    def changes(self) -> list[_Open]:
        return [*(e for e in self.open.values() if e.op.f != READ), *self._alike.values()]


def _needed(ops: list[Op]) -> list[int]:
    """Return all operations but those of unknown outcome whose value no operation found: leaving
    such a one out never makes a history harder to explain.
    """
    needed = list(range(len(ops)))
    while True:
        found = {ops[n].seen for n in needed if ops[n].f != READ or ops[n].finish != NEVER}
        kept = [n for n in needed if ops[n].finish != NEVER or ops[n].left in found]
        if len(kept) == len(needed):
            return kept
        needed = kept


def _events(ops: list[Op], needed: list[int]) -> Iterator[tuple[bool, int]]:
    """Yield (begins, operation) in order; at a tie beginnings come first."""
    begins = [(ops[n].start, 0, n) for n in needed]
    ends = [(ops[n].finish, 1, n) for n in needed if ops[n].finish != NEVER]
    for _, end, number in sorted(begins + ends):
        yield not end, number


def _with_read(configuration: _Configuration, read: _Open) -> _Configuration:
    """Let a read that would find its value take effect at once: it changes nothing for others."""
    state, done = configuration
    return (state, done | read.bit) if read.op.seen == state else configuration


def _carried(
    configurations: set[_Configuration], bit: int, pending: _Pending, limit: int
) -> tuple[set[_Configuration], int]:
    """Return the configurations in which the operation of ``bit`` has taken effect, and the number
    tried. Stops at the first above ``limit``.
    """
    carried = {c for c in configurations if c[1] & bit}
    # Reached by a lasting change that nothing has seen yet. A write behind it would make it as if
    # it had not been, which is one of the configurations without it.
    unseen: set[_Configuration] = set()
    known = configurations - carried
    frontier = sorted(known)
    reads, changes = pending.reads(), pending.changes()
    tried = len(configurations)
    while frontier and tried <= limit:
        configuration = state, done = frontier.pop()
        for change in changes:
            op, left = change.op, change.bit & ~done
            if not left or (op.seen != state if op.f == CAS else configuration in unseen):
                continue
            after = made = op.left, done | left & -left
            for read in reads:
                after = _with_read(after, read)
            tried += 1
            if after[1] & bit:
                carried.add(after)
            elif after not in known:
                known.add(after)
                frontier.append(after)
                if change.lasting and after == made:
                    unseen.add(after)
            elif after in unseen and not (change.lasting and after == made):
                unseen.discard(after)
                frontier.append(after)
    return carried, tried
