"""The display of a running run: its messages are never part of the history."""

from __future__ import annotations

from typing import Protocol

from harness.history.records import OpType


class Progress(Protocol):
    """The observer of a run. Called on the run's loop, once per operation: cheap, never raising,
    never waiting.

    Texts may come from nodes; the display makes them inert (``harness.text.inert``).
    """

    def phase(self, name: str) -> None:
        """The run entered ``name`` (see ``harness.history.records.PhaseMark``)."""

    def completed(self, type: OpType, error: str | None, *, conflict: bool = False) -> None:
        """One operation ended with this type; ``error`` is its code. A ``conflict`` is one that
        gave way to another (``harness.protocols.conflicts``), and no failure.
        """

    def faults(self, active: tuple[str, ...]) -> None:
        """The faults now in force, by their short names; ``()`` when the last was healed."""

    def note(self, text: str) -> None:
        """A message for the person watching."""


class Silent:
    """Discards every message: for tests, and for runs inside other runs."""

    def phase(self, name: str) -> None:
        """See ``Progress``."""

    def completed(self, type: OpType, error: str | None, *, conflict: bool = False) -> None:
        """See ``Progress``."""

    def faults(self, active: tuple[str, ...]) -> None:
        """See ``Progress``."""

    def note(self, text: str) -> None:
        """See ``Progress``."""
