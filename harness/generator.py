"""Pure generators: what the clients do next, as immutable values.

``op`` and ``update`` never change their receiver, draw randomness only from ``substream`` keyed by
(seed, purpose, slot), and never look at a clock but ``context.now_ns``; so a schedule can be run
without a cluster.
"""

from __future__ import annotations

import enum
from typing import Protocol

import attrs

from harness.client import READ_WRITE
from harness.records import Complete, Invoke, MicroOp


@attrs.frozen(kw_only=True)
class Context:
    """What a generator may know when it is asked: the time, and who is idle.

    ``free`` holds idle processes in ascending slot order; ``process % concurrency`` is the slot.
    """

    now_ns: int
    free: tuple[int, ...]
    concurrency: int


@attrs.frozen(kw_only=True)
class Operation:
    """A transaction to run on ``process``, not before ``at_ns`` (its intended start)."""

    process: int
    ops: tuple[MicroOp, ...]
    at_ns: int
    kind: str = READ_WRITE


class Wait(enum.Enum):
    """Answers of ``op`` that are no operation."""

    PENDING = "pending"  # nothing now; ask again after the next completion
    EXHAUSTED = "exhausted"  # nothing ever again


class Generator(Protocol):
    """A value that says what to do next."""

    def op(self, context: Context) -> tuple[Operation | Wait, Generator]:
        """The next operation for one of ``context.free`` (never empty), and the generator after it.

        Every answer is used: an operation that is not due yet is held, its process with it, and
        nothing else is asked for until it started; so ``at_ns`` should not go back.
        """

    def update(self, context: Context, event: Invoke | Complete) -> Generator:
        """The generator after an invocation or completion was recorded."""
