"""The rest of the algebra of generators: order, distance, end, and the slots that may run them.

``harness.generators.generator`` has the basic ones.

Names and meanings are those of Jepsen's ``generator`` where there is one. Faults are no operations
here but a schedule of their own, so there is no ``clients`` and no ``nemesis``.

Everything is a frozen value. Asking a generator and not using its answer leaves it unchanged, so a
combinator may ask several and take the soonest answer.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import attrs
from msgspec.structs import replace

from harness.errors import UsageError
from harness.generators.generator import (
    Answer,
    Context,
    Event,
    Generator,
    Later,
    Operation,
    Phases,
    Said,
    Wait,
    replaced,
    soonest,
    updated,
)
from harness.history.records import Invoke, OpType

MAX_SKIPPED = 100_000  # a filter that lets nothing pass ends here, loudly


def then(first: Generator, second: Generator) -> Phases:
    """``second`` once everything of ``first`` has ended."""
    return Phases((first, second))


@attrs.frozen
class InOrder:
    """All of the first of ``parts``, then the second, and so on, without waiting for open
    operations; ``Phases`` waits.
    """

    parts: tuple[Generator, ...]

    def op(self, context: Context) -> Answer:
        """See ``Generator``."""
        for place, part in enumerate(self.parts):
            answer, after = part.op(context)
            if answer is not Wait.EXHAUSTED:
                return answer, InOrder((after, *self.parts[place + 1 :]))
        return Wait.EXHAUSTED, InOrder(())

    def update(self, context: Context, event: Event) -> Generator:
        """See ``Generator``."""
        if not self.parts:
            return self
        return InOrder((self.parts[0].update(context, event), *self.parts[1:]))


@attrs.frozen
class Cycle:
    """``inner`` from its beginning whenever it is exhausted; ``times`` in all, ``None`` without
    end.
    """

    inner: Generator
    times: int | None = None
    now: Generator | None = None

    def __attrs_post_init__(self) -> None:
        if self.times is not None and self.times < 0:
            raise UsageError(f"cycle: expected 0 times or more, found {self.times}")

    def op(self, context: Context) -> Answer:
        """See ``Generator``."""
        left = self.times
        if left is not None and left <= 0:
            return Wait.EXHAUSTED, self
        answer, after = (self.now or self.inner).op(context)
        if answer is not Wait.EXHAUSTED:
            return answer, attrs.evolve(self, now=after)
        left = None if left is None else left - 1
        if self.now is None or left == 0:  # an empty generator stays empty
            return Wait.EXHAUSTED, Cycle(self.inner, 0)
        answer, after = self.inner.op(context)
        return answer, Cycle(self.inner, left, after)

    def update(self, context: Context, event: Event) -> Generator:
        """See ``Generator``."""
        return self if self.now is None else attrs.evolve(self, now=self.now.update(context, event))


@attrs.frozen
class FlipFlop:
    """One operation of each of ``parts`` in a circle; exhausted as soon as the part whose turn it
    is is exhausted.
    """

    parts: tuple[Generator, ...]
    turn: int = 0

    def __attrs_post_init__(self) -> None:
        if not self.parts:
            raise UsageError("flip-flop: expected at least one part, found none")

    def op(self, context: Context) -> Answer:
        """See ``Generator``."""
        answer, after = self.parts[self.turn].op(context)
        if answer is Wait.EXHAUSTED:
            return answer, self
        turn = (self.turn + isinstance(answer, Operation)) % len(self.parts)
        return answer, FlipFlop(replaced(self.parts, self.turn, after), turn)

    def update(self, context: Context, event: Event) -> Generator:
        """See ``Generator``."""
        return FlipFlop(updated(self.parts, context, event), self.turn)


@attrs.frozen
class Map:
    """``inner`` with every operation transformed by ``change``, which must keep its process."""

    change: Callable[[Operation], Operation]
    inner: Generator

    def op(self, context: Context) -> Answer:
        """See ``Generator``."""
        answer, inner = self.inner.op(context)
        changed = self.change(answer) if isinstance(answer, Operation) else answer
        return changed, attrs.evolve(self, inner=inner)

    def update(self, context: Context, event: Event) -> Generator:
        """See ``Generator``."""
        return attrs.evolve(self, inner=self.inner.update(context, event))


@attrs.frozen
class Filter:
    """The operations of ``inner`` that ``keep`` accepts; the others are dropped."""

    keep: Callable[[Operation], bool]
    inner: Generator

    def op(self, context: Context) -> Answer:
        """See ``Generator``. Raises ``UsageError`` where nothing is ever accepted."""
        inner = self.inner
        for _ in range(MAX_SKIPPED):
            answer, inner = inner.op(context)
            if not isinstance(answer, Operation) or self.keep(answer):
                return answer, attrs.evolve(self, inner=inner)
        raise UsageError(f"filter: none of {MAX_SKIPPED} operations was accepted")

    def update(self, context: Context, event: Event) -> Generator:
        """See ``Generator``."""
        return attrs.evolve(self, inner=self.inner.update(context, event))


@attrs.frozen
class Delay:
    """``inner`` as an open loop with ``gap_ns`` between intended starts, to the nanosecond."""

    gap_ns: int
    inner: Generator
    next_ns: int | None = None

    def __attrs_post_init__(self) -> None:
        if self.gap_ns < 0:
            raise UsageError(f"delay: expected 0 ns or more, found {self.gap_ns}")

    def op(self, context: Context) -> Answer:
        """See ``Generator``."""
        at_ns = context.now_ns if self.next_ns is None else self.next_ns
        answer, inner = self.inner.op(context)
        if not isinstance(answer, Operation):
            return answer, attrs.evolve(self, inner=inner)
        at_ns = max(at_ns, answer.at_ns) if self.next_ns is None else at_ns
        return replace(answer, at_ns=at_ns), Delay(self.gap_ns, inner, at_ns + self.gap_ns)

    def update(self, context: Context, event: Event) -> Generator:
        """See ``Generator``."""
        return attrs.evolve(self, inner=self.inner.update(context, event))


@attrs.frozen
class After:
    """``inner``, delayed until ``pause_ns`` have passed since the first call of ``op``. Jepsen's
    ``sleep``, which here always precedes another generator.
    """

    pause_ns: int
    inner: Generator
    from_ns: int | None = None

    def __attrs_post_init__(self) -> None:
        if self.pause_ns < 0:
            raise UsageError(f"after: expected 0 ns or more, found {self.pause_ns}")

    def op(self, context: Context) -> Answer:
        """See ``Generator``."""
        from_ns = context.now_ns + self.pause_ns if self.from_ns is None else self.from_ns
        answer, inner = self.inner.op(replace(context, now_ns=max(context.now_ns, from_ns)))
        return answer, After(self.pause_ns, inner, from_ns)

    def update(self, context: Context, event: Event) -> Generator:
        """See ``Generator``."""
        return attrs.evolve(self, inner=self.inner.update(context, event))


@attrs.frozen
class Synchronize:
    """``inner`` once no operation is open any more."""

    inner: Generator
    begun: bool = False

    def op(self, context: Context) -> Answer:
        """See ``Generator``."""
        if context.busy and not self.begun:
            return Wait.PENDING, self
        answer, inner = self.inner.op(context)
        return answer, Synchronize(inner, begun=True)

    def update(self, context: Context, event: Event) -> Generator:
        """See ``Generator``."""
        return attrs.evolve(self, inner=self.inner.update(context, event))


@attrs.frozen
class UntilFirstOk:
    """``inner`` until an operation of it was ok. Jepsen's ``until-ok``; ``UntilOk`` of
    ``harness.generators.generator`` repeats each of several transactions.
    """

    inner: Generator
    open: tuple[int, ...] = ()
    over: bool = False

    def op(self, context: Context) -> Answer:
        """See ``Generator``."""
        if self.over:
            return Wait.EXHAUSTED, self
        answer, inner = self.inner.op(context)
        mine = (answer.process,) if isinstance(answer, Operation) else ()
        return answer, attrs.evolve(self, inner=inner, open=(*self.open, *mine))

    def update(self, context: Context, event: Event) -> Generator:
        """See ``Generator``."""
        after = attrs.evolve(self, inner=self.inner.update(context, event))
        if isinstance(event, Invoke) or event.process not in self.open:
            return after
        still = tuple(process for process in self.open if process != event.process)
        return attrs.evolve(after, open=still, over=self.over or event.type is OpType.OK)


@attrs.frozen
class ProcessLimit:
    """``inner`` for as long as at most ``count`` different processes ran an operation of it: an
    uncertain operation uses one up.
    """

    count: int
    inner: Generator
    seen: frozenset[int] = frozenset()

    def __attrs_post_init__(self) -> None:
        if self.count < 0:
            raise UsageError(f"process limit: expected 0 processes or more, found {self.count}")

    def op(self, context: Context) -> Answer:
        """See ``Generator``."""
        answer, inner = self.inner.op(context)
        if not isinstance(answer, Operation):
            return answer, attrs.evolve(self, inner=inner)
        seen = self.seen | {answer.process}
        if len(seen) > self.count:
            return Wait.EXHAUSTED, self
        return answer, ProcessLimit(self.count, inner, seen)

    def update(self, context: Context, event: Event) -> Generator:
        """See ``Generator``."""
        return attrs.evolve(self, inner=self.inner.update(context, event))


@attrs.frozen
class OnUpdate:
    """``inner``; after every event ``react`` returns the generator that replaces it."""

    react: Callable[[Generator, Context, Event], Generator]
    inner: Generator

    def op(self, context: Context) -> Answer:
        """See ``Generator``."""
        answer, inner = self.inner.op(context)
        return answer, attrs.evolve(self, inner=inner)

    def update(self, context: Context, event: Event) -> Generator:
        """See ``Generator``."""
        inner = self.react(self.inner.update(context, event), context, event)
        return attrs.evolve(self, inner=inner)


def _never_asked(generator: AnyOf) -> tuple[int | None, ...]:
    return (None,) * len(generator.parts)


@attrs.frozen
class AnyOf:
    """The soonest operation of any of ``parts``; exhausted when all are. A part whose operation is
    not due yet waits for its time, and leaves the idle processes to the other parts until then.

    ``asked_ns``: since when each part has had an operation that is still to come. The part is asked
    as of that time until the operation is taken, so that neither the operation nor a time counted
    from the first call of ``op`` moves.
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
        """The soonest of the operations that are due, and its part's place; of several the one
        whose slot is next in turn.
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
    """The time since which the generator that gave ``answer`` has had an operation still to
    come.
    """
    later = isinstance(answer, Operation) and answer.at_ns > context.now_ns
    return context.now_ns if later else None


def _not_yet(answer: Said) -> Said:
    return Later(answer.at_ns) if isinstance(answer, Operation) else answer


@attrs.frozen
class OnSlots:
    """``inner``, run by the slots that ``chosen`` accepts; it sees no others. Jepsen's
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
    """A generator per share of slots: the first share gets the first slots, the next share the next
    ones, and ``rest`` all others. Raises ``UsageError``.
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
