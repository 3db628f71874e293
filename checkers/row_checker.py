"""A checker whose kernel gives a row for each anomaly: the rest of a checker of one's own.

The kernel sees some keys with all operations on them, and returns a table with the columns
``anomaly``, ``txn``, ``key`` and ``text`` (``table`` makes it from tuples): the name, the
transaction and the key that show it, and the broken promise in a sentence.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

import attrs
import pyarrow as pa
import pyarrow.compute as pc

from checkers.explain.fault_attribution import KnownFaults
from checkers.explain.fault_explanations import explain_operations
from harness.protocols.checker import EXAMPLES_MAX, Exchange, Kernel, Lookup, Part, Tables
from harness.protocols.consistency_models import Meaning
from harness.protocols.finding import Finding
from harness.protocols.setting import Setting
from harness.protocols.verdict import Anomaly

SCHEMA = pa.schema(
    [
        ("anomaly", pa.string()),
        ("txn", pa.int64()),
        ("key", pa.int64()),
        ("text", pa.string()),
    ]
)


def table(rows: Iterable[tuple[str, int, int, str]]) -> pa.Table:
    """The rows (anomaly, txn, key, text) as a kernel returns them."""
    named = [dict(zip(SCHEMA.names, row, strict=True)) for row in rows]
    return pa.Table.from_pylist(named, schema=SCHEMA)


@attrs.frozen(kw_only=True)
class RowChecker:
    """A ``Checker``. ``rows`` is pure, and its result must not depend on which keys it is given
    together; ``meanings`` are those of ``Part``.
    """

    name: str
    rows: Callable[[Tables, Setting], pa.Table]
    meanings: Mapping[str, Meaning] = attrs.field(factory=dict)

    @property
    def kernels(self) -> tuple[Kernel, ...]:
        """The one kernel, by keys."""
        output, rows = self._output, self.rows

        def run(tables: Tables, setting: Setting) -> Tables:
            return {output: rows(tables, setting)}

        return (Kernel(name=output, exchange=Exchange.KEY, run=run),)

    def judge(self, tables: Tables, setting: Setting, lookup: Lookup) -> Part:
        """Return an anomaly for each name among the rows, the first few of it in full."""
        found = tables[self._output].sort_by([("txn", "ascending"), ("key", "ascending")])
        names = sorted(pc.unique(found["anomaly"]).to_pylist())
        known = KnownFaults.of(tables["faults"])
        return Part(
            anomalies={name: _anomaly(found, name, known, lookup) for name in names},
            meanings=self.meanings,
        )

    @property
    def _output(self) -> str:
        return f"{self.name}.rows"


def _anomaly(found: pa.Table, name: str, known: KnownFaults, lookup: Lookup) -> Anomaly:
    """The count, and examples with their operations and the fault that is nearest."""
    rows = found.filter(pc.equal(found["anomaly"], name))
    shown = rows.slice(0, EXAMPLES_MAX).to_pylist()
    operations = lookup.operations(tuple(row["txn"] for row in shown))
    examples = tuple(
        Finding(
            text=row["text"],
            txns=(row["txn"],),
            keys=(row["key"],),
            operations=(operations[row["txn"]],),
            explained_by=explain_operations([operations[row["txn"]]], known),
        )
        for row in shown
    )
    return Anomaly(count=rows.num_rows, examples=examples)
