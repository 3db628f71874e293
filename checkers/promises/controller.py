"""Whether the controller kept up: an overloaded controller measures its own delays as the store's.

A loop that wakes up late times operations out, injects faults late and reports gaps that were its
own. Violations are proven by the order of the records, so they stand; all else is in doubt.
"""

from __future__ import annotations

from typing import Any

import attrs
import numpy as np
import pyarrow as pa

from checkers.engine.arrays import Ints, ints
from harness.outcome import Outcome
from harness.protocols.checker import Kernel, Lookup, Part, Setting, Tables
from harness.text import seconds

# One stall of this length exceeds a failover of a store: the run shows nothing about that time.
STALL_NS = 2_000_000_000
LATE_NS = 250_000_000
# The share of time in seconds with such a delay above which latencies are the controller's own.
LATE_SHARE = 0.1


@attrs.frozen
class Controller:
    """Reports the loop's delays as ``controller``; ``unknown`` where they were too long."""

    name: str = "controller"
    kernels: tuple[Kernel, ...] = ()

    def judge(self, tables: Tables, setting: Setting, lookup: Lookup) -> Part:
        """Judge the drive phase alone: nothing is measured before and after."""
        rows = _driven(tables["controller"], dict(setting.phases))
        if not rows.num_rows:
            return Part()
        late, length = ints(rows, "late_ns"), ints(rows, "length_ns")
        worst = int(np.argmax(late))
        share = float(length[late >= LATE_NS].sum() / length.sum())
        told: dict[str, Any] = {
            "longest_stall_ns": int(late[worst]),
            "longest_stall_at_ns": int(ints(rows, "at_ns")[worst]),
            "late_share": round(share, 4),
        }
        cpu = _cpu(rows, length)
        told |= {} if cpu is None else {"cpu_share": round(cpu, 4)}
        told |= _memory(rows)
        reasons = tuple(_reasons(told))
        return Part(
            outcome=Outcome.UNKNOWN if reasons else Outcome.VALID, reasons=reasons, controller=told
        )


def _driven(rows: pa.Table, marks: dict[str, int]) -> pa.Table:
    at = ints(rows, "at_ns")
    keep = (at >= marks.get("drive", 0)) & (at < marks.get("heal", 2**62))
    return rows.filter(pa.array(keep))


def _cpu(rows: pa.Table, length: Ints) -> float | None:
    """Return the share of one core over the whole time; ``None`` where it was not measured."""
    shares = rows.column("cpu_share").drop_null().to_numpy()
    return float(np.average(shares, weights=length)) if len(shares) == len(length) else None


def _memory(rows: pa.Table) -> dict[str, Any]:
    """Return the controller's memory when driving began, at most, and at the end; bytes."""
    resident = rows.column("resident_bytes").drop_null().to_numpy()
    if not len(resident):
        return {}
    first, most, last = int(resident[0]), int(resident.max()), int(resident[-1])
    return {"resident_bytes": {"first": first, "most": most, "last": last}}


def _reasons(told: dict[str, Any]) -> list[str]:
    cpu = f", with {told['cpu_share']:.0%} of a core used" if "cpu_share" in told else ""
    found = []
    if told["longest_stall_ns"] >= STALL_NS:
        found.append(
            f"the controller was starved: its loop stood still for "
            f"{seconds(told['longest_stall_ns'])} at about {seconds(told['longest_stall_at_ns'])}"
            f"{cpu}; what looks like the store's silence may be its own"
        )
    if told["late_share"] > LATE_SHARE:
        found.append(
            f"the controller was starved: in {told['late_share']:.0%} of the drive phase its loop "
            f"woke up more than {LATE_NS / 1e6:g} ms late{cpu}; latencies and timeouts may be its "
            "own"
        )
    return found


CHECKER = Controller()
