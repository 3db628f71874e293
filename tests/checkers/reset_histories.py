"""Small histories of partitions that are reset: as tables for the checkers, as values for the
oracle.

Times are milliseconds; key k is in partition k % 2.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import attrs
import msgspec
import pyarrow as pa
from checker_histories import STRICT, Fault, Txn, setting, source
from register_histories import source as register_source

from checkers.engine.analyze import checkers_named, judge
from checkers.engine.source import Source
from harness.history import schema
from harness.history.records import EventKind
from harness.protocols.verdict import Verdict
from harness.run.state_log import STATES

MS = 1_000_000
HA = msgspec.structs.replace(STRICT, mode="HA")
CHECKERS = ("list-append", "lost-write", "evidence")


@attrs.frozen(kw_only=True)
class ResetEvent:
    """A reset from ``since`` to ``until``; ``survivors`` are names, ``base`` is an entry of
    ``base_term``.
    """

    partition: int
    generation: int
    since: int
    until: int
    previous: int | None = None
    survivors: tuple[str, ...] | None = None
    base: int | None = None
    base_term: int = 1
    restores: bool = False
    asked: bool = False


@attrs.frozen(kw_only=True)
class Sample:
    """A replica's state: its log's end where it is ``acting``, what it has applied else."""

    node: str
    partition: int
    asked: int
    answered: int
    index: int
    acting: bool = False
    generation: int = 0
    term: int = 1
    voters: int = 0  # of which it is one, where there are any


@attrs.frozen(kw_only=True)
class ResetHistory:
    """Transactions with times in milliseconds, resets and samples; ``steps`` of rebalances by
    partition and time; faults with times in nanoseconds.
    """

    txns: tuple[Txn, ...]
    resets: tuple[ResetEvent, ...] = ()
    samples: tuple[Sample, ...] = ()
    steps: tuple[tuple[int, int], ...] = ()
    faults: tuple[Fault, ...] = ()

    @property
    def timed(self) -> list[Txn]:
        """The transactions in the order of their beginning, in nanoseconds."""
        return [
            attrs.evolve(txn, start=txn.start * MS, finish=txn.finish * MS)
            for txn in sorted(self.txns, key=lambda txn: (txn.start, txn.finish))
        ]


def tables_of(history: ResetHistory, splits: int) -> Source:
    # Only one of the two knows compare-and-set, only the other lists.
    sets = any(f == "cas" for txn in history.txns for f, _, _ in txn.ops)
    made = (register_source if sets else source)(history.timed, splits=splits)
    steps = []
    for split in range(made.splits):
        table = made.micro_ops(split)
        partition = pa.array([key % 2 for key in table["key"].to_pylist()], pa.int32())
        place = table.column_names.index("partition")
        steps.append(table.set_column(place, schema.MICRO_OPS.field(place), partition))
    return Source.of_tables(made.transactions, *steps)


def events_of(history: ResetHistory) -> pa.Table:
    rows = []
    for reset in history.resets:
        middle, off = (reset.since + reset.until) * MS // 2, (reset.until - reset.since) * MS // 2
        row: dict[str, Any] = {
            "kind": EventKind.PARTITION_RESET.value,
            "node": "n1",
            "wall_ns": 0,
            "boot": "1",
            "at_ns": middle,
            "uncertainty_ns": off,
            "partition": reset.partition,
            "text": "reset",
            "generation": reset.generation,
            "previous_generation": reset.generation - 1
            if reset.previous is None
            else reset.previous,
            "base_index": reset.base,
            "base_term": None if reset.base is None else reset.base_term,
            "survivors": reset.survivors,
        }
        rows.append(row)
        if reset.restores:
            rows.append(row | {"kind": EventKind.RESTORED.value})
        if reset.asked:
            rows.append(row | {"kind": EventKind.RESET_ASKED.value})
    rows += [
        {
            "kind": EventKind.REBALANCE_STAGE.value,
            "node": "n1",
            "wall_ns": 0,
            "boot": "1",
            "at_ns": at * MS,
            "uncertainty_ns": 0,
            "partition": partition,
            "text": "completed",
        }
        for partition, at in history.steps
    ]
    return pa.Table.from_pylist(rows, schema=schema.EVENTS)


def faults_of(history: ResetHistory) -> pa.Table:
    rows = [
        {
            "fault": number,
            "kind": fault.kind,
            "target": fault.target,
            "nodes": fault.nodes,
            "roles": fault.roles,
            "planned_ns": fault.start,
            "injecting_ns": fault.start,
            "injected_ns": fault.start,
            "effective_ns": fault.start,
            "healing_ns": fault.finish,
            "healed_ns": fault.finish,
            "state": "healed",
        }
        for number, fault in enumerate(history.faults)
    ]
    return pa.Table.from_pylist(rows, schema=schema.FAULTS)


def states_of(history: ResetHistory) -> pa.Table:
    rows = [
        {
            "asked_ns": sample.asked * MS,
            "answered_ns": sample.answered * MS,
            "final": False,
            "node": sample.node,
            "life": "1",
            "boot": "1",
            "group": f"p{sample.partition}",
            "partition": sample.partition,
            "leading": sample.acting,
            "voter": sample.voters > 0,
            "voters": sample.voters,
            "term": 1,
            "applied_index": sample.index,
            "applied_term": sample.term,
            "commit_index": sample.index,
            "last_index": sample.index,
            "recovered_term": 0,
            "recovered_index": 0,
            "epoch": 1,
            "acting": sample.acting,
            "locks": 0,
            "prepared": 0,
            "generation": sample.generation,
        }
        for sample in history.samples
    ]
    return pa.Table.from_pylist(rows, schema=STATES)


def verdict_of(
    history: ResetHistory,
    *,
    executor: str = "local",
    splits: int = 1,
    checkers: tuple[str, ...] = CHECKERS,
    **more: Any,
) -> Verdict:
    beside = {"states": states_of(history)} if history.samples else {}
    return judge(
        tables_of(history, splits),
        setting=setting(**{"declaration": HA} | more),
        checkers=checkers_named(checkers),
        faults=faults_of(history),
        events=events_of(history),
        beside=beside,
        executor=executor,
    ).verdict


def partitions_of(ops: Sequence[tuple[str, int, Any]]) -> set[int]:
    return {key % 2 for _, key, _ in ops}
