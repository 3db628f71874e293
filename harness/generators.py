"""Pure generators: the next operations of clients, as immutable values.

``op`` and ``update`` never change their receiver, draw randomness only from ``substream`` keyed by
(seed, purpose, slot), and read no clock but ``context.now_ns``; so a schedule can be run without a
cluster. A value that is made for every operation is a ``msgspec.Struct``: it costs a tenth of the
time of a frozen ``attrs`` class.
"""

from __future__ import annotations

import enum
import math
from bisect import bisect_right
from typing import Protocol

import attrs
import msgspec
from msgspec.structs import replace

from harness.clock import NS_PER_S, substream
from harness.errors import UsageError
from harness.history.records import Complete, Invoke, MicroOp, OpType
from harness.protocols.client import READ_WRITE


class Context(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """The state that a generator may use when it is asked: the time, and the idle processes.

    ``free`` holds idle processes in ascending slot order; ``process % concurrency`` is the slot.
    ``busy`` holds those with an open operation, in no order. A process in neither is about to
    connect again.
    """

    now_ns: int
    free: tuple[int, ...]
    concurrency: int
    busy: tuple[int, ...] = ()


class Operation(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """A transaction to run on ``process``, not before ``at_ns`` (its intended start)."""

    process: int
    ops: tuple[MicroOp, ...]
    at_ns: int
    kind: str = READ_WRITE


class Wait(enum.Enum):
    """The answers of ``op`` that are no operation."""

    PENDING = "pending"  # nothing now; ask again after the next completion
    EXHAUSTED = "exhausted"  # nothing ever again


class Generator(Protocol):
    """An immutable value that chooses the next operation."""

    def op(self, context: Context) -> Answer:
        """The next operation for one of ``context.free`` (never empty), and the generator after it.

        The driver uses every answer: it holds an operation that is not due yet, together with its
        process, and asks for nothing else until that operation started; so ``at_ns`` should not go
        back.
        """

    def update(self, context: Context, event: Invoke | Complete) -> Generator:
        """The generator after an invocation or completion was recorded."""


Answer = tuple[Operation | Wait, Generator]


def next_process(context: Context, after_slot: int) -> int:
    """The idle process whose slot follows ``after_slot`` in a circle, so that all take turns."""
    free, count = context.free, context.concurrency
    return free[bisect_right(free, after_slot, key=lambda process: process % count) % len(free)]


@attrs.frozen
class Nothing:
    """No operation at all."""

    def op(self, context: Context) -> Answer:
        """See ``Generator``."""
        return Wait.EXHAUSTED, self

    def update(self, context: Context, event: Invoke | Complete) -> Generator:
        """See ``Generator``."""
        return self


@attrs.frozen
class Repeat:
    """The same transaction without end, by every idle process in turn."""

    ops: tuple[MicroOp, ...]
    last_slot: int = -1

    def op(self, context: Context) -> Answer:
        """See ``Generator``."""
        process = next_process(context, self.last_slot)
        operation = Operation(process=process, ops=self.ops, at_ns=context.now_ns)
        return operation, Repeat(self.ops, process % context.concurrency)

    def update(self, context: Context, event: Invoke | Complete) -> Generator:
        """See ``Generator``."""
        return self


class Limit(msgspec.Struct, frozen=True):
    """At most ``count`` operations of ``inner``."""

    count: int
    inner: Generator

    def __post_init__(self) -> None:
        if self.count < 0:
            raise UsageError(f"limit: expected 0 operations or more, found {self.count}")

    def op(self, context: Context) -> Answer:
        """See ``Generator``."""
        if self.count <= 0:
            return Wait.EXHAUSTED, self
        answer, inner = self.inner.op(context)
        # A wait takes nothing from the count.
        return answer, Limit(self.count - isinstance(answer, Operation), inner)

    def update(self, context: Context, event: Invoke | Complete) -> Generator:
        """See ``Generator``."""
        inner = self.inner.update(context, event)
        # Most generators do not look at events: without a change no value is made for each of them.
        return self if inner is self.inner else Limit(self.count, inner)


class Stagger(msgspec.Struct, frozen=True):
    """``inner`` as an open loop: intended starts are a Poisson process of ``rate_per_s``.

    A store that stalls does not slow the arrivals down: operations that find no idle process start
    late and keep their intended start, so that a latency measured from there includes the stall (no
    coordinated omission). Each ``lane`` is an independent Poisson process.
    """

    rate_per_s: float
    seed: int
    inner: Generator
    arrivals: int = 0
    next_ns: int | None = None
    lane: int = 0

    def __post_init__(self) -> None:
        if not 0 < self.rate_per_s < math.inf:
            raise UsageError(f"stagger: expected a rate above 0, found {self.rate_per_s:g}")

    def op(self, context: Context) -> Answer:
        """See ``Generator``."""
        at_ns = self._gap(0) + context.now_ns if self.next_ns is None else self.next_ns
        answer, inner = self.inner.op(context)
        if not isinstance(answer, Operation):
            # The arrival stays due: its operation starts late, and its latency contains the wait.
            return answer, replace(self, inner=inner, next_ns=at_ns)
        arrivals = self.arrivals + 1
        # From when this one was due, not from now: a store that is slow delays no arrival.
        next_ns = at_ns + self._gap(arrivals)
        after = replace(self, inner=inner, arrivals=arrivals, next_ns=next_ns)
        return replace(answer, at_ns=at_ns), after

    def update(self, context: Context, event: Invoke | Complete) -> Generator:
        """See ``Generator``."""
        inner = self.inner.update(context, event)
        return self if inner is self.inner else replace(self, inner=inner)

    def _gap(self, arrival: int) -> int:
        # Lane 0 is not part of the key: a seed keeps the arrivals that it has with one driver.
        lane = (self.lane,) if self.lane else ()
        # Keyed by the arrival: the times are fixed before the store's answers are.
        gap_s = substream(self.seed, "arrivals", *lane, arrival).expovariate(self.rate_per_s)
        return round(gap_s * NS_PER_S)


def paced(generator: Generator, rate_per_s: float | None, seed: int, *, lane: int = 0) -> Generator:
    """``generator`` as an open loop of ``rate_per_s``; ``None`` leaves it a closed loop."""
    return generator if rate_per_s is None else Stagger(rate_per_s, seed, generator, lane=lane)


@attrs.frozen
class Mix:
    """One of ``parts`` for each operation, by weight; an exhausted part drops out, and a part
    without an operation now leaves its turn to the others.

    The n-th choice of a slot does not depend on the operations of other slots.
    """

    parts: tuple[tuple[int, Generator], ...]
    seed: int
    counts: tuple[int, ...] = ()
    last_slot: int = -1

    def __attrs_post_init__(self) -> None:
        # ``counts`` tells a mix under way, one of which is made for each answer, from the author's.
        if not self.counts and any(weight <= 0 for weight, _ in self.parts):
            raise UsageError(f"mix: expected weights above 0, found {[w for w, _ in self.parts]}")

    def op(self, context: Context) -> Answer:
        """See ``Generator``."""
        if not self.parts:
            return Wait.EXHAUSTED, self
        process = next_process(context, self.last_slot)
        slot = process % context.concurrency
        counts = self.counts or (0,) * context.concurrency
        chosen = self._choice(slot, counts[slot])
        # Asked for one process only, so that whichever part answers, the turn is the same slot's.
        turn = replace(context, free=(process,))
        parts: list[tuple[int, Generator] | None] = list(self.parts)
        for number in (chosen, *(n for n in range(len(parts)) if n != chosen)):
            weight, part = self.parts[number]
            answer, after = part.op(turn)
            parts[number] = None if answer is Wait.EXHAUSTED else (weight, after)
            if isinstance(answer, Operation):
                # Only an operation uses the choice up: a slot whose parts all wait has it again.
                counts = (*counts[:slot], counts[slot] + 1, *counts[slot + 1 :])
                break
        left = tuple(part for part in parts if part is not None)
        if not isinstance(answer, Operation):
            # Not the answer of the part that was asked last.
            answer = Wait.PENDING if left else Wait.EXHAUSTED
        return answer, Mix(left, self.seed, counts, slot)

    def update(self, context: Context, event: Invoke | Complete) -> Generator:
        """See ``Generator``."""
        parts = tuple((weight, part.update(context, event)) for weight, part in self.parts)
        return attrs.evolve(self, parts=parts)

    def _choice(self, slot: int, count: int) -> int:
        weights = [weight for weight, _ in self.parts]
        # A stream a choice, not a slot: a value keeps no state that a draw would change.
        stream = substream(self.seed, "mix", slot, count)
        return stream.choices(range(len(weights)), weights)[0]


class Phases(msgspec.Struct, frozen=True):
    """``parts`` one after the other; each begins when no operation of the part before is open."""

    parts: tuple[Generator, ...]

    def op(self, context: Context) -> Answer:
        """See ``Generator``."""
        if not self.parts:
            return Wait.EXHAUSTED, self
        answer, first = self.parts[0].op(context)
        if answer is not Wait.EXHAUSTED:
            return answer, Phases((first, *self.parts[1:]))
        # Behind the last phase nothing waits: it may end while its operations are open.
        if len(self.parts) > 1 and context.busy:
            return Wait.PENDING, self
        return Phases(self.parts[1:]).op(context)

    def update(self, context: Context, event: Invoke | Complete) -> Generator:
        """See ``Generator``."""
        if not self.parts:
            return self
        first = self.parts[0].update(context, event)
        return self if first is self.parts[0] else Phases((first, *self.parts[1:]))


HASTY_REPEATS = 2000
REPEAT_PAUSE_NS = 20_000_000


@attrs.frozen
class UntilOk:
    """Runs each of ``transactions``, and repeats it on another process until it was ok. Behind
    ``HASTY_REPEATS`` it pauses before each: a deadline that no answer can keep would be missed a
    hundred thousand times.
    """

    transactions: tuple[tuple[MicroOp, ...], ...]
    begun: int = 0
    again: tuple[tuple[MicroOp, ...], ...] = ()
    open: tuple[tuple[int, tuple[MicroOp, ...]], ...] = ()
    last_slot: int = -1
    repeats: int = 0
    last_ns: int = 0

    def op(self, context: Context) -> Answer:
        """See ``Generator``."""
        fresh = self.begun < len(self.transactions)
        if not fresh and not self.again:
            return (Wait.PENDING if self.open else Wait.EXHAUSTED), self
        # Repetitions last: a transaction that keeps failing must not keep others from their turn.
        ops = self.transactions[self.begun] if fresh else self.again[0]
        process = next_process(context, self.last_slot)
        hasty = fresh or self.repeats < HASTY_REPEATS
        at_ns = context.now_ns if hasty else max(context.now_ns, self.last_ns + REPEAT_PAUSE_NS)
        after = attrs.evolve(
            self,
            begun=self.begun + fresh,
            again=self.again if fresh else self.again[1:],
            open=(*self.open, (process, ops)),
            last_slot=process % context.concurrency,
            repeats=self.repeats + (not fresh),
            last_ns=at_ns,
        )
        return Operation(process=process, ops=ops, at_ns=at_ns), after

    def update(self, context: Context, event: Invoke | Complete) -> Generator:
        """See ``Generator``."""
        # By the process alone: it has at most one operation open.
        mine = [ops for process, ops in self.open if process == event.process]
        if isinstance(event, Invoke) or not mine:
            return self
        still = tuple(entry for entry in self.open if entry[0] != event.process)
        again = self.again if event.type is OpType.OK else (*self.again, *mine)
        return attrs.evolve(self, open=still, again=again)
