"""How long the store served nobody, fault by fault, and what each fault met; decides nothing."""

from __future__ import annotations

from typing import Any

import attrs
import numpy as np

from checkers.attribution import windows
from checkers.columns import OK, TYPES, Ints, codes, ints
from checkers.fault_effects import effects, summary
from checkers.kernel import Kernel, Lookup, Part, Setting, Tables
from checkers.liveness import TRIES
from checkers.partition_gaps import partition_gaps


@attrs.frozen
class Availability:
    """Gaps between ok completions, overall and in every fault's window."""

    name: str = "availability"
    kernels: tuple[Kernel, ...] = ()

    def judge(self, tables: Tables, setting: Setting, lookup: Lookup) -> Part:
        """``availability`` with ``drive`` and one entry of ``windows`` per injected fault; where
        partitions are known also ``partitions``.
        """
        table = tables["transactions"]
        ok = codes(table, "type", TYPES) == OK
        done = np.sort(ints(table, "complete_ns")[ok])
        start_ns, end_ns = _drive(setting, ints(table, "invoke_ns"), done)
        found = effects(table, tables["faults"], tables["events"])
        rows = zip(windows(tables["faults"]), found, strict=True)
        return Part(
            availability={
                "drive": {"start_ns": start_ns, "end_ns": end_ns} | _gap(done, start_ns, end_ns),
                "windows": [
                    _window(row, done)
                    | {"open_at_injection": effect.open, "takeovers": list(effect.takeovers)}
                    for row, effect in rows
                ],
            }
            | ({"effects": summary(found)} if found else {})
            | (partition_gaps(tables[TRIES], windows(tables["faults"])) if TRIES in tables else {})
        )


def _drive(setting: Setting, invoked: Ints, done: Ints) -> tuple[int, int]:
    """When the drive phase began and ended, by its mark or by the operations themselves."""
    marks = dict(setting.phases)
    first = int(invoked.min()) if len(invoked) else 0
    last = int(done[-1]) if len(done) else first
    return marks.get("drive", first), marks.get("heal", last)


def _gap(done: Ints, start_ns: int, end_ns: int) -> dict[str, int]:
    """The longest time without an ok completion that touches [start, end], and how many there
    were; a gap ends at the first completion, even when that lies beyond the end.
    """
    low, high = np.searchsorted(done, [start_ns, end_ns], side="right")
    inner = done[low:high]
    closing = done[high : high + 1] if high < len(done) else np.asarray([max(end_ns, start_ns)])
    points = np.concatenate([[start_ns], inner, closing])
    widths = np.diff(points)
    at = int(np.argmax(widths))
    return {
        "ok": int(high - low),
        "longest_gap_ns": int(widths[at]),
        "longest_gap_at_ns": int(points[at]),
    }


def _window(row: dict[str, Any], done: Ints) -> dict[str, Any]:
    last_ns = int(done[-1]) if len(done) else row["start_ns"]
    end_ns = max(last_ns, row["start_ns"]) if row["end_ns"] is None else row["end_ns"]
    healed = None if row["end_ns"] is None else _first_after(done, row["end_ns"])
    return (
        {name: row[name] for name in ("fault", "kind", "target", "nodes", "roles")}
        | {"start_ns": row["start_ns"], "end_ns": row["end_ns"]}
        | _gap(done, row["start_ns"], end_ns)
        | {
            "first_ok_after_inject_ns": _first_after(done, row["start_ns"]),
            "first_ok_after_heal_ns": healed,
        }
    )


def _first_after(done: Ints, at_ns: int) -> int | None:
    """How long after ``at_ns`` the first ok completion came; ``None`` where none did."""
    row = int(np.searchsorted(done, at_ns, side="right"))
    return int(done[row]) - at_ns if row < len(done) else None


CHECKER = Availability()
