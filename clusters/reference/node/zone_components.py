"""The parts of a node whose cluster has distribution zones, beside those that every node has.

At the leader of metastorage: topology, catalog, zones and rebalance, each a small loop over pure
functions of what metastorage holds. On every node: joining, leaving, and sending statements to that
leader.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping

from clusters.reference.node import events
from clusters.reference.node.availability.driver import ResetDriver
from clusters.reference.node.availability.majority import Refusals, standing
from clusters.reference.node.availability.manual_recovery import ManualRecovery
from clusters.reference.node.catalog.catalog import Catalog
from clusters.reference.node.catalog.nodes import Node
from clusters.reference.node.catalog.service import CatalogService, SqlClient
from clusters.reference.node.catalog.views import ClusterState
from clusters.reference.node.change_log import ChangeLog
from clusters.reference.node.config import Config, Zoned
from clusters.reference.node.groups.host import GroupHandle, RaftHost
from clusters.reference.node.metastorage.metastorage import (
    Change,
    Condition,
    Derived,
    Metastorage,
)
from clusters.reference.node.metastorage.metastorage_client import MetastorageClient
from clusters.reference.node.placement.lease_expiry import LeaseTable
from clusters.reference.node.placement.rendezvous import Assignment
from clusters.reference.node.rebalance import keys
from clusters.reference.node.rebalance.driver import NUMBERS, RebalanceDriver, numbers
from clusters.reference.node.rebalance.keys import PartitionId
from clusters.reference.node.rebalance.partition_driver import PartitionDriver
from clusters.reference.node.rebalance.transitions import Variant
from clusters.reference.node.replicas.manager import ReplicaManager
from clusters.reference.node.rpc.link import Links
from clusters.reference.node.runtime.concurrency import Tasks, together
from clusters.reference.node.runtime.hybrid_clock import Hlc
from clusters.reference.node.topology import logical
from clusters.reference.node.topology.logical import Ask, Joiner, TopologyService
from clusters.reference.node.topology.voters import MetastorageVoters, VotersClient
from clusters.reference.node.wire.messages import Join, Leave, PeerAnswer, RestartReplica
from clusters.reference.node.wire.reports import (
    AskChanges,
    AskSql,
    AskVoters,
    ChangeReport,
    SqlReport,
    VotersReport,
)
from clusters.reference.node.zones import driver as zone_driver
from clusters.reference.node.zones import manager as zone_manager
from clusters.reference.node.zones.data_nodes import of_profile
from clusters.reference.node.zones.driver import ZoneDriver
from clusters.reference.node.zones.table_routes import TableRoutes


class ZonedParts:
    """Topology, catalog, zones and rebalance of one node."""

    def __init__(
        self,
        *,
        config: Config,
        zoned: Zoned,
        origin: str,
        boot: str,
        incarnation: str,
        view: Metastorage,
        group: GroupHandle,
        leases: LeaseTable,
        links: Links,
        clock: Hlc,
        ask: Ask,
        event_log: events.EventLog,
    ) -> None:
        """``group`` is metastorage's, ``view`` what this node has applied of it; ``ask`` reaches
        other nodes, and this one.
        """
        self._zoned, self._view, self._group, self._links = zoned, view, group, links
        self._leases, self._node, self._events = leases, config.node, event_log
        self._ask = ask
        self._lives = Derived(view, logical.LIVES, logical.lives)
        self._numbers = Derived(view, NUMBERS, numbers)
        self.routes = TableRoutes(view, self._has_assignments)
        node = Node(name=config.node, attributes=zoned.attributes, profiles=zoned.profiles)
        self._join = Join(node, origin, incarnation, zoned.tag, zoned.version)
        self._changes = ChangeLog(
            boot=boot, store=view, monotonic_s=asyncio.get_running_loop().time
        )
        self._topology = TopologyService(
            node=config.node,
            zoned=zoned,
            names=config.members,
            view=view,
            group=group,
            voters=lambda: group.voters,
            leases=leases,
            connected=links.reachable,
            resume=lambda down_since: self._zones.resume(down_since),
            restart=lambda names: self._resets.restart(names),
            event_log=event_log,
            monotonic_s=asyncio.get_running_loop().time,
        )
        self._zones = ZoneDriver(
            view=view,
            group=group,
            clock=clock,
            topology=lambda: logical.topology(view),
            settled=lambda: self._topology.settled,
            event_log=event_log,
        )
        self._rebalance = RebalanceDriver(
            view=view,
            group=group,
            variant=Variant(zoned.rebalance),
            lives=self._lives,
            settled=lambda: self._topology.settled,
            event_log=event_log,
        )
        self.refusals = Refusals(view)
        self._resets = ResetDriver(
            view=view,
            group=group,
            variant=Variant(zoned.rebalance),
            clock=clock,
            leases=leases,
            topology=lambda: logical.topology(view),
            connected=links.reachable,
            settled=lambda: self._topology.settled,
            ask=ask,
            event_log=event_log,
            phase2=zoned.phase2,
        )
        self._recovery = ManualRecovery(
            view=view, resets=self._resets.of_operators(), ask=ask, serving=lambda: group.serving
        )
        self._catalog = CatalogService(
            node=config.node,
            view=view,
            group=group,
            state=self._state,
            warnings=lambda catalog, statement: zone_driver.warnings(
                catalog, statement, logical.topology(view)
            ),
            recover=self._recovery.execute,
            event_log=event_log,
        )

    def connect(
        self,
        *,
        metastorage: MetastorageClient,
        host: RaftHost,
        replicas: ReplicaManager,
        assignments: dict[int, Assignment],
        tasks: Tasks,
        connected: Callable[[], Mapping[str, str]],
    ) -> None:
        """``connected``: the members that the nodes in reach are now, by name. To be called once,
        before ``run``.
        """
        self._partitions = PartitionDriver(
            node=self._node,
            variant=Variant(self._zoned.rebalance),
            phase2=self._zoned.phase2,
            view=self._view,
            leader=metastorage,
            lives=self._lives,
            numbers=self._numbers,
            grants=self._leases.mine,
            host=host,
            replicas=replicas,
            assignments=assignments,
            ask=self._ask,
            event_log=self._events,
            change_log=self._changes,
            tasks=tasks,
        )
        leader: Callable[[], str | None] = lambda: self._group.leader  # noqa: E731
        self._sql = SqlClient(leader=leader, ask=self._ask)
        self._change_voters = VotersClient(leader=leader, ask=self._ask)
        self.voters = MetastorageVoters(
            node=self._node,
            host=host,
            connected=connected,
            joined=lambda: {m.name: m.member for m in logical.logical(self._view)},
            event_log=self._events,
        )
        self._joiner = Joiner(
            join=self._join,
            view=self._view,
            leases=self._leases,
            leader=leader,
            connected=self._links.reachable,
            ask=self._ask,
        )

    def highly_available(self, number: int) -> bool:
        """Whether the partition may be reset without being asked for."""
        partition = numbers(self._view).partition(number)
        return partition is not None and self._view.get(partition.key(keys.CHAIN)) is not None

    def fence(self, number: int, generation: int) -> tuple[Condition, ...] | None:
        """What must be so for a grant of the partition in ``generation``: no reset has come since,
        and none is under way. ``None`` where that is known not to be so.
        """
        partition = numbers(self._view).partition(number)
        if partition is None:
            return None
        state = keys.read(self._view, partition)
        forced = state.pending is not None and state.pending.force
        # What was acknowledged before stable says so would be in no link of the chain.
        if state.generation != generation or forced:
            return None
        key = partition.key(keys.GENERATION)
        if generation == 0:
            return (Condition(key, "absent"),)
        return (Condition(key, "value", value=keys.encode_number(generation)),)

    async def serve(self, body: Join | Leave | AskSql | AskVoters) -> PeerAnswer:
        """Answer as the leader of metastorage, or refuse."""
        if isinstance(body, AskVoters):
            return await self.voters.serve(body)
        if isinstance(body, AskSql):
            return await self._catalog.serve(body)
        return await self._topology.serve(body)

    async def restart_replica(self, body: RestartReplica) -> PeerAnswer:
        """Stop the replica of a partition here and start it again."""
        return await self._partitions.restart(body)

    async def execute(self, question: AskSql) -> SqlReport:
        """The answer to a statement, by the leader of metastorage."""
        return await self._sql.execute(question)

    async def change_voters(self, question: AskVoters) -> VotersReport:
        """Change the voters of metastorage, by its leader."""
        return await self._change_voters.execute(question)

    def changes(self, question: AskChanges) -> ChangeReport:
        """Changes of assignments and topology that this node has applied."""
        return self._changes.since(question)

    def observed(self, change: Change) -> None:
        """A revision of metastorage was applied."""
        self.routes.observed(change)
        self.refusals.observed(change)
        self._topology.observed(change)
        self._zones.observed(change)
        self._rebalance.observed(change)
        self._resets.observed(change)
        if logical.LOGICAL in change.entries:
            self._recovery.topology_changed()
        self._partitions.observed(change)

    def tick(self) -> None:
        """Once a tick of the raft groups."""
        self._topology.tick()
        self._zones.tick()
        self._rebalance.tick()
        self._resets.tick()
        self._partitions.tick()

    async def run(self) -> None:
        """Join and drive until cancelled. Raises ``JoinRefused``."""
        await together(
            self._topology.run(),
            self._joiner.run(),
            self._zones.run(),
            self._rebalance.run(),
            self._resets.run(),
        )

    async def leave(self) -> None:
        """This node stops in order."""
        await self._joiner.leave()

    def _has_assignments(self, number: int) -> bool:
        partition = self._numbers().partition(number)
        return partition is not None and self._view.get(partition.key(keys.STABLE)) is not None

    def _state(self, catalog: Catalog) -> ClusterState:
        """What system views tell."""
        data_nodes: dict[str, tuple[str, ...]] = {}
        assignments: dict[tuple[str, int], dict[str, tuple[str, ...]]] = {}
        standings: dict[tuple[str, int], tuple[str, int]] = {}
        topology = logical.topology(self._view)
        alive = tuple(node.name for node in topology.nodes)
        for name, table in catalog.tables.items():
            zone = catalog.zones[table.zone]
            held = zone_manager.read(self._view, zone.id)
            if held is not None:
                nodes = of_profile(held.latest, table.profile)
                data_nodes[name] = tuple(node.name for node in nodes)
            for number in range(zone.partitions):
                state = keys.read(self._view, PartitionId(table.id, number))
                kinds = (
                    ("stable", state.stable),
                    ("pending", state.pending),
                    ("planned", state.planned),
                )
                assignments[name, number] = {k: a.nodes for k, a in kinds if a is not None}
                if state.stable is not None:
                    word = standing(state, alive, logical.lives(self._view)).name
                    standings[name, number] = word, state.generation
        return ClusterState(
            catalog=catalog,
            data_nodes=data_nodes,
            assignments=assignments,
            standings=standings,
            topology=topology.nodes,
            topology_revision=topology.revision,
            physical=logical.physical(self._view),
        )
