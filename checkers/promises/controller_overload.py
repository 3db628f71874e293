"""Whether the controller kept up: an overloaded controller measures its own delays as the store's.

A loop that wakes up late times operations out, injects faults late and reports gaps that were its
own. Violations are proven by the order of the records, so they stand; all else is in doubt.
"""

from __future__ import annotations

from collections.abc import Iterator

import attrs
import numpy as np
import pyarrow as pa

from checkers.engine.arrays import Ints, ints
from harness.exit_codes import Outcome
from harness.protocols.checker import Kernel, Lookup, Part, Tables
from harness.protocols.setting import Setting
from harness.protocols.verdict import ControllerLoad, Memory
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
        stall_ns, stall_at_ns = int(late[worst]), int(ints(rows, "at_ns")[worst])
        cpu, late_share = _cpu(rows, length), round(share, 4)
        load = ControllerLoad(
            longest_stall_ns=stall_ns,
            longest_stall_at_ns=stall_at_ns,
            late_share=late_share,
            cpu_share=None if cpu is None else round(cpu, 4),
            resident_bytes=_memory(rows),
        )
        used = "" if load.cpu_share is None else f", with {load.cpu_share:.0%} of a core used"
        reasons = tuple(_reasons(stall_ns, stall_at_ns, late_share, used))
        return Part(
            outcome=Outcome.UNKNOWN if reasons else Outcome.VALID, reasons=reasons, controller=load
        )


def _driven(rows: pa.Table, marks: dict[str, int]) -> pa.Table:
    at = ints(rows, "at_ns")
    keep = (at >= marks.get("drive", 0)) & (at < marks.get("heal", 2**62))
    return rows.filter(pa.array(keep))


def _cpu(rows: pa.Table, length: Ints) -> float | None:
    """Return the share of one core over the whole time; ``None`` where it was not measured."""
    shares = rows.column("cpu_share").drop_null().to_numpy()
    # Where some seconds lack the figure, the weights would belong to other seconds.
    return float(np.average(shares, weights=length)) if len(shares) == len(length) else None


def _memory(rows: pa.Table) -> Memory | None:
    """Return the controller's memory while it drove; ``None`` where it was not measured."""
    resident = rows.column("resident_bytes").drop_null().to_numpy()
    if not len(resident):
        return None
    return Memory(first=int(resident[0]), most=int(resident.max()), last=int(resident[-1]))


def _reasons(stall_ns: int, stall_at_ns: int, late_share: float, used: str) -> Iterator[str]:
    if stall_ns >= STALL_NS:
        yield (
            f"the controller was starved: its loop stood still for {seconds(stall_ns)} at about "
            f"{seconds(stall_at_ns)}{used}; what looks like the store's silence may be its own"
        )
    if late_share > LATE_SHARE:
        yield (
            f"the controller was starved: in {late_share:.0%} of the drive phase its loop woke up "
            f"more than {LATE_NS / 1e6:g} ms late{used}; latencies and timeouts may be its own"
        )


CHECKER = Controller()
