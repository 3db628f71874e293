"""The promise ``liveness``: once every fault is healed, each partition commits within a bound.

Looked for in every stretch without a fault that is at least as long as the declared bound: during
the drive, after the last heal before it. A partition on which nobody tried to write shows nothing.
Operations are counted in steps of time, so that a long history gives a short table.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import attrs
import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from checkers.attribution import windows
from checkers.columns import OK, TYPES, codes, ints
from checkers.kernel import EXAMPLES_MAX, Exchange, Kernel, Lookup, Part, Setting, Tables
from checkers.words import NANOSECONDS, seconds
from harness.checking import Anomaly

LIVENESS = "liveness"
STEP_NS = 50_000_000  # what is tried or acknowledged within a step counts as at its end
MIN_TRIES = 3  # one or two operations fail for their own reasons: locks, deadlines
WRITES = "liveness.writes"


def count_writes(tables: Tables, setting: Setting) -> dict[str, pa.Table]:
    """``liveness.writes``: writes by partition, step of their begin, step of their end, and whether
    they were acknowledged.
    """
    if isinstance(setting.declaration.liveness_s, msgspec.UnsetType):
        return {}
    steps, transactions = tables["micro_ops"], tables["transactions"]
    writes = steps.filter(pc.and_(pc.not_equal(steps["f"], "r"), steps["partition"].is_valid()))
    txn = ints(writes, "txn")
    rows = pa.table(
        {
            "partition": ints(writes, "partition"),
            "begun": ints(transactions, "invoke_ns")[txn] // STEP_NS,
            "ended": ints(transactions, "complete_ns")[txn] // STEP_NS,
            "ok": codes(transactions, "type", TYPES)[txn] == OK,
        }
    )
    names = rows.column_names
    return {WRITES: rows.group_by(names).aggregate([([], "count_all")])}


@attrs.frozen
class Liveness:
    """Judges only systems that declare a bound."""

    name: str = LIVENESS
    kernels: tuple[Kernel, ...] = (Kernel(name=LIVENESS, exchange=Exchange.KEY, run=count_writes),)

    def judge(self, tables: Tables, setting: Setting, lookup: Lookup) -> Part:
        """``liveness``, an example for each partition and stretch without a commit."""
        bound_s = setting.declaration.liveness_s
        if isinstance(bound_s, msgspec.UnsetType) or WRITES not in tables:
            return Part()
        examples = [
            example
            for start_ns, _ in calm(tables["faults"], setting, int(bound_s * NANOSECONDS))
            for example in _silent(tables[WRITES], start_ns, bound_s)
        ]
        if not examples:
            return Part()
        found = Anomaly(count=len(examples), examples=tuple(examples[:EXAMPLES_MAX]))
        return Part(anomalies={LIVENESS: found})


def calm(faults: pa.Table, setting: Setting, least_ns: int) -> Iterator[tuple[int, int]]:
    """Stretches of the drive, from a heal on, without any fault, of ``least_ns`` at least."""
    marks = dict(setting.phases)
    if "drive" not in marks or "heal" not in marks:
        return
    calm_ns: int | None = None
    for window in windows(faults):
        start_ns, end_ns = window["start_ns"], window["end_ns"]
        if calm_ns is not None and start_ns - calm_ns >= least_ns:
            yield calm_ns, start_ns
        if end_ns is None:
            return
        calm_ns = max(calm_ns or 0, end_ns)
    if calm_ns is not None and marks["heal"] - calm_ns >= least_ns:
        yield calm_ns, marks["heal"]


def _silent(writes: pa.Table, start_ns: int, bound_s: float) -> Iterator[dict[str, Any]]:
    """Partitions on which several writes were tried within the bound, and none acknowledged."""
    first, last = start_ns // STEP_NS + 1, (start_ns + int(bound_s * NANOSECONDS)) // STEP_NS
    begun, ended = ints(writes, "begun"), ints(writes, "ended")
    partition, count = ints(writes, "partition"), ints(writes, "count_all")
    ok = np.asarray(writes.column("ok"))
    tried = (begun >= first) & (begun <= last)
    served = ok & (ended >= first) & (ended <= last)
    for number in np.unique(partition[tried]).tolist():
        tries = int(count[tried & (partition == number)].sum())
        if tries >= MIN_TRIES and not np.any(served & (partition == number)):
            text = (
                f"liveness: partition {number} committed nothing within {bound_s:g} s after every "
                f"fault was healed at {seconds(start_ns)} ({tries} writes were tried)"
            )
            yield {"text": text, "txns": [], "keys": [], "partition": number, "at_ns": start_ns}


CHECKER = Liveness()
