"""The changes of assignments and topology that this node has applied since it started, as rows for
the harness: one a key, by the revisions of metastorage.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from itertools import islice

import msgspec

from clusters.reference.node.catalog import catalog as catalogs
from clusters.reference.node.catalog import filters
from clusters.reference.node.catalog.catalog import Catalog
from clusters.reference.node.catalog.nodes import Node
from clusters.reference.node.catalog.options import Joint, Zone
from clusters.reference.node.metastorage.metastorage import Change, Metastorage
from clusters.reference.node.rebalance import keys
from clusters.reference.node.rebalance.driver import NUMBERS, numbers
from clusters.reference.node.rebalance.keys import PartitionId
from clusters.reference.node.topology import logical
from clusters.reference.node.wire.reports import AskChanges, ChangeReport, ChangeRow
from clusters.reference.node.zones import manager

MAX_ROWS = 50_000  # that are kept; a reader that is slower loses the oldest
BATCH_ROWS = 4_000  # of one answer: about half a megabyte
WATCHED = (catalogs.KEY, "topology/", "zone.", "partition.")
_SETS = {keys.STABLE: "stable", keys.PENDING: "pending", keys.PLANNED: "planned"}
NEVER = -1

Waits = tuple[int | None, int | None, int | None]


class ChangeLog:
    """Follows metastorage as it is applied here, each revision by itself."""

    def __init__(self, *, boot: str, store: Metastorage, monotonic_s: Callable[[], float]) -> None:
        """To be made before anything of ``store`` is applied."""
        self._boot, self._store, self._monotonic_s = boot, store, monotonic_s
        self._rows: deque[tuple[float, ChangeRow]] = deque()
        self._seq = 0
        self._begins = 0
        self._catalog = Catalog()
        self._tables: dict[int, str] = {}  # also those that were dropped
        self._members: tuple[Node, ...] = ()
        self._eligible: dict[str, tuple[Node, ...]] = {}
        store.watch(WATCHED, 0, self)

    def changed(self, change: Change) -> None:
        """See ``metastorage.Watcher``."""
        for key, value in change.entries.items():
            for row in self._read(change.revision, key, value):
                self._add(row)
        if catalogs.KEY in change.entries or logical.LOGICAL in change.entries:
            for row in self._newly_eligible(change.revision):
                self._add(row)

    def compacted(self, revision: int) -> None:
        """See ``metastorage.Watcher``. What is reported begins behind ``revision``."""
        self._rows.clear()
        self._begins = revision
        self._follow_catalog(catalogs.read(self._store.get))
        self._members = logical.topology(self._store).nodes
        for _ in self._newly_eligible(revision):
            pass  # what zones have already is no change

    def accepted(
        self, partition: int, nodes: tuple[str, ...], *, asked: int, term: int, revision: int
    ) -> None:
        """The leader of ``term`` here has accepted a change of peers to ``nodes``, for the term
        ``asked``, which the pending set of ``revision`` wants.
        """
        row = msgspec.structs.replace(self._of_leader(partition, revision, asked), nodes=nodes)
        self._add(msgspec.structs.replace(row, kind="change-peers", number=term))

    def failed(self, partition: int, error: str, *, term: int, revision: int) -> None:
        """A change of peers that the pending set of ``revision`` wants has failed."""
        row = self._of_leader(partition, revision, term)
        self._add(msgspec.structs.replace(row, kind="change-failed", text=error))

    def cancelled(self, partition: int, done: bool, *, term: int, revision: int) -> None:
        """The leader of ``term`` here was asked to cancel the change of peers that goes on."""
        row = self._of_leader(partition, revision, term)
        self._add(msgspec.structs.replace(row, kind="cancel", number=int(done)))

    def _of_leader(self, number: int, revision: int, term: int) -> ChangeRow:
        found = numbers(self._store).partition(number)
        row = _row(revision, "") if found is None else self._of_table(revision, found)
        return msgspec.structs.replace(row, partition=number, term=term)

    def _of_table(self, revision: int, partition: PartitionId) -> ChangeRow:
        name = self._tables.get(partition.table, "")
        table = self._catalog.tables.get(name)
        number = numbers(self._store).of(partition)
        row = _row(revision, "", name)
        return msgspec.structs.replace(
            row, partition=number, zone="" if table is None else table.zone
        )

    def since(self, question: AskChanges) -> ChangeReport:
        """What the question asks for, as far as an answer has room for it."""
        after = question.cursor if question.boot == self._boot else 0
        oldest = self._rows[0][1].seq if self._rows else self._seq + 1
        later = islice(self._rows, max(after + 1 - oldest, 0), None)
        found = list(islice(later, BATCH_ROWS))
        last = found[-1][1].seq if found else self._seq
        now_s = self._monotonic_s()
        aged = tuple(
            msgspec.structs.replace(row, age_us=int((now_s - at_s) * 1e6)) for at_s, row in found
        )
        # A revision of which rows are left for the next answer is not complete.
        whole = last == self._seq
        return ChangeReport(
            boot=self._boot,
            cursor=last,
            begins=self._begins,
            revision=self._store.revision if whole else found[-1][1].revision - 1,
            rows=aged,
        )

    def _add(self, row: ChangeRow) -> None:
        self._seq += 1
        self._rows.append((self._monotonic_s(), msgspec.structs.replace(row, seq=self._seq)))
        if len(self._rows) > MAX_ROWS:
            _, dropped = self._rows.popleft()
            self._begins = max(self._begins, dropped.revision)

    def _read(self, revision: int, key: str, value: bytes | None) -> Iterator[ChangeRow]:
        if key == catalogs.KEY and value is not None:
            yield from self._zones(revision, catalogs.decode(value))
        elif key == logical.LOGICAL and value is not None:
            members = logical.decode_members(value)
            self._members = tuple(member.node for member in members)
            yield _row(revision, "logical", nodes=tuple(member.name for member in members))
        elif key == logical.PHYSICAL and value is not None:
            yield _row(revision, "physical", nodes=logical.decode_names(value))
        elif key == logical.RESUMED and value is not None:
            yield _row(revision, "restart", nodes=logical.decode_names(value))
        elif key.startswith(manager.HISTORY):
            yield from self._data_nodes(revision, int(key.removeprefix(manager.HISTORY)), value)
        elif key.startswith("partition.") and key != NUMBERS:
            yield from self._assignment(revision, key, value)

    def _zones(self, revision: int, after: Catalog) -> Iterator[ChangeRow]:
        before = self._catalog.zones
        for name in sorted({*before, *after.zones}):
            zone = after.zones.get(name)
            if zone is None:
                yield _row(revision, "zone", name)
            elif zone != before.get(name):
                row = _row(revision, "zone", name, number=zone.replicas)
                reset_s = zone.reset_timeout_s if zone.highly_available else None
                yield msgspec.structs.replace(
                    row, waits=_waits(zone), text=zone.filter, reset_s=reset_s
                )
        self._follow_catalog(after)

    def _follow_catalog(self, catalog: Catalog) -> None:
        self._catalog = catalog
        self._tables.update({table.id: name for name, table in catalog.tables.items()})

    def _newly_eligible(self, revision: int) -> Iterator[ChangeRow]:
        for name, zone in sorted(self._catalog.zones.items()):
            before = self._eligible.get(name)
            now = tuple(filters.filtered(zone.filter, self._members))
            if now == before:
                continue
            self._eligible[name] = now
            known = {node.name: node for node in before or ()}
            others = [n.name for n in now if n.name in known and known[n.name] != n]
            row = _row(revision, "eligible", name, nodes=tuple(node.name for node in now))
            yield msgspec.structs.replace(row, text=" ".join(others))

    def _data_nodes(self, revision: int, zone: int, value: bytes | None) -> Iterator[ChangeRow]:
        name = next((n for n, z in self._catalog.zones.items() if z.id == zone), "")
        if value is not None:
            newest = manager.decode_history(value)[-1]
            names = tuple(node.name for node in newest.nodes)
            row = _row(revision, "data-nodes", name, nodes=names)
            yield msgspec.structs.replace(row, ts=newest.ts)

    def _assignment(self, revision: int, key: str, value: bytes | None) -> Iterator[ChangeRow]:
        prefix, _, rest = key.partition("/")
        table, _, number = rest.partition("/")
        partition = PartitionId(int(table), int(number))
        row = self._of_table(revision, partition)
        if f"{prefix}/" in _SETS:
            nodes = None if value is None else keys.decode(value).nodes
            yield msgspec.structs.replace(row, kind=_SETS[f"{prefix}/"], nodes=nodes)
        elif f"{prefix}/" == keys.TRIGGER:
            event = None if value is None else int.from_bytes(value, "big")
            yield msgspec.structs.replace(row, kind="trigger", number=event)
        elif f"{prefix}/" == keys.CHAIN:
            links = () if value is None else keys.decode_chain(value).links
            nodes = links[-1].nodes if links else None
            text = " > ".join(" ".join(link.nodes) for link in links)
            yield msgspec.structs.replace(row, kind="chain", nodes=nodes, text=text)
        elif f"{prefix}/" == keys.LOCK:
            lock = None if value is None else keys.decode_lock(value)
            nodes, term = (None, None) if lock is None else (lock.nodes, lock.term)
            yield msgspec.structs.replace(row, kind="lock", nodes=nodes, term=term)


def _row(
    revision: int,
    kind: str,
    name: str = "",
    *,
    nodes: tuple[str, ...] | None = None,
    number: int | None = None,
) -> ChangeRow:
    return ChangeRow(0, revision, 0, kind, name, nodes=nodes, number=number)


def _waits(zone: Zone) -> Waits:
    if isinstance(zone.waits, Joint):
        return None, None, _wait(zone.waits.wait_s)
    return _wait(zone.waits.up_s), _wait(zone.waits.down_s), None


def _wait(wait_s: int | None) -> int:
    return NEVER if wait_s is None else wait_s
