"""The parts of a node and their dependencies: every part is made here, once."""

from __future__ import annotations

import asyncio

from clusters.reference.node import declarations
from clusters.reference.node.config import Config
from clusters.reference.node.events import EventLog
from clusters.reference.node.groups.group import ChunkQueue, Restorable
from clusters.reference.node.groups.host import GroupHandle, RaftHost
from clusters.reference.node.groups.snapshot_manager import SnapshotManager
from clusters.reference.node.metastorage.metastorage import METASTORAGE, Metastorage, ObservedKeys
from clusters.reference.node.metastorage.metastorage_client import MetastorageClient
from clusters.reference.node.metastorage.metastorage_service import MetastorageService
from clusters.reference.node.node_report import Reporter
from clusters.reference.node.placement.lease_expiry import LeaseTable, origin_of
from clusters.reference.node.placement.lease_manager import LeaseManager, unfenced
from clusters.reference.node.placement.rendezvous import Assignment, Zone
from clusters.reference.node.replicas.manager import ReplicaManager
from clusters.reference.node.replicas.replica import Replica
from clusters.reference.node.rpc.coalesced_heartbeats import Heartbeats
from clusters.reference.node.rpc.link import Links
from clusters.reference.node.rpc.peers import Peers
from clusters.reference.node.rpc.request_router import RequestRouter
from clusters.reference.node.rpc.sessions import Sessions
from clusters.reference.node.runtime import Disk, Runtime
from clusters.reference.node.runtime.concurrency import Failure, Tasks
from clusters.reference.node.runtime.hybrid_clock import Hlc
from clusters.reference.node.storage.identity import Identity, member_of
from clusters.reference.node.storage.shared_log import SharedLog
from clusters.reference.node.storage.snapshot_files import SnapshotFiles
from clusters.reference.node.topology.bootstrap import Bootstrap, ZoneBootstrap
from clusters.reference.node.topology.reconfigurer import Reconfigurer
from clusters.reference.node.tx.primary_client import PrimaryClient
from clusters.reference.node.tx.routes import FixedRoutes
from clusters.reference.node.zone_components import ZonedParts


class Components:
    """The parts of one node, in the order in which each needs those before it.

    ::

        clients ──► Sessions ──► PrimaryClient ──► RequestRouter ──► Links ──► peers
        peers ────► Peers ─────► RequestRouter ──► Primary | MetastorageService
                      └────────► RaftHost ──► SharedLog, state machines
    """

    def __init__(
        self,
        *,
        config: Config,
        runtime: Runtime,
        disk: Disk,
        log: SharedLog,
        identity: Identity,
        clock: Hlc,
        event_log: EventLog,
    ) -> None:
        """``log`` is open, and ``identity`` is that of the directory on ``disk``."""
        self.config, self.runtime, self.identity = config, runtime, identity
        self.clock, self.event_log, self.log = clock, event_log, log
        self.member = member_of(config.node, identity.incarnation)
        self.origin = origin_of(config.node, runtime.boot)
        self.failure = Failure()
        self.tasks = Tasks(self.failure)
        self.metastorage = Metastorage(config.tuning.max_history)
        listened = declarations.listened()
        self.observed_keys = ObservedKeys(self.metastorage) if listened else None
        self.assignments: dict[int, Assignment] = {}
        self.bootstrap = Bootstrap(disk, identity, config.founders)
        self.links = Links(config.peers, clock, runtime.rare)
        self._compose_groups(SnapshotFiles(disk, config.tuning.piece_bytes))
        group = GroupHandle(self.host, METASTORAGE)
        self._compose_transactions(group)
        self._compose_placement(group)
        self._compose_topology()

    def restorable(self, group: str) -> Restorable:
        """The state machine that the snapshot of ``group`` is read into."""
        return self.metastorage if group == METASTORAGE else self.replicas.restored(group)

    def lives(self) -> dict[str, str]:
        """The members that the nodes are now, in the present lives of their directories, by name,
        this one included.
        """
        return {**self.links.lives(), self.config.node: self.member}

    def _compose_groups(self, files: SnapshotFiles) -> None:
        config, runtime, chunks = self.config, self.runtime, ChunkQueue()
        self.host = RaftHost(
            member=self.member,
            log=self.log,
            event_log=self.event_log,
            rng=runtime.random,
            tick_s=config.tick_ms / 1000,
            election_ticks=config.election_ticks,
            append_entries=config.append_entries,
            appends_ahead=config.appends_ahead,
            max_proposals=config.tuning.max_proposals,
            send=self.links.send_raft,
            batch=runtime.network.batch,
            chunks=chunks,
            failure=self.failure,
            bugs=frozenset(config.bugs),
            rare=runtime.rare,
        )
        self.snapshots = SnapshotManager(
            host=self.host,
            chunks=chunks,
            files=files,
            snapshot_bytes=config.snapshot_bytes,
            send=self.links.send_raft,
            rare=runtime.rare,
        )

    def _compose_transactions(self, group: GroupHandle) -> None:
        config, clock = self.config, self.clock
        replicas: dict[int, Replica] = {}
        self.leases = LeaseTable(
            node=config.node,
            origin=self.origin,
            clock=clock,
            monotonic_s=asyncio.get_running_loop().time,
            held=self.metastorage.get,
        )
        self.zoned = self._compose_zoned(group)
        self.router = RequestRouter(
            node=config.node,
            links=self.links,
            replicas=replicas,
            metastorage=MetastorageService(
                node=config.node,
                group=group,
                get=self.metastorage.get,
                read=self.metastorage.read,
                spawn=self.tasks.spawn,
                zoned=self.zoned,
            ),
            revision=lambda: self.metastorage.revision,
            log_of=lambda number: self.replicas.log_of(number),
            start_of=lambda number: self.replicas.start_of(number),
            restart=None if self.zoned is None else self.zoned.restart_replica,
            tasks=self.tasks,
            failure=self.failure,
        )
        self.routes = FixedRoutes(config.partitions) if self.zoned is None else self.zoned.routes
        self.primaries = PrimaryClient(
            route=self.leases.primary,
            ask=self.router.ask,
            notify=self.router.notify,
            removed=self.routes.removed,
            refused=None if self.zoned is None else self.zoned.refusals.of,
        )
        self.replicas = ReplicaManager(
            member=self.member,
            replicas=replicas,
            host=self.host,
            snapshots=self.snapshots,
            primaries=self.primaries,
            leases=self.leases,
            clock=clock,
            event_log=self.event_log,
            tasks=self.tasks,
            tuning=config.tuning,
            dropped=self.routes.dropped,
            may_be_reset=lambda number: self.zoned is not None,
            resets_itself=(lambda number: False)
            if self.zoned is None
            else self.zoned.highly_available,
        )

    def _compose_placement(self, group: GroupHandle) -> None:
        config = self.config
        client = MetastorageClient(
            store=self.metastorage,
            group=group,
            ask=self.router.ask,
            notify=self.router.notify,
        )
        if self.zoned is not None:
            self.zoned.connect(
                metastorage=client,
                host=self.host,
                replicas=self.replicas,
                assignments=self.assignments,
                tasks=self.tasks,
                connected=self.lives,
            )
        self.lease_manager = LeaseManager(
            node=config.node,
            origin=self.origin,
            leases=self.leases,
            metastorage=client,
            event_log=self.event_log,
            spawn=self.tasks.spawn,
            removed=self.routes.removed,
            fence=unfenced if self.zoned is None else self.zoned.fence,
            opened=self._finish,
        )

    def _finish(self, number: int) -> None:
        """Finish what the primary before has left: others wait for its locks."""
        replica = self.replicas.replicas.get(number)
        if replica is not None:
            replica.finisher.turn()

    def _compose_topology(self) -> None:
        config, runtime = self.config, self.runtime
        self.peers = Peers(
            node=config.node,
            incarnation=self.identity.incarnation,
            addresses=config.peers,
            network=runtime.network,
            rng=runtime.random,
            clock=self.clock,
            links=self.links,
            host=self.host,
            router=self.router,
            bootstrap=self.bootstrap,
            heartbeats=Heartbeats(self.host.groups),
        )
        self.zone = ZoneBootstrap(
            zone=Zone(
                partitions=config.partitions, replicas=config.replicas, members=config.members
            ),
            host=self.host,
            metastorage=self.metastorage,
            failure=self.failure,
        )
        self.reconfigurer = Reconfigurer(
            host=self.host,
            replicas=self.replicas,
            assignments=self.assignments,
            lives=self.lives,
            event_log=self.event_log,
            voters=None if self.zoned is None else self.zoned.voters,
        )
        self.sessions = Sessions(
            origin=self.origin,
            routes=self.routes,
            primaries=self.primaries,
            clock=self.clock,
            tuning=config.tuning,
            admin=Reporter(
                config=config,
                runtime=runtime,
                identity=self.identity,
                event_log=self.event_log,
                host=self.host,
                links=self.links,
                metastorage=self.metastorage,
                observed_keys=self.observed_keys,
                assignments=self.assignments,
                replicas=self.replicas,
                leases=self.leases,
                clock=self.clock,
                routes=self.routes,
                zoned=self.zoned,
            ).answer,
        )

    def _compose_zoned(self, group: GroupHandle) -> ZonedParts | None:
        config = self.config
        if config.zoned is None:
            return None
        return ZonedParts(
            config=config,
            zoned=config.zoned,
            origin=self.origin,
            boot=self.runtime.boot,
            incarnation=self.identity.incarnation,
            view=self.metastorage,
            group=group,
            leases=self.leases,
            links=self.links,
            clock=self.clock,
            # The router is made with what zones serve.
            ask=lambda node, body, limit_s: self.router.ask(node, body, limit_s),
            event_log=self.event_log,
        )
