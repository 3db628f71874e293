"""What checkers of transactions have in common: the tables that an inference over keys gives, and
the anomalies that are made of them and of cycles.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from checkers.cycles.anomaly_kinds import CLASSES, REVERSES
from checkers.cycles.backward_edges import readers_before
from checkers.cycles.classification import STEPS
from checkers.cycles.graph import dependencies_of, tails_of
from checkers.engine.arrays import INFO, ints
from checkers.engine.transactions import NOBODY, Transactions
from checkers.explain.fault_attribution import KnownFaults
from checkers.explain.fault_explanations import explain_operations
from checkers.explain.words import KeyNames
from harness.exit_codes import Outcome
from harness.protocols.checker import EXAMPLES_MAX, Lookup, Part, Tables
from harness.protocols.cycle_words import explain
from harness.protocols.finding import Dependency, Finding, RecordedOperation
from harness.protocols.verdict import Anomaly

Row = dict[str, Any]
NO_EVIDENCE = (
    "nothing to judge: no transaction read or overwrote what another wrote, so any order explains "
    "them"
)


def inferred(edges: pa.Table, tails: pa.Table, txns: Transactions) -> dict[str, pa.Table]:
    """Return ``lists.counts``, how many dependencies there are, and ``lists.edges`` and
    ``lists.tails``: of the rows given those that count and do not lead into a transaction that no
    step leads on from.

    Such is each of unknown outcome that no read proves: nothing follows it in time, its own reads
    don't count, and no read shows its writes. Later readers precede it for as long as its key
    lives, so that the history would have no place to cut.
    """
    counting = dependencies_of(edges, txns.committed)
    ends = tails_of(tails, txns.committed, 0)
    known = len(counting.source) + readers_before(ends)
    ends_there = (txns.type == INFO) & ~txns.committed
    rows = counting.row[~ends_there[counting.target]]
    last = ends.row[~(ends.appends & ends_there[ends.txn])]
    return {
        "lists.edges": edges if len(rows) == edges.num_rows else edges.take(pa.array(rows)),
        "lists.tails": tails if len(last) == tails.num_rows else tails.take(pa.array(last)),
        "lists.counts": pa.table({"dependencies": [known]}),
    }


def judged(
    tables: Tables,
    findings: pa.Table,
    steps: pa.Table,
    lookup: Lookup,
    sentence: Callable[[Row], str],
) -> Part:
    """Return every anomaly, of any model; the model decides later which of them count.

    ``findings`` are of single keys, ``steps`` those of the ``first_cycles``; ``sentence`` tells a
    row of ``findings``, whose key has its name.
    """
    # A transaction that reads a key twice may give the same sentence twice.
    findings = findings.group_by(findings.column_names, use_threads=False).aggregate([])
    findings = findings.sort_by([(name, "ascending") for name in findings.column_names])
    shown = _first_of_each(findings)
    cycles = _cycles(steps)
    operations = lookup.operations(tuple(_mentioned(shown, cycles)))
    faults, named = KnownFaults.of(tables["faults"]), KeyNames(tables)
    anomalies = {
        name: Anomaly(
            count=count,
            examples=tuple(
                _finding(row, operations, faults, sentence(named.within(row)))
                for row in shown[name]
            ),
        )
        for name, count in _accused(findings).items()
    }
    for name, count in _cycle_counts(tables["cycles.counts"]).items():
        examples = tuple(_cycle(name, steps, operations, faults, named) for steps in cycles[name])
        anomalies[name] = Anomaly(count=count, examples=examples)
    known = sum(tables["lists.counts"]["dependencies"].to_pylist())
    # An anomaly of one transaction alone is evidence, even where no other touched its keys.
    evidence = known > 0 or bool(anomalies)
    return Part(
        outcome=Outcome.VALID if evidence else Outcome.UNKNOWN,
        reasons=() if evidence else (NO_EVIDENCE,),
        anomalies=anomalies,
        tables={"findings": findings, "cycles": steps},
    )


def _accused(findings: pa.Table) -> dict[str, int]:
    """Return the accused transactions by anomaly."""
    counts = findings.group_by("anomaly").aggregate([("txn", "count_distinct")])
    return {r["anomaly"]: r["txn_count_distinct"] for r in counts.sort_by("anomaly").to_pylist()}


def _first_of_each(findings: pa.Table) -> dict[str, list[Row]]:
    """Return by anomaly the accusations of the first transactions, each once, as
    they are counted.
    """
    first = {}
    for name in _accused(findings):
        rows = findings.filter(pc.equal(findings.column("anomaly"), name))
        at = np.sort(np.unique(ints(rows, "txn"), return_index=True)[1])
        first[name] = rows.take(pa.array(at[:EXAMPLES_MAX])).to_pylist()
    return first


def first_cycles(steps: pa.Table) -> pa.Table:
    """Return the first cycles of each anomaly in all stretches, numbered from 0 instead of by their
    components' transactions.
    """
    # Stretches and windows of one give theirs in an order of their own.
    rows = sorted(steps.to_pylist(), key=lambda row: (row["cycle"], row["step"]))
    named: dict[str, list[int]] = {}
    for row in rows:
        named.setdefault(row["anomaly"], []).append(row["cycle"])
    shown = {name: sorted(set(cycles))[:EXAMPLES_MAX] for name, cycles in named.items()}
    first = [
        row | {"cycle": shown[row["anomaly"]].index(row["cycle"])}
        for name in _in_turn(named)
        for row in rows
        if row["anomaly"] == name and row["cycle"] in shown[name]
    ]
    return pa.Table.from_pylist(first, schema=STEPS)


def _cycle_counts(counts: pa.Table) -> dict[str, int]:
    """Return how many components of all stretches hold each anomaly."""
    total: dict[str, int] = {}
    for row in counts.to_pylist():
        total[row["anomaly"]] = total.get(row["anomaly"], 0) + row["count"]
    return {name: total[name] for name in _in_turn(total)}


def _in_turn(names: Iterable[str]) -> list[str]:
    """Return ``names`` in the order in which kinds of cycles are looked for."""
    turn = {kind.name: place for place, kind in enumerate((*CLASSES, *REVERSES))}
    return sorted(names, key=lambda name: turn[name])


def _cycles(steps: pa.Table) -> dict[str, list[list[Row]]]:
    """Return the example cycles by anomaly, each a list of steps."""
    found: dict[str, dict[int, list[Row]]] = {}
    for row in steps.to_pylist():
        found.setdefault(row["anomaly"], {}).setdefault(row["cycle"], []).append(row)
    return {name: list(cycles.values()) for name, cycles in found.items()}


def _mentioned(shown: dict[str, list[Row]], cycles: dict[str, list[list[Row]]]) -> Iterable[int]:
    for rows in shown.values():
        for row in rows:
            yield from {row["txn"], row["other"]} - {NOBODY}
    for examples in cycles.values():
        for steps in examples:
            # A step's target is the source of the next one.
            yield from (step["source"] for step in steps)


def _finding(
    row: Row, operations: dict[int, RecordedOperation], faults: KnownFaults, text: str
) -> Finding:
    txns = tuple(sorted({row["txn"], row["other"]} - {NOBODY}))
    shown = tuple(operations[txn] for txn in txns)
    return Finding(
        text=text,
        txns=txns,
        keys=(row["key"],),
        element=row["element"],
        operations=shown,
        explained_by=explain_operations(shown, faults),
    )


def _cycle(
    anomaly: str,
    steps: list[Row],
    operations: dict[int, RecordedOperation],
    faults: KnownFaults,
    named: KeyNames,
) -> Finding:
    told = ("kind", "source", "target", "key", "element")
    cycle = tuple(Dependency(**{name: step[name] for name in told}) for step in steps)
    shown = tuple(operations[step.source] for step in cycle)
    return Finding(
        text=explain(anomaly, cycle, shown, named),
        txns=tuple(step.source for step in cycle),
        keys=tuple(sorted({step.key for step in cycle if step.key is not None})),
        cycle=cycle,
        operations=shown,
        explained_by=explain_operations(shown, faults),
    )
