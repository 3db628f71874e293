"""Counts of how often each kind of fault hit each role, to show what a green run did not try;
decides nothing.

Roles are those that the targets held when they were resolved, just before the injection; only
faults that were proven effective count. The cells are all kinds that were possible where the run
took place and take nodes as targets, by the roles of ``harness.protocols.roles``.
"""

from __future__ import annotations

import attrs
import pyarrow as pa

from harness.protocols import verdict
from harness.protocols.checker import Kernel, Lookup, Part, Tables
from harness.protocols.roles import COVERED, cell_name, classes, parsed
from harness.protocols.setting import Setting


@attrs.frozen
class Coverage:
    """``coverage``: the cells, and the names of the empty ones."""

    name: str = "coverage"
    kernels: tuple[Kernel, ...] = ()

    def judge(self, tables: Tables, setting: Setting, lookup: Lookup) -> Part:
        """Return an empty part where the manifest records no possible kinds and no fault is
        recorded either.
        """
        kinds = tuple(kind.name for kind in setting.fault_kinds if kind.of_nodes)
        cells = covered(tables["faults"], kinds)
        if not cells:
            return Part()
        empty = [
            cell_name(kind, role)
            for kind, row in cells.items()
            for role, count in row.items()
            if not count
        ]
        hit = sum(1 for row in cells.values() for count in row.values() if count)
        found = verdict.Coverage(cells=cells, hit=hit, of=hit + len(empty), empty=tuple(empty))
        return Part(coverage=found)


def covered(faults: pa.Table, kinds: tuple[str, ...]) -> dict[str, dict[str, int]]:
    """Return {kind: {role: effective faults}}; a fault counts once in each role that its targets
    held.
    """
    cells = {kind: dict.fromkeys(COVERED, 0) for kind in kinds}
    for row in faults.to_pylist():
        # Without possible kinds in the manifest (an older run) the recorded faults make the cells.
        if row["effective_ns"] is None or (kinds and row["kind"] not in cells):
            continue
        counts = cells.setdefault(row["kind"], dict.fromkeys(COVERED, 0))
        for role in classes(parsed(row["roles"])):
            counts[role] += 1
    return dict(sorted(cells.items()))


CHECKER = Coverage()
