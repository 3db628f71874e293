"""A canary: a sound run with two planted falsifications, which the checkers must report.

A campaign without findings may be one whose checkers are broken. So the records of a good run are
falsified in memory: a final read loses its last element, a replica's content changes.
"""

from __future__ import annotations

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from harness.history.load import load
from harness.history.run_directory import RunDirectory
from harness.protocols.consistency_models import LOST_WRITE
from harness.run.state_log import read_states

DIVERGED = "diverged-replicas"


class CanaryResult(msgspec.Struct, frozen=True, kw_only=True):
    """The anomalies named in the run as it was, and in the falsified one."""

    before: tuple[str, ...]
    after: tuple[str, ...]

    @property
    def rings(self) -> bool:
        """Whether both falsifications were reported, and neither in the original run."""
        lies = {LOST_WRITE, DIVERGED}
        return lies <= set(self.after) and not lies & set(self.before)


def run_canary(run: RunDirectory) -> CanaryResult:
    """Judge the list-append run ``run`` as it is, and falsified."""
    return CanaryResult(before=_named(run, lie=False), after=_named(run, lie=True))


def _named(run: RunDirectory, *, lie: bool) -> tuple[str, ...]:
    from checkers.engine.analyze import checkers_named, declared_model, judge
    from checkers.engine.source import Source
    from checkers.promises.replicas import CHECKER as REPLICAS
    from harness.protocols.setting import Setting

    history = load(run)
    manifest = history.manifest
    micro_ops = [history.micro_ops(split) for split in range(manifest.splits)]
    states = read_states(run.root, manifest.checksums)
    if lie:
        micro_ops = _shortened(micro_ops)
        states |= {"states": _altered(states["states"])}
    analysis = judge(
        Source.of_tables(history.transactions(), *micro_ops),
        setting=Setting(
            model=declared_model(manifest.declaration),
            declaration=manifest.declaration,
            # Without the phases no read would count as one of the final ones.
            phases=manifest.phases,
        ),
        checkers=(*checkers_named(("list-append", LOST_WRITE)), REPLICAS),
        faults=history.faults(),
        events=history.events(),
        beside=states,
    )
    return tuple(analysis.verdict.anomalies)


def _shortened(splits: list[pa.Table]) -> list[pa.Table]:
    """Drop the last element of the last read of the key that is read last."""
    last = [_last_read(table) for table in splits]
    txns = [
        -1 if at is None else table.column("txn")[at].as_py()
        for table, at in zip(splits, last, strict=True)
    ]
    chosen = int(np.argmax(txns))
    at = last[chosen]
    if at is None:
        return splits
    table = splits[chosen]
    elements = table.column("elements").to_pylist()
    elements[at] = elements[at][:-1]
    place = table.schema.get_field_index("elements")
    column = pa.array(elements, table.schema.field("elements").type)
    changed = list(splits)
    changed[chosen] = table.set_column(place, table.schema.field("elements"), column)
    return changed


def _last_read(table: pa.Table) -> int | None:
    """Return the row of the last ok read that saw an element."""
    lengths = pc.fill_null(pc.list_value_length(table.column("elements")), 0)
    seen = pc.and_(pc.equal(table.column("type"), "ok"), pc.greater(lengths, 0))
    rows = np.flatnonzero(np.asarray(seen))
    return int(rows[-1]) if len(rows) else None


def _altered(states: pa.Table) -> pa.Table:
    """Change the content of one replica of partition 0 at the end."""
    chosen = pc.and_(states.column("final"), pc.equal(states.column("group"), "p0"))
    rows = np.flatnonzero(np.asarray(pc.fill_null(chosen, False)))
    contents = states.column("content").to_pylist()
    for row in rows[:1]:
        contents[row] = (contents[row] or 0) ^ 1
    place = states.schema.get_field_index("content")
    return states.set_column(place, "content", pa.array(contents, pa.int64()))
