"""The loop that aims partitions at their targets, at the leader of metastorage: after each change
of REPLICAS, data nodes, filter or PRIMARY_ZONE it writes pending or planned assignments
("Operations, which can trigger rebalance", "Write new pending assignments (1)").
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Mapping, Sequence

import msgspec

from clusters.reference.node import events
from clusters.reference.node.bugs import planted
from clusters.reference.node.catalog import catalog as catalogs
from clusters.reference.node.catalog.catalog import Catalog
from clusters.reference.node.catalog.options import Zone
from clusters.reference.node.markers import reached
from clusters.reference.node.metastorage.metastorage import (
    Change,
    Condition,
    Group,
    Invoke,
    InvokeResult,
    Operation,
    View,
    encode_invoke,
    together,
    unchanged,
)
from clusters.reference.node.placement.lease_expiry import PRIMARY
from clusters.reference.node.rebalance import keys, triggers
from clusters.reference.node.rebalance.keys import PartitionId
from clusters.reference.node.rebalance.transitions import Outcome, Transition, Variant
from clusters.reference.node.storage.identity import name_of
from clusters.reference.node.topology.logical import LIVES
from clusters.reference.node.zones.manager import HISTORY

NUMBERS = "partition.numbers"  # see ``Numbers``
WRITE_TIMEOUT_S = 1.0
# Partitions whose assignments are written by one commit: a table of 1024 costs 8 and not 1024, and
# each stays far below the largest entry.
MAX_TOGETHER = 128

_encode = msgspec.msgpack.Encoder().encode


class Numbers(msgspec.Struct, frozen=True, array_like=True):
    """The flat numbers of partitions, as the catalog gives them, those of dropped tables too: nodes
    may still have replicas of them. ``tables``: (table, its base, how many).
    """

    tables: tuple[tuple[int, int, int], ...] = ()

    def of(self, partition: PartitionId) -> int | None:
        """The flat number of ``partition``, once it has one."""
        for table, base, count in self.tables:
            if table == partition.table and partition.number < count:
                return base + partition.number
        return None

    def partition(self, number: int) -> PartitionId | None:
        """The partition with that flat number."""
        for table, base, count in self.tables:
            if base <= number < base + count:
                return PartitionId(table, number - base)
        return None

    def given(self, catalog: Catalog) -> Numbers:
        """The numbers with those of the tables of ``catalog``, by their ids."""
        known = {table for table, *_ in self.tables}
        new = [table for table in catalog.tables.values() if table.id not in known]
        found = ((table.id, table.base, catalog.partitions(table)) for table in new)
        # By id, so that one catalog gives the same value at every leader.
        return Numbers((*self.tables, *sorted(found)))


_numbers = msgspec.msgpack.Decoder(Numbers).decode


def numbers(view: View) -> Numbers:
    """The flat numbers that were given."""
    held = view.get(NUMBERS)
    return Numbers() if held is None else _numbers(held.value)


class RebalanceDriver:
    """Drives ``rebalance.triggers`` while this node leads metastorage."""

    def __init__(
        self,
        *,
        view: View,
        group: Group,
        variant: Variant,
        lives: Callable[[], Mapping[str, str]],
        settled: Callable[[], bool],
        event_log: events.EventLog,
    ) -> None:
        """``lives``: the member that each node is, by name; ``settled``: see ``zones.driver``."""
        self._view, self._group, self._variant = view, group, variant
        self._lives, self._settled, self._events = lives, settled, event_log
        self._drives = False
        self._news = asyncio.Event()
        self._zones: dict[int, tuple[Zone, str]] = {}  # by tables' ids, with the tables' profiles
        self._altered_at: dict[int, int] = {}  # see ``triggers.step``

    def observed(self, change: Change) -> None:
        """A revision of metastorage was applied."""
        if catalogs.KEY in change.entries:
            self._follow_catalog(change.revision)
        if any(key.startswith((catalogs.KEY, HISTORY, LIVES)) for key in change.entries):
            self._news.set()

    def _follow_catalog(self, revision: int) -> None:
        """Note which tables a statement has altered: of the others no partition is to be written,
        and there may be many.
        """
        catalog, before = catalogs.read(self._view.get), self._zones
        tables = catalog.tables.values()
        self._zones = {table.id: (catalog.zones[table.zone], table.profile) for table in tables}
        self._altered_at = {
            table: self._altered_at[table] if zone == before.get(table) else revision
            for table, zone in self._zones.items()
        }

    def tick(self) -> None:
        """Look whether this node drives; once a tick."""
        before, self._drives = self._drives, self._group.serving and self._settled()
        if self._drives and not before:
            self._news.set()

    async def run(self) -> None:
        """Handle every event once, while this node leads, until cancelled."""
        while True:
            await self._news.wait()
            self._news.clear()
            if self._drives and self._group.serving and not await self._step():
                reached("trigger of a rebalance to be handled again")
                self._drives = False  # looked at again with the next tick
            elif planted("watch-event-lost"):
                self._news.clear()

    async def _step(self) -> bool:
        catalog = catalogs.read(self._view.get)
        # Numbers first: nodes pass over the keys of a partition that has none.
        if not await self._number(catalog):
            return False
        steps = list(self._steps(catalog))
        for first in range(0, len(steps), MAX_TOGETHER):
            if not await self._do(steps[first : first + MAX_TOGETHER]):
                return False
        dropped = list(triggers.dropped(self._view, catalog))
        for first in range(0, len(dropped), MAX_TOGETHER):
            invoke = together(dropped[first : first + MAX_TOGETHER])
            if not isinstance(await self._propose(invoke), InvokeResult):
                return False
        for invoke in tuple(self._founded_again()):
            if not isinstance(await self._propose(invoke), InvokeResult):
                return False
        return True

    def _founded_again(self) -> Iterator[Invoke]:
        """Where all founders of a group are lives that their nodes' directories have lost, as with
        a table that is created while its only node is wiped, the nodes found it in their present
        lives; but not where a primary was granted, since it may have acknowledged writes.
        """
        lives, given = self._lives(), numbers(self._view)
        for key, held in self._view.prefixed(keys.FOUNDERS).items():
            before = keys.decode_founders(held.value)
            now = tuple(lives.get(name_of(member), member) for member in before)
            table, _, number = key.removeprefix(keys.FOUNDERS).partition("/")
            flat = given.of(PartitionId(int(table), int(number)))
            if flat is None or frozenset(now) & frozenset(before):
                continue
            never = Condition(f"{PRIMARY}{flat}", "absent")
            if self._view.get(never.key) is None:
                reached("partition founded again")
                operation = Operation(key, keys.encode_founders(now))
                yield Invoke((unchanged(key, held), never), (operation,))

    def _steps(self, catalog: Catalog) -> Iterator[tuple[PartitionId, Transition]]:
        return triggers.step(self._view, catalog, self._variant, altered_at=self._altered_at)

    async def _number(self, catalog: Catalog) -> bool:
        before = numbers(self._view)
        after = before.given(catalog)
        if after == before:
            return True
        as_read = unchanged(NUMBERS, self._view.get(NUMBERS))
        done = await self._propose(Invoke((as_read,), (Operation(NUMBERS, _encode(after)),)))
        return isinstance(done, InvokeResult) and done.success

    async def _do(self, steps: Sequence[tuple[PartitionId, Transition]]) -> bool:
        invokes = [self._founded(partition, each.invoke) for partition, each in steps]
        done = await self._propose(together(invokes))
        if not isinstance(done, InvokeResult):
            return False
        for (partition, transition), result in zip(steps, (done, *done.following), strict=True):
            self._tell(partition, transition.outcome(result))
        return True

    def _tell(self, partition: PartitionId, outcome: Outcome) -> None:
        if outcome is not Outcome.OUTDATED:
            state = keys.read(self._view, partition)
            aim = state.planned or state.pending or state.stable
            text = f"{outcome}: {' '.join(() if aim is None else aim.nodes)}"
            number = numbers(self._view).of(partition)
            self._events.add(events.REBALANCE_STAGE, text, partition=number)

    def _founded(self, partition: PartitionId, invoke: Invoke) -> Invoke:
        """``invoke``, which also says with which members the group begins, if it writes the first
        assignments of ``partition``.
        """
        written = {operation.key: operation.value for operation in invoke.success}
        first = written.get(partition.key(keys.STABLE))
        if first is None or self._view.get(partition.key(keys.STABLE)) is not None:
            # Not where its keys went meanwhile, with its table: they must not come back.
            return _conditioned(invoke, Condition(partition.key(keys.STABLE), "present"))
        lives = self._lives()
        members = tuple(lives[node] for node in keys.decode(first).nodes)
        operation = Operation(partition.key(keys.FOUNDERS), keys.encode_founders(members))
        return msgspec.structs.replace(invoke, success=(*invoke.success, operation))

    async def _propose(self, invoke: Invoke) -> object:
        return await self._group.propose(encode_invoke(invoke), WRITE_TIMEOUT_S)


def _conditioned(invoke: Invoke, condition: Condition) -> Invoke:
    """``invoke``, each branch of it under ``condition``, too."""
    otherwise = None if invoke.otherwise is None else _conditioned(invoke.otherwise, condition)
    conditions = (condition, *invoke.conditions)
    return msgspec.structs.replace(invoke, conditions=conditions, otherwise=otherwise)
