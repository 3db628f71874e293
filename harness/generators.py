"""Combinators of pure generators, and ``simulate``, which runs one without a cluster.

A generator is a frozen value: asking it twice gives the same answer twice. All draws are keyed by
what is drawn (the n-th arrival, the n-th operation of a slot), never by what else went on.
"""

from __future__ import annotations

import heapq
import random
from bisect import bisect_right
from collections.abc import Callable

import attrs

from harness.clock import NS_PER_S, substream
from harness.errors import HarnessBug, UsageError
from harness.generator import Context, Generator, Operation, Wait
from harness.records import Complete, Invoke, MicroOp, OpType

MAX_SIMULATED_OPS = 1_000_000  # an endless generator without a time limit ends here, loudly


def next_process(context: Context, after_slot: int) -> int:
    """The idle process whose slot follows ``after_slot`` in a circle, so that all take turns."""
    slots = [process % context.concurrency for process in context.free]
    return context.free[bisect_right(slots, after_slot) % len(slots)]


@attrs.frozen
class Nothing:
    """No operation at all."""

    def op(self, context: Context) -> tuple[Operation | Wait, Generator]:
        """See ``Generator``."""
        return Wait.EXHAUSTED, self

    def update(self, context: Context, event: Invoke | Complete) -> Generator:
        """See ``Generator``."""
        return self


@attrs.frozen
class Repeat:
    """The same transaction for ever, by every idle process in turn."""

    ops: tuple[MicroOp, ...]
    last_slot: int = -1

    def op(self, context: Context) -> tuple[Operation | Wait, Generator]:
        """See ``Generator``."""
        process = next_process(context, self.last_slot)
        operation = Operation(process=process, ops=self.ops, at_ns=context.now_ns)
        return operation, Repeat(self.ops, process % context.concurrency)

    def update(self, context: Context, event: Invoke | Complete) -> Generator:
        """See ``Generator``."""
        return self


@attrs.frozen
class Limit:
    """At most ``count`` operations of ``inner``."""

    count: int
    inner: Generator

    def op(self, context: Context) -> tuple[Operation | Wait, Generator]:
        """See ``Generator``."""
        if self.count <= 0:
            return Wait.EXHAUSTED, self
        answer, inner = self.inner.op(context)
        return answer, Limit(self.count - isinstance(answer, Operation), inner)

    def update(self, context: Context, event: Invoke | Complete) -> Generator:
        """See ``Generator``."""
        return Limit(self.count, self.inner.update(context, event))


@attrs.frozen
class TimeLimit:
    """Operations of ``inner`` that are meant to start less than ``limit_ns`` after the first
    question.
    """

    limit_ns: int
    inner: Generator
    until_ns: int | None = None

    def op(self, context: Context) -> tuple[Operation | Wait, Generator]:
        """See ``Generator``."""
        until_ns = context.now_ns + self.limit_ns if self.until_ns is None else self.until_ns
        if context.now_ns >= until_ns:
            return Wait.EXHAUSTED, self
        answer, inner = self.inner.op(context)
        if isinstance(answer, Operation) and answer.at_ns >= until_ns:
            return Wait.EXHAUSTED, self
        return answer, TimeLimit(self.limit_ns, inner, until_ns)

    def update(self, context: Context, event: Invoke | Complete) -> Generator:
        """See ``Generator``."""
        return TimeLimit(self.limit_ns, self.inner.update(context, event), self.until_ns)


@attrs.frozen
class Stagger:
    """``inner`` as an open loop: intended starts are a Poisson process of ``rate_per_s``.

    A store that stalls does not slow the arrivals down: operations that find no idle process start
    late, with the intended start that they had, so that latency counted from there hides nothing.
    Each ``lane`` is a process of its own.
    """

    rate_per_s: float
    seed: int
    inner: Generator
    arrivals: int = 0
    next_ns: int | None = None
    lane: int = 0

    def op(self, context: Context) -> tuple[Operation | Wait, Generator]:
        """See ``Generator``."""
        at_ns = self._gap(0) + context.now_ns if self.next_ns is None else self.next_ns
        answer, inner = self.inner.op(context)
        if not isinstance(answer, Operation):
            return answer, attrs.evolve(self, inner=inner, next_ns=at_ns)
        arrivals = self.arrivals + 1
        next_ns = at_ns + self._gap(arrivals)
        after = attrs.evolve(self, inner=inner, arrivals=arrivals, next_ns=next_ns)
        return attrs.evolve(answer, at_ns=at_ns), after

    def update(self, context: Context, event: Invoke | Complete) -> Generator:
        """See ``Generator``."""
        return attrs.evolve(self, inner=self.inner.update(context, event))

    def _gap(self, arrival: int) -> int:
        lane = (self.lane,) if self.lane else ()
        gap_s = substream(self.seed, "arrivals", *lane, arrival).expovariate(self.rate_per_s)
        return round(gap_s * NS_PER_S)


def paced(generator: Generator, rate_per_s: float | None, seed: int, *, lane: int = 0) -> Generator:
    """``generator`` as an open loop of ``rate_per_s``; ``None`` leaves it a closed loop."""
    return generator if rate_per_s is None else Stagger(rate_per_s, seed, generator, lane=lane)


@attrs.frozen
class Mix:
    """One of ``parts`` for each operation, by weight; a part that is exhausted drops out, and one
    that has nothing now leaves its turn to the others.

    The n-th choice of a slot is the same whatever other slots do.
    """

    parts: tuple[tuple[int, Generator], ...]
    seed: int
    counts: tuple[int, ...] = ()
    last_slot: int = -1

    def op(self, context: Context) -> tuple[Operation | Wait, Generator]:
        """See ``Generator``."""
        if not self.parts:
            return Wait.EXHAUSTED, self
        process = next_process(context, self.last_slot)
        slot = process % context.concurrency
        counts = self.counts or (0,) * context.concurrency
        chosen = self._choice(slot, counts[slot])
        turn = attrs.evolve(context, free=(process,))
        parts: list[tuple[int, Generator] | None] = list(self.parts)
        answer: Operation | Wait = Wait.EXHAUSTED
        for number in (chosen, *(n for n in range(len(parts)) if n != chosen)):
            weight, part = self.parts[number]
            answer, after = part.op(turn)
            parts[number] = None if answer is Wait.EXHAUSTED else (weight, after)
            if isinstance(answer, Operation):
                counts = (*counts[:slot], counts[slot] + 1, *counts[slot + 1 :])
                break
        left = tuple(part for part in parts if part is not None)
        if left and answer is Wait.EXHAUSTED:
            answer = Wait.PENDING
        return answer, Mix(left, self.seed, counts, slot)

    def update(self, context: Context, event: Invoke | Complete) -> Generator:
        """See ``Generator``."""
        parts = tuple((weight, part.update(context, event)) for weight, part in self.parts)
        return attrs.evolve(self, parts=parts)

    def _choice(self, slot: int, count: int) -> int:
        weights = [weight for weight, _ in self.parts]
        stream = substream(self.seed, "mix", slot, count)
        return stream.choices(range(len(weights)), weights)[0]


@attrs.frozen
class Phases:
    """``parts`` one after the other; each begins when no operation of the one before is open."""

    parts: tuple[Generator, ...]

    def op(self, context: Context) -> tuple[Operation | Wait, Generator]:
        """See ``Generator``."""
        if not self.parts:
            return Wait.EXHAUSTED, self
        answer, first = self.parts[0].op(context)
        if answer is not Wait.EXHAUSTED:
            return answer, Phases((first, *self.parts[1:]))
        if len(self.parts) > 1 and len(context.free) < context.concurrency:
            return Wait.PENDING, self
        return Phases(self.parts[1:]).op(context)

    def update(self, context: Context, event: Invoke | Complete) -> Generator:
        """See ``Generator``."""
        if not self.parts:
            return self
        return Phases((self.parts[0].update(context, event), *self.parts[1:]))


@attrs.frozen
class UntilOk:
    """Each of ``transactions`` once, and again, by another process, until it was ok."""

    transactions: tuple[tuple[MicroOp, ...], ...]
    begun: int = 0
    again: tuple[tuple[MicroOp, ...], ...] = ()
    open: tuple[tuple[int, tuple[MicroOp, ...]], ...] = ()
    last_slot: int = -1

    def op(self, context: Context) -> tuple[Operation | Wait, Generator]:
        """See ``Generator``."""
        fresh = self.begun < len(self.transactions)
        if not fresh and not self.again:
            return (Wait.PENDING if self.open else Wait.EXHAUSTED), self
        ops = self.transactions[self.begun] if fresh else self.again[0]
        process = next_process(context, self.last_slot)
        after = attrs.evolve(
            self,
            begun=self.begun + fresh,
            again=self.again if fresh else self.again[1:],
            open=(*self.open, (process, ops)),
            last_slot=process % context.concurrency,
        )
        return Operation(process=process, ops=ops, at_ns=context.now_ns), after

    def update(self, context: Context, event: Invoke | Complete) -> Generator:
        """See ``Generator``."""
        mine = [ops for process, ops in self.open if process == event.process]
        if isinstance(event, Invoke) or not mine:
            return self
        still = tuple(entry for entry in self.open if entry[0] != event.process)
        again = self.again if event.type is OpType.OK else (*self.again, *mine)
        return attrs.evolve(self, open=still, again=again)


@attrs.frozen(kw_only=True)
class Reply:
    """How a simulated store answers: with ``type``, ``after_ns`` nanoseconds."""

    type: OpType = OpType.OK
    after_ns: int


Latency = Callable[[Operation, random.Random], Reply]


def simulate(
    generator: Generator,
    latency: Latency,
    *,
    seed: int,
    concurrency: int,
    until_ns: int | None = None,
) -> list[Invoke | Complete]:
    """The history that ``generator`` makes against a store that is only a latency model.

    Follows the driver's rules: an operation is held until its time has come, an ``info`` ends its
    process, completions are seen before the next question. Ends when the generator is exhausted,
    or waits for nothing, or ``until_ns`` is reached.
    """
    return _Simulation(generator, latency, seed, concurrency).run(until_ns)


class _Simulation:
    def __init__(self, generator: Generator, latency: Latency, seed: int, concurrency: int) -> None:
        if concurrency < 1:
            raise UsageError(f"concurrency: expected at least 1 (got {concurrency})")
        self.generator, self.latency, self.seed = generator, latency, seed
        self.processes = list(range(concurrency))
        self.busy = [False] * concurrency
        self.now_ns = 0
        self.events: list[Invoke | Complete] = []
        self.due: list[tuple[int, int, OpType]] = []  # (time, index of the invoke, type)

    def run(self, until_ns: int | None) -> list[Invoke | Complete]:
        """See ``simulate``."""
        while until_ns is None or self.now_ns < until_ns:
            context = self._context()
            if not context.free:
                self._complete()
                continue
            answer, self.generator = self.generator.op(context)
            if isinstance(answer, Operation):
                if until_ns is not None and answer.at_ns >= until_ns:
                    break
                while self.due and self.due[0][0] <= answer.at_ns:
                    self._complete()
                self.now_ns = max(self.now_ns, answer.at_ns)
                self._invoke(answer)
            elif answer is Wait.EXHAUSTED or not self.due:
                break
            else:
                self._complete()
        while self.due:
            self._complete()
        return self.events

    def _context(self) -> Context:
        free = tuple(p for p, busy in zip(self.processes, self.busy, strict=True) if not busy)
        return Context(now_ns=self.now_ns, free=free, concurrency=len(self.processes))

    def _invoke(self, operation: Operation) -> None:
        if operation.process not in self._context().free:
            raise HarnessBug(f"generator chose process {operation.process}, which is not idle")
        if len(self.events) >= 2 * MAX_SIMULATED_OPS:
            raise UsageError(f"simulate: more than {MAX_SIMULATED_OPS} operations; give a limit")
        index = len(self.events)
        invoke = Invoke(
            index=index,
            process=operation.process,
            kind=operation.kind,
            node="simulated",
            intended_ns=operation.at_ns,
            at_ns=self.now_ns,
            wall_ns=self.now_ns,
            ops=operation.ops,
        )
        self.events.append(invoke)
        self.busy[operation.process % len(self.busy)] = True
        reply = self.latency(operation, substream(self.seed, "latency", index))
        heapq.heappush(self.due, (self.now_ns + reply.after_ns, index, reply.type))
        self.generator = self.generator.update(self._context(), invoke)

    def _complete(self) -> None:
        at_ns, index, type_ = heapq.heappop(self.due)
        invoke = self.events[index]
        self.now_ns = max(self.now_ns, at_ns)
        slot = invoke.process % len(self.busy)
        self.busy[slot] = False
        if type_ is OpType.INFO:
            self.processes[slot] += len(self.processes)
        complete = Complete(
            index=len(self.events),
            invoke=index,
            process=invoke.process,
            type=type_,
            at_ns=self.now_ns,
            ops=invoke.ops,
        )
        self.events.append(complete)
        self.generator = self.generator.update(self._context(), complete)
