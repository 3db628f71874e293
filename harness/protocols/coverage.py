"""Coverage of a simulated run: which events came to a node in which state, under which faults.

A search over many runs keeps those that reached something new. What counts as an event, and which
states a node has, only the store knows: it declares a ``StateReader``. A provider that sees every
message and moment is a ``RecordsCoverage``.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol, runtime_checkable

Features = frozenset[str]
"""What one run reached: each is an event, the state of the node that it came to, and a fault in
force, as one text. Equal texts are the same coverage, in any run and any process."""


class StateReader(Protocol):
    """A store's own part. States and events are short texts of a small vocabulary: a text that
    holds a number or a name makes every run reach something new.
    """

    def received(self, node: str, payload: bytes) -> Iterable[tuple[str, str]]:
        """The events of a message between nodes that comes to ``node``, each with the state of
        what it is meant for there.
        """

    def state(self, node: str, partition: int | None) -> str:
        """The state of ``partition`` on ``node``; without one, of the node as a whole."""


class CoverageSink(Protocol):
    """Takes in what happens to nodes."""

    def came(self, event: str, state: str, node: str) -> None:
        """``event`` came to ``node``, in ``state``."""

    def strike(self, state_of: StateOf) -> None:
        """From now on ``state_of`` tells the state of a node that a fault strikes."""


class StateOf(Protocol):
    """Tells the state of a node."""

    def __call__(self, node: str) -> str:
        """The state of ``node`` now."""


@runtime_checkable
class RecordsCoverage(Protocol):
    """A ``Provider`` that tells what its nodes come to."""

    def cover(self, sink: CoverageSink) -> None:
        """Tell ``sink`` from now on; before ``provision`` only."""
