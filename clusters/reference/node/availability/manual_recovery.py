"""Recovery of partitions that an operator asks for, at the leader of metastorage: resets of those
that have lost their majority, in either mode, and restarts of replicas, which may be without
what is on their disks (Ignite 3: ``recovery partitions reset``, ``recovery partitions restart
[--with-cleanup]``).

A reset takes the way of an automatic one, with its fence and its generation, and has the number of
replicas restored beside it; a partition of which no copy is left begins anew, empty, where the
statement names its number. What could only cost is refused by a code.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from functools import partial

import msgspec

from clusters.reference.node.availability.majority import Standing, standing
from clusters.reference.node.availability.resets import AGAIN_S, Resets
from clusters.reference.node.catalog.catalog import Catalog, Table
from clusters.reference.node.catalog.options import Zone
from clusters.reference.node.catalog.statements import (
    Recovery,
    ResetPartitions,
    RestartPartitions,
)
from clusters.reference.node.markers import reached
from clusters.reference.node.metastorage.metastorage import View
from clusters.reference.node.rebalance import decisions, keys
from clusters.reference.node.rebalance.driver import numbers
from clusters.reference.node.rebalance.keys import PartitionId, PartitionState
from clusters.reference.node.runtime.concurrency import side_by_side
from clusters.reference.node.topology.logical import LOGICAL, lives, logical
from clusters.reference.node.tx.primary_client import Ask
from clusters.reference.node.wire import error_table as codes
from clusters.reference.node.wire.messages import Ack, Failed, PeerAnswer, RestartReplica
from clusters.reference.node.wire.reports import SqlReport
from clusters.reference.node.zones import manager as zone_manager
from clusters.reference.node.zones.affinity import FUNCTIONS
from clusters.reference.node.zones.data_nodes import of_profile

MAX_AT_ONCE = 32  # partitions
RESTART_TIMEOUT_S = 3.0  # for one replica to stop and start, its snapshot read anew
CLEANUP_TIMEOUT_S = 5.0  # and before that for the others to have all that it has
RESET_COLUMNS = ("TABLE_NAME", "PARTITION_ID", "GENERATION")
RESTART_COLUMNS = ("TABLE_NAME", "PARTITION_ID", "NODE_NAME")


class Named(msgspec.Struct, frozen=True):
    """A partition as a statement names it, and what metastorage holds of it."""

    table: Table
    zone: Zone
    state: PartitionState

    @property
    def number(self) -> int:
        """Its number in its table."""
        return self.state.partition.number

    def __str__(self) -> str:
        return f"partition {self.number} of {self.table.name}"


class ManualRecovery:
    """Carries out statements on partitions while this node leads metastorage."""

    def __init__(
        self, *, view: View, resets: Resets, ask: Ask, serving: Callable[[], bool]
    ) -> None:
        """``resets`` are its own, apart from those of timers; ``ask`` reaches other nodes, and this
        one; ``serving``: whether this node leads metastorage.
        """
        self._view, self._resets, self._ask, self._serving = view, resets, ask, serving

    def topology_changed(self) -> None:
        """A node that has come may have what was missing."""
        self._resets.topology_changed()

    async def execute(
        self, statement: Recovery, catalog: Catalog, limit_s: float
    ) -> SqlReport | Failed:
        """Carry ``statement`` out, within ``limit_s``: a row for each partition that was reset, or
        replica that was started again. Raises ``SqlError`` where its zone or table is unknown.
        """
        found = self._named(statement, catalog)
        if isinstance(found, Failed):
            return found
        if isinstance(statement, ResetPartitions):
            return await self._reset(found, limit_s, chosen=bool(statement.numbers))
        return await self._restart(found, statement, limit_s)

    def _named(self, statement: Recovery, catalog: Catalog) -> list[Named] | Failed:
        if statement.kind == "ZONE":
            zone = catalog.zone(statement.name)
            tables: tuple[Table, ...] = catalog.group(zone.name)
        else:
            table = catalog.table(statement.name)
            zone, tables = catalog.zones[table.zone], (table,)
        outside = [number for number in statement.numbers if not 0 <= number < zone.partitions]
        if outside:
            name = ".".join(statement.name.parts)
            text = f"{statement.kind.lower()} {name} has partitions 0 to {zone.partitions - 1}"
            return Failed(codes.NO_PARTITION, f"{text} (got {outside[0]})")
        chosen = statement.numbers or range(zone.partitions)
        states = (
            (table, keys.read(self._view, PartitionId(table.id, number)))
            for table in tables
            for number in chosen
        )
        return [Named(table, zone, state) for table, state in states if state.stable is not None]

    # -- resets

    async def _reset(
        self, found: Sequence[Named], limit_s: float, *, chosen: bool
    ) -> SqlReport | Failed:
        """Reset those that have lost their majority; of partitions that were ``chosen`` by their
        numbers each must have lost it. One that has no copy left is reset only if it was chosen.
        """
        deadline_s = asyncio.get_running_loop().time() + limit_s
        by_standing = {each: self._standing(each.state) for each in found}
        whole = [each for each, held in by_standing.items() if held is Standing.MAJORITY]
        lost = [each for each, held in by_standing.items() if held is Standing.LOST]
        lacking = [each for each in found if each not in whole and (chosen or each not in lost)]
        if whole and (chosen or len(whole) == len(found)):
            reached("manual reset refused, a majority lives")
            what = f"{whole[0]} has" if chosen else "all of its partitions have"
            return Failed(codes.MAJORITY_LIVES, f"{what} a majority that lives")
        if not lacking:
            reached("manual reset refused, what is lost was not named")
            text = f"no copy of {lost[0]} is left: named by its number it begins anew, empty"
            return Failed(codes.NO_COPY, text)
        left = await self._until_reset(lacking, deadline_s, anew=chosen)
        if left:
            cause = self._cause(left[0])
            return Failed(codes.RESET_WAITS, f"{left[0]} waits: {cause}")
        rows = tuple((e.table.name, e.number, self._now(e).generation) for e in lacking)
        return SqlReport(columns=RESET_COLUMNS, rows=rows)

    async def _until_reset(
        self, lacking: Sequence[Named], deadline_s: float, *, anew: bool
    ) -> list[Named]:
        """Try until all of ``lacking`` are reset, or time is up: those that are not."""
        left = list(lacking)
        while left and self._serving():
            acts = [partial(self._reset_one, each, anew=anew) for each in left]
            done = await side_by_side(acts, MAX_AT_ONCE)
            left = [each for each, over in zip(left, done, strict=True) if not over]
            if not left or asyncio.get_running_loop().time() >= deadline_s:
                break
            reached("manual reset to be tried again")
            await asyncio.sleep(AGAIN_S)
        return left

    async def _reset_one(self, named: Named, *, anew: bool) -> bool:
        state = self._now(named)
        # Another one, of a timer or of an operator, came first.
        if state.generation > named.state.generation or not self._lacks(state):
            return True
        judged, alive = self._view.get(LOGICAL), self._alive()
        fresh = self._fresh(named, state, alive)
        return await self._resets.reset(state, alive, judged, fresh=fresh, anew=anew)

    def _fresh(
        self, named: Named, state: PartitionState, alive: tuple[str, ...]
    ) -> tuple[str, ...]:
        """The data nodes that are to have the partition beside those that are left of it, so that
        there are as many replicas as its zone asks for.
        """
        held = zone_manager.read(self._view, named.zone.id)
        nodes = () if held is None else of_profile(held.latest, named.table.profile)
        there = [node.name for node in nodes if node.name in alive]
        sets = (state.stable, state.pending)
        left = {n for each in sets if each is not None for n in each.nodes if n in alive}
        wanted = FUNCTIONS[named.zone.affinity](named.number, there, named.zone.replicas)
        lacking = max(named.zone.replicas - len(left), 0)
        return tuple(node for node in wanted if node not in left)[:lacking]

    def _cause(self, named: Named) -> str:
        if not self._serving():
            return "the leadership of metastorage was lost"
        number = numbers(self._view).of(named.state.partition)
        told = "" if number is None else self._resets.cause(number)
        return told or "the lease of its primary before may hold yet"

    def _lacks(self, state: PartitionState) -> bool:
        return self._standing(state) is not Standing.MAJORITY

    def _standing(self, state: PartitionState) -> Standing:
        return standing(state, self._alive(), lives(self._view))

    def _now(self, named: Named) -> PartitionState:
        return keys.read(self._view, named.state.partition)

    def _alive(self) -> tuple[str, ...]:
        return tuple(member.name for member in logical(self._view))

    # -- restarts

    async def _restart(
        self, found: Sequence[Named], statement: RestartPartitions, limit_s: float
    ) -> SqlReport | Failed:
        """Start replicas again, those of one node after those of another: a partition keeps its
        majority meanwhile, if it has one. A cleanup is of one node, which erases no copy that its
        partition needs.
        """
        loop = asyncio.get_running_loop()
        deadline_s = loop.time() + limit_s
        alive, on = self._alive(), self._holders(found)
        for node in statement.nodes:
            if node not in alive:
                return Failed(codes.UNREACHABLE, f"{node} is not in the logical topology")
            if node not in on:
                return Failed(codes.NO_REPLICA, f"{node} holds none of these partitions")
        rows: list[tuple[int | str | None, ...]] = []
        for node in statement.nodes or tuple(name for name in sorted(on) if name in alive):
            if loop.time() >= deadline_s:
                return Failed(codes.REPLICA_BUSY, f"no time was left for the replicas on {node}")
            acts = [partial(self._restart_one, node, each, statement.cleanup) for each in on[node]]
            answers = await side_by_side(acts, MAX_AT_ONCE)
            for each, answer in zip(on[node], answers, strict=True):
                if not isinstance(answer, Ack):
                    return _told(answer, f"{node}, {each}")
                rows.append((each.table.name, each.number, node))
        return SqlReport(columns=RESTART_COLUMNS, rows=tuple(rows))

    def _holders(self, found: Sequence[Named]) -> dict[str, list[Named]]:
        """The partitions that each node is to run."""
        on: dict[str, list[Named]] = {}
        for each in found:
            for node in sorted(decisions.wanted(each.state)):
                on.setdefault(node, []).append(each)
        return on

    async def _restart_one(self, node: str, named: Named, cleanup: bool) -> PeerAnswer:
        number = numbers(self._view).of(named.state.partition)
        if number is None:
            return Failed(codes.NO_TABLE, f"{named.table.name} is dropped")
        limit_s = CLEANUP_TIMEOUT_S if cleanup else RESTART_TIMEOUT_S
        return await self._ask(node, RestartReplica(number, cleanup), limit_s)


def _told(answer: PeerAnswer, what: str) -> Failed:
    """The refusal of a restart; one whose answer was lost may have been done, which does no harm
    twice.
    """
    failed = answer if isinstance(answer, Failed) else Failed(codes.REPLICA_BUSY, "no answer")
    lost = failed.code in (codes.PEER_LOST, codes.LOST)
    code = codes.UNREACHABLE if lost else failed.code
    return Failed(code, f"{what}: {failed.message}")
