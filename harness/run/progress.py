"""What a run tells whoever watches it: a line of sight, never part of the history."""

from __future__ import annotations

from typing import Protocol

from harness.history.records import OpType


class Progress(Protocol):
    """The watcher of a run. Called on the run's loop, once per operation: cheap, never raising,
    never waiting.

    Texts may come from nodes; whoever shows them makes them inert (``harness.text.inert``).
    """

    def phase(self, name: str) -> None:
        """The run entered ``name`` (see ``harness.history.records.PhaseMark``)."""

    def completed(self, type: OpType, error: str | None) -> None:
        """One operation ended so; ``error`` is its code."""

    def faults(self, active: tuple[str, ...]) -> None:
        """The faults now in force, by their short names; ``()`` when the last was healed."""

    def note(self, text: str) -> None:
        """Something that a person watching should read."""


class Silent:
    """Watches nothing: for tests, and for runs inside other runs."""

    def phase(self, name: str) -> None:
        """See ``Progress``."""

    def completed(self, type: OpType, error: str | None) -> None:
        """See ``Progress``."""

    def faults(self, active: tuple[str, ...]) -> None:
        """See ``Progress``."""

    def note(self, text: str) -> None:
        """See ``Progress``."""
