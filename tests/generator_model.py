"""Running a generator without a cluster, against a store that is only a latency model.

The models are those of Jepsen's ``generator.test``: a schedule can be inspected in microseconds.
"""

from __future__ import annotations

import heapq
import random
from collections.abc import Callable

import attrs

from harness.clock import substream
from harness.errors import HarnessBug, UsageError
from harness.generators import Context, Generator, Operation, Wait
from harness.history.records import Complete, Invoke, OpType

MAX_SIMULATED_OPS = 1_000_000  # an endless generator without a time limit ends here, loudly


@attrs.frozen(kw_only=True)
class Reply:
    """How a simulated store answers: with ``type``, ``after_ns`` nanoseconds."""

    type: OpType = OpType.OK
    after_ns: int


Latency = Callable[[Operation, random.Random], Reply]
"""The answer of a modelled store to an operation; all randomness is drawn from the stream."""


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
    process, completions are seen before the next call of ``op``. Ends when the generator is
    exhausted, when it waits although no operation is open, or when ``until_ns`` is reached.
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
        both = tuple(zip(self.processes, self.busy, strict=True))
        return Context(
            now_ns=self.now_ns,
            free=tuple(process for process, busy in both if not busy),
            concurrency=len(self.processes),
            busy=tuple(process for process, busy in both if busy),
        )

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
