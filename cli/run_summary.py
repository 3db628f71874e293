"""One run of a store in a line: what it was, how it ended, and what holds it."""

from __future__ import annotations

from typing import Any

import attrs

from cli.run_state import ON, held_by
from harness.history.manifest import PREFIX, RUNNING, SEALED
from harness.history.run_directory import RunDirectory
from results.store.run_entry import RunEntry, entry_of

_UNJUDGED = {RUNNING: "not sealed", SEALED: "not judged", PREFIX: "not judged", "": "no history"}
_ROW_NAMES = {
    "run": "run",
    "outcome": "outcome",
    "workload": "workload",
    "nodes": "nodes",
    "size_bytes": "size_bytes",
    "begun": "begun",
    "seed": "seed",
    "duration_s": "duration_s",
    "planned_faults": "faults",
    "system": "system",
    "release": "release",
    "commit": "commit",
    "branch": "branch",
    "mode": "mode",
    "provider": "provider",
    "faults": "kinds",
    "tags": "tags",
    "ok": "ok",
    "conflicts": "conflicts",
    "fail": "fail",
    "info": "info",
    "longest_gap_s": "longest_gap_s",
    "findings": "findings",
}
"""The fields of an entry that a list tells, and under which names."""


@attrs.frozen(kw_only=True)
class RunRow:
    """A run as a list shows it: its ``entry``, and ``held``, the reason why it can't be removed
    now, which no index knows.
    """

    entry: RunEntry
    held: str

    @property
    def state(self) -> str:
        """The outcome, or why there is none; and what holds the run."""
        if self.held == ON:  # the outcome says nothing yet
            return ON
        refused = self.entry.refused
        unjudged = f"refused: {refused}" if refused else _UNJUDGED[self.entry.state]
        state = self.entry.outcome or unjudged
        return f"{state}, {self.held}" if self.held else state

    def as_row(self) -> dict[str, Any]:
        """Return the run as ``firedrill runs --json`` prints it."""
        row = {name: getattr(self.entry, field) for field, name in _ROW_NAMES.items()}
        return row | {"state": self.state, "held": self.held}


def listed(run: RunDirectory, *, sized: bool = True) -> RunRow:
    """Return the run for a list; unreadable parts are absent, not raised. As for ``entry_of``, its
    size costs a walk through the directory.
    """
    return RunRow(entry=entry_of(run, sized=sized), held=held_by(run))
