"""A node's record of what it has applied of assignments and topology, for the harness."""

from __future__ import annotations

import msgspec
import pytest

from clusters.reference.node import change_log
from clusters.reference.node.catalog.catalog import KEY, Catalog, Table
from clusters.reference.node.catalog.nodes import Node
from clusters.reference.node.catalog.options import Joint, Zone
from clusters.reference.node.change_log import ChangeLog
from clusters.reference.node.metastorage.metastorage import (
    Invoke,
    Metastorage,
    Operation,
    encode_invoke,
)
from clusters.reference.node.raft.types import Entry
from clusters.reference.node.rebalance import keys
from clusters.reference.node.rebalance.driver import NUMBERS, Numbers
from clusters.reference.node.rebalance.keys import Lock, PartitionId
from clusters.reference.node.topology.logical import LOGICAL, Member
from clusters.reference.node.wire.reports import AskChanges, ChangeRow

HERE = PartitionId(2, 1)
CATALOG = Catalog(
    zones={"Z": Zone(id=1, name="Z", waits=Joint(7), filter='"SSD"')},
    tables={"T": Table(id=2, name="T", zone="Z", profile="default")},
)


def put(store: Metastorage, *rows: tuple[str, bytes | None]) -> None:
    invoke = Invoke((), tuple(Operation(key, value) for key, value in rows))
    store.apply(Entry(1, store.revision + 1, encode_invoke(invoke)))


def member(name: str, *tags: str) -> Member:
    return Member(Node(name=name, attributes=dict.fromkeys(tags)), f"{name}~a", "i")


def followed() -> tuple[Metastorage, ChangeLog]:
    store = Metastorage()
    log = ChangeLog(boot="b", store=store, monotonic_s=lambda: 5.0)
    put(store, (KEY, msgspec.json.encode(CATALOG)))
    numbers = Numbers(tables=((2, 2, 2),))
    put(store, (NUMBERS, msgspec.msgpack.encode(numbers)))
    return store, log


def rows(log: ChangeLog) -> tuple[ChangeRow, ...]:
    return log.since(AskChanges()).rows


def test_each_key_of_a_partition_is_a_row_under_its_flat_number() -> None:
    store, log = followed()
    lock = Lock(("n1",), 4)
    put(
        store,
        (HERE.key(keys.STABLE), keys.encode(keys.assignments(["n2", "n1"]))),
        (HERE.key(keys.PENDING), None),
        (HERE.key(keys.TRIGGER), keys.encode_number(9)),
        (HERE.key(keys.LOCK), keys.encode(lock)),
        (HERE.key(keys.APPLIED), b""),
    )

    written = [row for row in rows(log) if row.partition is not None]
    assert {(row.partition, row.name, row.revision) for row in written} == {(3, "T", 3)}
    assert [(row.kind, row.nodes, row.term, row.number) for row in written] == [
        ("stable", ("n1", "n2"), None, None),
        ("pending", None, None, None),
        ("trigger", None, None, 9),
        ("lock", ("n1",), 4, None),
    ]


def test_zones_and_the_nodes_that_pass_their_filters_are_rows() -> None:
    store, log = followed()
    put(store, (LOGICAL, msgspec.msgpack.encode((member("n1", "SSD"), member("n2")))))
    put(store, (LOGICAL, msgspec.msgpack.encode((member("n1", "SSD", "EU"), member("n2")))))

    zone, *later = [row for row in rows(log) if row.kind in ("zone", "eligible")]
    assert (zone.waits, zone.text, zone.number) == ((None, None, 7), '"SSD"', 1)
    # The second time it is another node, though of the same name.
    assert [(row.nodes, row.text) for row in later] == [((), ""), (("n1",), ""), (("n1",), "n1")]


def test_a_reader_gets_every_row_once_in_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(change_log, "BATCH_ROWS", 2)
    store, log = followed()
    put(store, *((HERE.key(prefix), None) for prefix in (keys.STABLE, keys.PENDING, keys.PLANNED)))

    first = log.since(AskChanges())
    rest = log.since(AskChanges("b", first.cursor))
    assert [row.seq for row in (*first.rows, *rest.rows)] == list(range(1, 5))
    # The first batch ends within a revision: it is complete only up to the one before.
    assert (first.revision, rest.revision) == (0, 2)
    last = log.since(AskChanges("b", rest.cursor))
    assert (last.revision, [row.seq for row in last.rows]) == (3, [5])
    assert log.since(AskChanges("other", last.cursor)).rows[0].seq == 1


def test_a_history_that_was_compacted_is_reported_from_where_it_begins() -> None:
    store, _ = followed()
    short = Metastorage(max_history=1)
    short.become(store.snapshot())
    put(short, (HERE.key(keys.STABLE), keys.encode(keys.assignments(["n1"]))))
    put(short, (HERE.key(keys.STABLE), keys.encode(keys.assignments(["n2"]))))
    behind = Metastorage()
    log = ChangeLog(boot="c", store=behind, monotonic_s=lambda: 0.0)
    behind.become(short.snapshot())

    report = log.since(AskChanges())
    assert (report.begins, report.revision) == (4, 4)
    put(behind, (HERE.key(keys.STABLE), keys.encode(keys.assignments(["n3"]))))
    assert [(row.revision, row.name, row.nodes) for row in rows(log)] == [(5, "T", ("n3",))]
