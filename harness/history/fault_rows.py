"""One row a fault, out of the records of its life."""

from __future__ import annotations

from typing import Any

import pyarrow as pa

from harness.history import schema
from harness.records import FaultState, FaultTransition

_TIME_OF = {
    FaultState.PLANNED: "planned_ns",
    FaultState.INJECTING: "injecting_ns",
    FaultState.INJECTED: "injected_ns",
    FaultState.EFFECTIVE: "effective_ns",
    FaultState.HEALING: "healing_ns",
    FaultState.HEALED: "healed_ns",
}
_TEXT_OF = {
    FaultState.EFFECTIVE: "proof",
    FaultState.HEALED: "heal_proof",
    FaultState.SKIPPED: "reason",
    FaultState.UNPROVEN: "reason",
}


class FaultRows:
    """Collects transitions; a run has few enough faults to keep them all."""

    def __init__(self) -> None:
        self._rows: dict[int, dict[str, Any]] = {}

    def add(self, step: FaultTransition) -> None:
        """Take the next transition. The first time of a state counts, the last state stands."""
        row = self._rows.setdefault(step.fault, {"fault": step.fault, "nodes": (), "roles": ()})
        row.update(kind=step.kind, target=step.target, state=step.state.value)
        row["nodes"] = step.nodes or row["nodes"]
        row["roles"] = step.roles or row["roles"]
        if step.state in _TIME_OF:
            row.setdefault(_TIME_OF[step.state], step.at_ns)
        if step.state in _TEXT_OF and step.text:
            column = _TEXT_OF[step.state]
            row[column] = f"{row[column]}; {step.text}" if column in row else step.text

    def table(self) -> pa.Table:
        """The rows, by number of the fault."""
        rows = [self._rows[fault] for fault in sorted(self._rows)]
        return pa.Table.from_pylist(rows, schema=schema.FAULTS)
