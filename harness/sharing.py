"""The algebra of generators: who may do what. ``harness.combinators`` has the rest.

A combinator may ask several generators and take the soonest answer: asking for what is then not
used does not change it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

import attrs
from msgspec.structs import replace

from harness.errors import UsageError
from harness.generator import Answer, Context, Event, Generator, Operation, Wait, replaced, updated


def _soonest(answers: Iterable[tuple[int, Answer]], context: Context, last_slot: int) -> int | None:
    """The place of the operation that starts first; of several the one whose slot is next in
    turn.
    """
    best: tuple[int, int, int] | None = None
    for place, (answer, _) in answers:
        if isinstance(answer, Operation):
            turn = (answer.process % context.concurrency - last_slot - 1) % context.concurrency
            best = min(best or (answer.at_ns, turn, place), (answer.at_ns, turn, place))
    return None if best is None else best[2]


def _not_later(answer: Answer, due_ns: int | None) -> Answer:
    """``answer`` no later than what was said before, and passed over for something sooner: an
    arrival that nobody took does not move.
    """
    operation, after = answer
    if due_ns is None or not isinstance(operation, Operation):
        return answer
    return replace(operation, at_ns=min(operation.at_ns, due_ns)), after


def _due(answer: Answer, due_ns: int | None, context: Context) -> int | None:
    """When an operation that is passed over is to start, where that is more than "now"."""
    operation, _ = answer
    if due_ns is not None or not isinstance(operation, Operation):
        return due_ns
    return operation.at_ns if operation.at_ns > context.now_ns else None


def _slot(answer: Operation | Wait, context: Context, otherwise: int) -> int:
    return answer.process % context.concurrency if isinstance(answer, Operation) else otherwise


def _never_asked(generator: AnyOf) -> tuple[int | None, ...]:
    return (None,) * len(generator.parts)


@attrs.frozen
class AnyOf:
    """The soonest operation of any of ``parts``; exhausted when all are."""

    parts: tuple[Generator, ...]
    due: tuple[int | None, ...] = attrs.Factory(_never_asked, takes_self=True)
    last_slot: int = -1

    def op(self, context: Context) -> Answer:
        """See ``Generator``."""
        both = zip(self.parts, self.due, strict=True)
        answers = [_not_later(part.op(context), due_ns) for part, due_ns in both]
        place = _soonest(enumerate(answers), context, self.last_slot)
        if place is None:
            over = all(answer is Wait.EXHAUSTED for answer, _ in answers)
            return (Wait.EXHAUSTED if over else Wait.PENDING), self
        answer, after = answers[place]
        due = [_due(a, due_ns, context) for a, due_ns in zip(answers, self.due, strict=True)]
        due[place] = None
        parts = replaced(self.parts, place, after)
        return answer, AnyOf(parts, tuple(due), _slot(answer, context, self.last_slot))

    def update(self, context: Context, event: Event) -> Generator:
        """See ``Generator``."""
        return attrs.evolve(self, parts=updated(self.parts, context, event))


@attrs.frozen
class OnSlots:
    """``inner``, done by the slots that ``chosen`` accepts; it knows of no others. Jepsen's
    ``on-threads``.
    """

    chosen: Callable[[int], bool]
    inner: Generator

    def op(self, context: Context) -> Answer:
        """See ``Generator``."""
        own = context.only(self.chosen)
        if not own.slots:
            return Wait.EXHAUSTED, self
        if not own.free:
            return Wait.PENDING, self
        answer, inner = self.inner.op(own)
        return answer, attrs.evolve(self, inner=inner)

    def update(self, context: Context, event: Event) -> Generator:
        """See ``Generator``."""
        if not self.chosen(event.process % context.concurrency):
            return self
        inner = self.inner.update(context.only(self.chosen), event)
        return attrs.evolve(self, inner=inner)


def reserve(shares: Sequence[tuple[int, Generator]], rest: Generator) -> AnyOf:
    """The first so many slots for the first share, the next for the second, all others for
    ``rest``. Raises ``UsageError``.
    """
    parts: list[Generator] = []
    begin = 0
    for count, generator in shares:
        if count < 1:
            raise UsageError(f"reserve: expected at least 1 slot (got {count})")
        parts.append(OnSlots(_Between(begin, begin + count), generator))
        begin += count
    return AnyOf((*parts, OnSlots(_Between(begin, None), rest)))


@attrs.frozen
class _Between:
    begin: int
    end: int | None

    def __call__(self, slot: int) -> bool:
        return self.begin <= slot and (self.end is None or slot < self.end)


@attrs.frozen
class EachSlot:
    """A copy of ``inner`` for every slot, independent of the others. Jepsen's ``each-thread``."""

    inner: Generator
    each: Generator | None = None

    def op(self, context: Context) -> Answer:
        """See ``Generator``."""
        answer, after = self._each(context).op(context)
        return answer, attrs.evolve(self, each=after)

    def update(self, context: Context, event: Event) -> Generator:
        """See ``Generator``."""
        return attrs.evolve(self, each=self._each(context).update(context, event))

    def _each(self, context: Context) -> Generator:
        if self.each is not None:
            return self.each
        return AnyOf(tuple(OnSlots(_Between(n, n + 1), self.inner) for n in context.slots))
