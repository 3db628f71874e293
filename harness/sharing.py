"""The algebra of generators: who may do what. ``harness.combinators`` has the rest.

A combinator may ask several generators and take the soonest answer: asking for what is then not
used does not change it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import attrs
from msgspec.structs import replace

from harness.errors import UsageError
from harness.generator import (
    Answer,
    Context,
    Event,
    Generator,
    Later,
    Operation,
    Said,
    Wait,
    replaced,
    soonest,
    updated,
)


def _never_asked(generator: AnyOf) -> tuple[int | None, ...]:
    return (None,) * len(generator.parts)


@attrs.frozen
class AnyOf:
    """The soonest operation of any of ``parts``; exhausted when all are. One that is not due yet
    waits for its time, and leaves the idle to the others until then.

    ``asked_ns``: since when each part has had an operation that is still to come. It is asked as of
    then until it is taken: neither that operation nor what counts from the first question moves.
    """

    parts: tuple[Generator, ...]
    asked_ns: tuple[int | None, ...] = attrs.Factory(_never_asked, takes_self=True)
    last_slot: int = -1

    def op(self, context: Context) -> Answer:
        """See ``Generator``."""
        answers = [self._ask(place, context) for place in range(len(self.parts))]
        asked_ns = tuple(
            since_ns if since_ns is not None else _since(answer, context)
            for (answer, _), since_ns in zip(answers, self.asked_ns, strict=True)
        )
        parts = tuple(
            part if isinstance(answer, Operation) else after
            for part, (answer, after) in zip(self.parts, answers, strict=True)
        )
        chosen = self._next([answer for answer, _ in answers], context)
        if chosen is None:
            after = AnyOf(parts, asked_ns, self.last_slot)
            return soonest([_not_yet(answer) for answer, _ in answers]), after
        place, operation = chosen
        return operation, AnyOf(
            replaced(parts, place, answers[place][1]),
            (*asked_ns[:place], None, *asked_ns[place + 1 :]),
            operation.process % context.concurrency,
        )

    def update(self, context: Context, event: Event) -> Generator:
        """See ``Generator``."""
        return attrs.evolve(self, parts=updated(self.parts, context, event))

    def _ask(self, place: int, context: Context) -> Answer:
        since_ns = self.asked_ns[place]
        return self.parts[place].op(
            context if since_ns is None else replace(context, now_ns=since_ns)
        )

    def _next(self, answers: Sequence[Said], context: Context) -> tuple[int, Operation] | None:
        """Which operation is the soonest of those that are due, and its part's place; of several
        the one whose slot is next in turn.
        """
        count = context.concurrency
        due = [
            (answer.at_ns, (answer.process % count - self.last_slot - 1) % count, place, answer)
            for place, answer in enumerate(answers)
            if isinstance(answer, Operation) and answer.at_ns <= context.now_ns
        ]
        if not due:
            return None
        _, _, place, operation = min(due, key=lambda each: each[:3])
        return place, operation


def _since(answer: Said, context: Context) -> int | None:
    """From when on the generator that gave ``answer`` has an operation that is still to come."""
    later = isinstance(answer, Operation) and answer.at_ns > context.now_ns
    return context.now_ns if later else None


def _not_yet(answer: Said) -> Said:
    return Later(answer.at_ns) if isinstance(answer, Operation) else answer


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
