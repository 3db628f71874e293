"""A node, put together: log, groups, links, metastorage, partitions, clients."""

from __future__ import annotations

import asyncio
import functools
import logging
from collections.abc import Coroutine

from clusters.reference.node import bugs, events
from clusters.reference.node import node_report as reports
from clusters.reference.node.config import Config, check
from clusters.reference.node.groups.group import Group, StateMachine
from clusters.reference.node.groups.host import RaftHost
from clusters.reference.node.groups.snapshot_manager import SnapshotManager
from clusters.reference.node.metastorage.metadesk import MetaDesk
from clusters.reference.node.metastorage.store import Change, Metastorage, encode_invoke
from clusters.reference.node.placement.assignments import (
    ZONE,
    Assignment,
    Zone,
    assignments,
    first_assignments,
    zone_of,
)
from clusters.reference.node.placement.lease_manager import LeaseManager
from clusters.reference.node.placement.lease_table import RENEW_S, LeaseTable, origin_of
from clusters.reference.node.raft import Message
from clusters.reference.node.rpc.heartbeats import Heartbeats
from clusters.reference.node.rpc.peers import Peers, Reply
from clusters.reference.node.rpc.request_router import RequestRouter
from clusters.reference.node.rpc.sessions import Sessions
from clusters.reference.node.runtime import DiskError, Listener, Runtime
from clusters.reference.node.runtime.clock import Hlc
from clusters.reference.node.runtime.files import VolatileDisk
from clusters.reference.node.runtime.tasks import together
from clusters.reference.node.storage.identity import load, member_of, name_of
from clusters.reference.node.storage.shared_log import SharedLog
from clusters.reference.node.storage.snapshot_files import SnapshotFiles
from clusters.reference.node.topology.membership import Bootstrap, Reconfigurer
from clusters.reference.node.tx import commands
from clusters.reference.node.tx.finisher import TEND_S, Finisher
from clusters.reference.node.tx.partition import Partition
from clusters.reference.node.tx.primary import Primary
from clusters.reference.node.tx.primary_client import PrimaryClient
from clusters.reference.node.wire.messages import PeerBody

METASTORAGE = "metastorage"
METASTORAGE_LIMIT_S = 5.0  # for a proposal of our own; then it is made again
HAND_OVER_LIMIT_S = 0.5  # for a graceful stop to hand its partitions over

log = logging.getLogger("node")


class NodeFailure(Exception):
    """The node can't go on; the text says why."""


class Replica:
    """This node's replica of one partition."""

    def __init__(self, group: Group, partition: Partition, primary: Primary) -> None:
        self.group, self.partition, self.primary = group, partition, primary


class Node:
    """One node. ``run`` is its whole life."""

    def __init__(self, config: Config, runtime: Runtime) -> None:
        """Touches nothing yet. Raises ``ConfigError``."""
        check(config)
        self.config, self.runtime = config, runtime
        self.events = events.EventLog(boot=runtime.boot, wall_ns=runtime.wall_ns)
        self._disk = VolatileDisk(runtime.disk) if config.power_loss else runtime.disk
        self.log = SharedLog(self._disk, fsync="no-fsync" not in config.bugs)
        self.metastorage = Metastorage()
        self.assignments: dict[int, Assignment] = {}
        self._lease_manager: LeaseManager | None = (
            None  # from when it is known who founded the cluster
        )
        self.replicas: dict[int, Replica] = {}
        self._partitions: dict[str, Partition] = {}  # restored, and not yet started
        self._finishers: dict[int, Finisher] = {}
        self._tasks: dict[asyncio.Task[None], None] = {}
        self._proposing = False
        self._out_of_time: str | None = None  # why this node must lead nothing

    async def run(self) -> None:
        """Recover, open the ports, serve until cancelled (a graceful stop).

        Raises ``CorruptLog``, ``DiskError``, ``OSError`` (a port can't be had), ``NodeFailure``,
        ``InvariantBroken``.
        """
        bugs.switch_on(self.config.bugs)
        try:
            await self._recover()
            await self._serve()
        except DiskError as error:
            self.events.add(events.STORAGE_ERROR, str(error))
            raise

    async def _recover(self) -> None:
        runtime, config = self.runtime, self.config
        monotonic_s = asyncio.get_running_loop().time
        self.clock = Hlc(wall_ns=runtime.wall_ns, monotonic_s=monotonic_s)
        self._origin = origin_of(config.node, runtime.boot)
        self.leases = LeaseTable(
            node=config.node,
            origin=self._origin,
            clock=self.clock,
            monotonic_s=monotonic_s,
            held=self.metastorage.get,
        )
        self._router = RequestRouter(
            node=config.node,
            primaries=lambda number: (
                self.replicas[number].primary if number in self.replicas else None
            ),
            spawn=self._spawn,
            under_way=lambda: len(self._tasks),
            fail=lambda error: self.host.fail(error),
        )
        self.primaries = PrimaryClient(
            route=self.leases.primary, ask=self._router.ask, notify=self._router.notify
        )
        identity = await load(self._disk, config.node, runtime.random)
        self.incarnation = identity.incarnation
        self.member = member_of(config.node, identity.incarnation)
        self._bootstrap = Bootstrap(self._disk, identity, config.members)
        await self.log.open()
        if self.log.torn is not None:
            self.events.add(events.TORN_TAIL, str(self.log.torn))
        self.host = RaftHost(
            member=self.member,
            log=self.log,
            event_log=self.events,
            rng=runtime.random,
            tick_s=config.tick_ms / 1000,
            election_ticks=config.election_ticks,
            append_entries=config.append_entries,
            appends_ahead=config.appends_ahead,
            bugs=frozenset(config.bugs),
            rare=runtime.rare,
        )
        self.peers = Peers(
            node=config.node,
            incarnation=identity.incarnation,
            addresses=config.peers,
            network=runtime.network,
            rng=runtime.random,
            clock=self.clock,
            local=self,
            groups=Heartbeats(self.host.groups),
            rare=runtime.rare,
        )
        self._router.links = self.peers.links
        self.host.on_send, self.host.batch = self.peers.send_raft, runtime.network.batch
        self.snapshots = SnapshotManager(
            host=self.host,
            snapshots=SnapshotFiles(self._disk),
            snapshot_bytes=config.snapshot_bytes,
            send=self.peers.send_raft,
            rare=runtime.rare,
        )
        await self.snapshots.load(self._machine)

    def _machine(self, group: str) -> StateMachine:
        """The state machine that ``group`` of the log is restored to."""
        if group == METASTORAGE:
            return self.metastorage
        return self._partitions.setdefault(group, Partition())

    async def _serve(self) -> None:
        config, network = self.config, self.runtime.network
        sessions = Sessions(
            origin=self._origin,
            partitions=config.partitions,
            primaries=self.primaries,
            clock=self.clock,
            admin=functools.partial(reports.answer, self),
        )
        listeners: list[Listener] = []
        try:
            for bind, serve in (
                (config.peer_bind, self.peers.serve),
                (config.client_bind, sessions.serve),
            ):
                listeners.append(await network.listen(bind.host, bind.port, serve))
            log.info("listening: peers on %s, clients on %s", config.peer_bind, config.client_bind)
            self.events.add(
                events.NODE_STARTED, f"{config.node} started, incarnation {self.incarnation}"
            )
            await self._work()
        finally:
            self.events.add(events.NODE_STOPPED, f"{config.node} stops")
            self.host.stop()
            for listener in listeners:
                listener.close()

    async def _work(self) -> None:
        """Groups and links, until one fails or the node is told to stop."""
        work = asyncio.ensure_future(together(self._lead_a_life(), self.peers.run()))
        try:
            await asyncio.wait({work})
            work.result()
        except asyncio.CancelledError:
            await self._hand_over()
            raise
        finally:
            for task in (work, *self._tasks):
                task.cancel()
            await asyncio.gather(work, return_exceptions=True)

    async def _hand_over(self) -> None:
        """A graceful stop releases what it was granted, so that successors need not wait."""
        if self._lease_manager is None:
            return
        primaries = tuple(replica.primary for replica in self.replicas.values())
        try:
            async with asyncio.timeout(HAND_OVER_LIMIT_S):
                await self._lease_manager.release_all(primaries)
        except TimeoutError:
            log.info("stopped before every partition was handed over")

    async def _lead_a_life(self) -> None:
        """Wait until it is known who founded the cluster, then run the groups."""
        await self._bootstrap.settle()
        self.peers.ping_all()
        # Watched from here on, so that what is applied from now is seen, from revision 1.
        self.metastorage.watch("", self._changed)
        founders = self._bootstrap.founders
        self._meta = self.host.open(
            METASTORAGE,
            partition=None,
            founders=founders if self.member in founders else (),
            machine=self.metastorage,
            restoring=self.snapshots.loaded(METASTORAGE),
        )
        self._reconfigurer = Reconfigurer(
            host=self.host,
            metastorage=self._meta,
            assignments=self.assignments,
            partitions=lambda: {p: replica.group for p, replica in self.replicas.items()},
            lives=lambda: {**self.peers.lives(), self.config.node: self.member},
            event_log=self.events,
        )
        desk = MetaDesk(
            node=self.config.node,
            group=self._meta,
            propose=lambda data, limit_s: self.host.ask(self._meta, data, limit_s),
            ask=self._router.ask,
            notify=self._router.notify,
            spawn=self._spawn,
            held=self.metastorage.get,
        )
        self._router.desk = desk
        self._lease_manager = LeaseManager(
            node=self.config.node,
            origin=self._origin,
            leases=self.leases,
            metastorage=desk,
            event_log=self.events,
            spawn=self._spawn,
        )
        self.host.on_tick = self._tick
        await together(self.host.run(), self.snapshots.run(), self._tend_forever())

    def _spawn(self, work: Coroutine[None, None, None]) -> None:
        """Run ``work`` beside everything else; what it raises stops the node."""
        task = asyncio.get_running_loop().create_task(work)
        self._tasks[task] = None
        task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._tasks.pop(task, None)
        if not task.cancelled() and (error := task.exception()) is not None:
            self.host.fail(error)

    # Requests, of peers and of our own.

    def raft(self, messages: tuple[tuple[str, Message], ...]) -> None:
        """Messages for raft groups."""
        self.host.step(messages)

    def founders(self) -> tuple[str, ...]:
        """Who founded the cluster, once that is known."""
        return self._bootstrap.founders

    def heard(self, peer: str, incarnation: str, founders: tuple[str, ...]) -> None:
        """What ``peer``, in this life, knows of a cluster."""
        self._bootstrap.heard(peer, incarnation, founders)

    def request(self, body: PeerBody, reply: Reply) -> None:
        """A request of a peer."""
        self._router.request(body, reply)

    def _tick(self) -> None:
        self.peers.heartbeat(self.host.ticks)
        self._step_down()
        self._seed_metastorage()
        self._reconfigurer.tick()
        if self._lease_manager is None:
            return
        self._lease_manager.watch_lease()
        for replica in self.replicas.values():
            self._lease_manager.reconcile(replica.primary, replica.group)

    def _step_down(self) -> None:
        """Lead nothing while this node's clock and those of most others can't follow each other:
        whatever it led, nobody could use, and its lease would put its successors' clocks ahead.
        """
        before, self._out_of_time = self._out_of_time, self.peers.out_of_time()
        if self._out_of_time is not None:
            self.host.step_down()
            if before is None:
                text = f"{self.config.node} leads nothing: {self._out_of_time}"
                self.events.add(events.LEASE_LOST, text)
        elif before is not None:
            log.info("the clock fits again: %s may lead", self.config.node)

    async def _tend_forever(self) -> None:
        while self._lease_manager is not None:
            if self._out_of_time is None:
                self._lease_manager.renew()
            for finisher in self._finishers.values():
                finisher.tend()
            await asyncio.sleep(min(RENEW_S, TEND_S))

    # Metastorage.

    def _seed_metastorage(self) -> None:
        """The leader of metastorage writes the assignments, once."""
        if self.assignments or self._proposing or not self._meta.serving:
            return

        def done(_: object) -> None:
            self._proposing = False

        self._proposing = True
        members = {name_of(member): member for member in self._meta.raft.configuration.voters}
        data = encode_invoke(first_assignments(self._zone(), members))
        self.host.propose(self._meta, data, METASTORAGE_LIMIT_S, done)

    def _changed(self, change: Change) -> None:
        """A revision of metastorage was applied."""
        self.leases.changed(change)
        if ZONE in change.entries:
            self._check_zone()
        changed = assignments(change.entries)
        if not changed:
            return
        self.assignments.update(changed)
        text = f"assignments of {len(changed)} partitions at revision {change.revision}"
        self.events.add(events.ASSIGNMENTS_CHANGED, text)
        for partition, assignment in changed.items():
            if self.member in assignment.members and partition not in self.replicas:
                self._start_partition(partition, assignment)

    def _zone(self) -> Zone:
        config = self.config
        return Zone(partitions=config.partitions, replicas=config.replicas, members=config.members)

    def _check_zone(self) -> None:
        if (zone := zone_of(self.metastorage)) != (mine := self._zone()):
            why = f"the configuration says {mine}, the cluster is {zone}"
            self.host.fail(NodeFailure(why))

    def _start_partition(self, number: int, assignment: Assignment) -> None:
        name = f"p{number}"
        partition = self._partitions.pop(name, None) or Partition()
        founders = assignment.founders if self.member in assignment.founders else ()
        group = self.host.open(
            name,
            partition=number,
            founders=founders,
            machine=partition,
            restoring=self.snapshots.loaded(name),
        )

        async def propose(command: commands.Command, limit_s: float) -> object:
            return await self.host.ask(group, commands.encode(command), limit_s)

        primary = Primary(
            number=number,
            partition=partition,
            group=group,
            propose=propose,
            clock=self.clock,
            leases=self.leases,
        )
        self.replicas[number] = Replica(group, partition, primary)
        self._finishers[number] = Finisher(
            primary=primary,
            primaries=self.primaries,
            clock=self.clock,
            leases=self.leases,
            spawn=self._spawn,
        )
        text = f"starts its replica, log up to {group.raft.last_index}, {group.raft.configuration}"
        self.events.add(events.START_DECISION, text, partition=number, term=group.raft.term)
