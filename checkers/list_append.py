"""The checker of transactions that append to lists and read them, with Elle's semantics."""

from __future__ import annotations

from typing import Any

import attrs
import pyarrow as pa
import pyarrow.compute as pc

from checkers.cycles import cycle_anomalies
from checkers.kernel import EXAMPLES_MAX, Kernel, Lookup, Part, Setting, Tables
from checkers.lists.findings import NOBODY
from checkers.lists.inference import INFERENCE
from checkers.words import of_finding
from harness.checking import Anomaly


@attrs.frozen
class ListAppend:
    """Isolation anomalies of list-append histories: those of single keys, then cycles."""

    name: str = "list-append"
    kernels: tuple[Kernel, ...] = (INFERENCE,)

    def judge(self, tables: Tables, setting: Setting, lookup: Lookup) -> Part:
        """Every anomaly, whatever the model; the model decides later what they mean."""
        anomalies = finding_anomalies(tables["lists.findings"], lookup)
        anomalies |= cycle_anomalies(tables, setting, lookup)
        return Part(anomalies=anomalies, tables={"findings": _sorted(tables["lists.findings"])})


def finding_anomalies(findings: pa.Table, lookup: Lookup) -> dict[str, Anomaly]:
    """Findings by anomaly; the count is of accused transactions."""
    findings = _sorted(findings)
    anomalies = {}
    for name in sorted(pc.unique(findings.column("anomaly")).to_pylist()):
        rows = findings.filter(pc.equal(findings.column("anomaly"), name))
        count = pc.count_distinct(rows.column("txn")).as_py()
        shown = rows.slice(0, EXAMPLES_MAX).to_pylist()
        anomalies[name] = Anomaly(
            count=count, examples=tuple(_example(row, lookup) for row in shown)
        )
    return anomalies


def _sorted(findings: pa.Table) -> pa.Table:
    return findings.sort_by([(name, "ascending") for name in findings.column_names])


def _example(row: dict[str, Any], lookup: Lookup) -> dict[str, Any]:
    txns = tuple(sorted({row["txn"], row["other"]} - {NOBODY}))
    operations = lookup.operations(txns)
    example = {
        "text": of_finding(row),
        "txns": list(txns),
        "keys": [row["key"]],
        "operations": [operations[txn] for txn in txns],
    }
    if row["element"] is not None:
        example["element"] = row["element"]
    return example


CHECKER = ListAppend()
