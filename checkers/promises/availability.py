"""The longest times without a successful operation, fault by fault, and each fault's effects;
decides nothing.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import attrs
import numpy as np
import pyarrow as pa

from checkers.engine.arrays import OK, TYPES, Ints, codes, ints
from checkers.explain.attribution import FOREVER_NS, windows
from checkers.explain.fault_effects import Effect, effects, summary
from checkers.promises.liveness import STEP_NS, TRIES
from harness.protocols.checker import Kernel, Lookup, Part, Setting, Tables
from harness.protocols.verdict import (
    Availability,
    FaultWindow,
    PartitionGaps,
    PartitionWindow,
    Window,
)


@attrs.frozen
class GapChecker:
    """Gaps between ok completions, overall and in every fault's window."""

    name: str = "availability"
    kernels: tuple[Kernel, ...] = ()

    def judge(self, tables: Tables, setting: Setting, lookup: Lookup) -> Part:
        """Return ``availability`` with a window per injected fault; where partitions are known
        also ``partitions``.
        """
        table = tables["transactions"]
        ok = codes(table, "type", TYPES) == OK
        done = np.sort(ints(table, "complete_ns")[ok])
        start_ns, end_ns = _drive(setting, ints(table, "invoke_ns"), done)
        found = effects(table, tables["faults"], tables["events"])
        faults = windows(tables["faults"])
        rows = zip(faults, found, strict=True)
        last_ns = dict(setting.phases).get("heal", FOREVER_NS)  # a prefix has no mark of its end
        gap = _gap(done, start_ns, end_ns, last_ns)
        return Part(
            availability=Availability(
                drive=Window(start_ns=start_ns, end_ns=end_ns, **gap),
                windows=tuple(_window(row, done, last_ns, effect) for row, effect in rows),
                effects=summary(found),
                partitions=partition_gaps(tables[TRIES], faults) if TRIES in tables else None,
            )
        )


def _drive(setting: Setting, invoked: Ints, done: Ints) -> tuple[int, int]:
    """Return the begin and end of the drive phase, by its mark or by the operations themselves."""
    marks = dict(setting.phases)
    first = int(invoked.min()) if len(invoked) else 0
    last = int(done[-1]) if len(done) else first
    return marks.get("drive", first), marks.get("heal", last)


def _gap(done: Ints, start_ns: int, end_ns: int, last_ns: int) -> dict[str, int]:
    """Return the longest time without an ok completion that touches [start, end], and the number of
    ok completions; a gap ends at the first completion, even when that lies beyond the end, but at
    the latest at ``last_ns``, after which no client asks.
    """
    low, high = np.searchsorted(done, [start_ns, end_ns], side="right")
    inner = done[low:high]
    closing = done[high] if high < len(done) else max(end_ns, start_ns)
    # What began after the drive phase has no gap; no gap is negative.
    points = np.minimum(np.concatenate([[start_ns], inner, [closing]]), max(last_ns, start_ns))
    widths = np.diff(points)
    at = int(np.argmax(widths))
    return {
        "ok": int(high - low),
        "longest_gap_ns": int(widths[at]),
        "longest_gap_at_ns": int(points[at]),
    }


def _window(row: dict[str, Any], done: Ints, drive_end_ns: int, effect: Effect) -> FaultWindow:
    last_ns = int(done[-1]) if len(done) else row["start_ns"]
    end_ns = max(last_ns, row["start_ns"]) if row["end_ns"] is None else row["end_ns"]
    healed = None if row["end_ns"] is None else _first_after(done, row["end_ns"])
    return FaultWindow(
        fault=row["fault"],
        kind=row["kind"],
        target=row["target"],
        nodes=None if row["nodes"] is None else tuple(row["nodes"]),
        roles=None if row["roles"] is None else tuple(row["roles"]),
        start_ns=row["start_ns"],
        end_ns=row["end_ns"],
        **_gap(done, row["start_ns"], end_ns, drive_end_ns),
        first_ok_after_inject_ns=_first_after(done, row["start_ns"]),
        first_ok_after_heal_ns=healed,
        open_at_injection=effect.open,
        takeovers=effect.takeovers,
    )


def _first_after(done: Ints, at_ns: int) -> int | None:
    """Return the time from ``at_ns`` to the first ok completion; ``None`` where there is none."""
    row = int(np.searchsorted(done, at_ns, side="right"))
    return int(done[row]) - at_ns if row < len(done) else None


CHECKER = GapChecker()


PARTITIONS_MAX = 64  # a table of more is too wide to read


def partition_gaps(tries: pa.Table, found: Sequence[Mapping[str, Any]]) -> PartitionGaps | None:
    """Return for each fault of ``found`` (``fault``, ``kind``, ``start_ns``, ``end_ns``) and each
    partition the longest time within without an acknowledged write. Times are counted in steps of
    ``STEP_NS``. ``None`` where partitions are not known, or too many.
    """
    partition = ints(tries, "partition")
    known = np.unique(partition)
    if not len(known) or len(known) > PARTITIONS_MAX or not found:
        return None
    served = np.asarray(tries.column("ok")) & np.asarray(tries.column("writes"))
    ended = ints(tries, "ended") * STEP_NS
    done = [np.unique(ended[served & (partition == number)]) for number in known.tolist()]
    return PartitionGaps(
        partition=tuple(known.tolist()),
        windows=tuple(
            PartitionWindow(
                fault=window["fault"],
                kind=window["kind"],
                longest_gap_ns=tuple(
                    _longest(times, window["start_ns"], window["end_ns"]) for times in done
                ),
            )
            for window in found
        ),
    )


def _longest(done: Ints, start_ns: int, end_ns: int | None) -> int | None:
    """Return the longest time without one of ``done`` that touches the window: the gap begins
    before or in it, and may end after it. ``None`` where no completion precedes it or none follows
    it.
    """
    last_ns = int(done[-1]) if len(done) else start_ns
    low = int(np.searchsorted(done, start_ns, side="right")) - 1
    high = int(np.searchsorted(done, last_ns if end_ns is None else end_ns, side="left"))
    if low < 0 or high >= len(done):
        return None
    inner = done[low : high + 1]
    return int(np.max(np.diff(inner))) if len(inner) > 1 else 0
