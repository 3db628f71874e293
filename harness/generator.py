"""Pure generators: what the clients do next, as immutable values.

``op`` and ``update`` never change their receiver, draw randomness only from ``substream`` keyed by
(seed, purpose, slot), and never look at a clock but ``context.now_ns``; so a schedule can be run
without a cluster. What is made for every operation is a ``msgspec.Struct``: it costs a tenth of the
time of a frozen ``attrs`` class.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Sequence
from typing import Protocol

import msgspec

from harness.client import READ_WRITE
from harness.records import Complete, Invoke, MicroOp


class Context(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """What a generator may know when it is asked: the time, and who is idle.

    ``free`` holds idle processes in ascending slot order; ``process % concurrency`` is the slot.
    ``busy`` holds those with an open operation, in no order. A process that is neither is about to
    connect again. ``slots`` are those that the generator may use, ascending: not all of the run
    where it only has a part of them.
    """

    now_ns: int
    free: tuple[int, ...]
    concurrency: int
    slots: tuple[int, ...]
    busy: tuple[int, ...] = ()

    def only(self, chosen: Callable[[int], bool]) -> Context:
        """What there is to know where only the slots that ``chosen`` accepts exist."""
        count = self.concurrency
        return Context(
            now_ns=self.now_ns,
            free=tuple([process for process in self.free if chosen(process % count)]),
            concurrency=count,
            busy=tuple([process for process in self.busy if chosen(process % count)]),
            slots=tuple([slot for slot in self.slots if chosen(slot)]),
        )


class Operation(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """A transaction to run on ``process``, not before ``at_ns`` (its intended start)."""

    process: int
    ops: tuple[MicroOp, ...]
    at_ns: int
    kind: str = READ_WRITE


class Later(msgspec.Struct, frozen=True, gc=False):
    """Nothing before ``at_ns``, unless a completion brings something sooner: ask again at
    either.
    """

    at_ns: int


class Wait(enum.Enum):
    """The other answers of ``op`` that are no operation."""

    PENDING = "pending"  # nothing now; ask again after the next completion
    EXHAUSTED = "exhausted"  # nothing ever again


class Generator(Protocol):
    """A value that says what to do next."""

    def op(self, context: Context) -> Answer:
        """The next operation for one of ``context.free`` (never empty), and the generator after it.

        The driver uses every answer: an operation that is not due yet is held, its process with
        it, and nothing else is asked for until it started; so ``at_ns`` should not go back. Where
        somebody else may have something sooner the answer is ``Later``.
        """

    def update(self, context: Context, event: Invoke | Complete) -> Generator:
        """The generator after an invocation or completion was recorded."""


Said = Operation | Later | Wait
Answer = tuple[Said, Generator]
Event = Invoke | Complete


def soonest(answers: Sequence[Said]) -> Said:
    """What several that were asked say together: the operation, if the last one gave one, or when
    there may be one; exhausted when all are.
    """
    if answers and isinstance(answers[-1], Operation):
        return answers[-1]
    times = [answer.at_ns for answer in answers if isinstance(answer, Later)]
    if times:
        return Later(min(times))
    return Wait.EXHAUSTED if all(a is Wait.EXHAUSTED for a in answers) else Wait.PENDING


def replaced(
    parts: tuple[Generator, ...], place: int, generator: Generator
) -> tuple[Generator, ...]:
    """``parts`` with ``generator`` at ``place``."""
    return (*parts[:place], generator, *parts[place + 1 :])


def updated(parts: tuple[Generator, ...], context: Context, event: Event) -> tuple[Generator, ...]:
    """Each of ``parts`` after ``event``."""
    return tuple(part.update(context, event) for part in parts)
