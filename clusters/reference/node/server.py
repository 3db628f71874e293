"""A node, put together: log, groups, links, metastorage, partitions, clients."""

from __future__ import annotations

import asyncio
import logging

from clusters.reference.node import codes, events
from clusters.reference.node.config import Config, check
from clusters.reference.node.groups import Group, Host
from clusters.reference.node.members import member_of, name_of
from clusters.reference.node.membership import Founding, Keeper, names_of
from clusters.reference.node.metastorage.assignments import (
    ZONE,
    Assignment,
    Zone,
    assignments,
    first_assignments,
    zone_of,
)
from clusters.reference.node.metastorage.store import Change, Metastorage, encode_invoke
from clusters.reference.node.peers import Body, Peers, Reply
from clusters.reference.node.raft import Message
from clusters.reference.node.routes import Routes
from clusters.reference.node.runtime import DiskError, Listener, Runtime
from clusters.reference.node.runtime.volatile import VolatileDisk
from clusters.reference.node.saving import Saver
from clusters.reference.node.sessions import Sessions
from clusters.reference.node.storage.identity import load
from clusters.reference.node.storage.log import SharedLog
from clusters.reference.node.storage.snapshots import Snapshots
from clusters.reference.node.tasks import together
from clusters.reference.node.tx.partition import Partition, encode_command
from clusters.reference.node.wire.messages import (
    AdminBody,
    AskEvents,
    AskStatus,
    Committed,
    CommitTx,
    Failed,
    NodeReport,
    Ping,
    Read,
    ReadKey,
)

METASTORAGE = "metastorage"
METASTORAGE_LIMIT_S = 5.0  # for a proposal of our own; then it is made again

log = logging.getLogger("node")


class NodeFailure(Exception):
    """The node can't go on; the text says why."""


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
        self.routes = Routes(config.partitions, self._partition_group)
        self.assignments: dict[int, Assignment] = {}
        self._partitions: dict[int, tuple[Group, Partition]] = {}
        self._proposing = False

    async def run(self) -> None:
        """Recover, open the ports, serve until cancelled (a graceful stop).

        Raises ``CorruptLog``, ``DiskError``, ``OSError`` (a port can't be had), ``NodeFailure``,
        ``InvariantBroken``.
        """
        try:
            await self._recover()
            await self._serve()
        except DiskError as error:
            self.events.add(events.STORAGE_ERROR, str(error))
            raise

    async def _recover(self) -> None:
        runtime, config = self.runtime, self.config
        identity = await load(self._disk, config.node, runtime.random)
        self._incarnation = identity.incarnation
        self.member = member_of(config.node, identity.incarnation)
        self._founding = Founding(self._disk, identity, config.members)
        await self.log.open()
        if self.log.torn is not None:
            self.events.add(events.TORN_TAIL, str(self.log.torn))
        self.host = Host(
            member=self.member,
            log=self.log,
            event_log=self.events,
            rng=runtime.random,
            tick_s=config.tick_ms / 1000,
            election_ticks=config.election_ticks,
            bugs=frozenset(config.bugs),
        )
        self.peers = Peers(
            node=config.node,
            incarnation=identity.incarnation,
            addresses=config.peers,
            network=runtime.network,
            rng=runtime.random,
            local=self,
        )
        self.host.on_send = self.peers.send_raft
        self.host.on_leading = self.peers.tell_leads
        self.saver = Saver(
            host=self.host,
            snapshots=Snapshots(self._disk),
            snapshot_bytes=config.snapshot_bytes,
            send=self.peers.send_raft,
        )
        await self.saver.load()

    async def _serve(self) -> None:
        config, network = self.config, self.runtime.network
        sessions = Sessions(
            node=config.node,
            boot=self.runtime.boot,
            routes=self.routes,
            ask=self._ask,
            admin=self._admin,
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
                events.NODE_STARTED, f"{config.node} started, incarnation {self._incarnation}"
            )
            await self._work()
        finally:
            self.events.add(events.NODE_STOPPED, f"{config.node} stops")
            self.host.stop()
            for listener in listeners:
                listener.close()

    async def _work(self) -> None:
        """Groups and links, until one fails or the node is told to stop."""
        await together(self._lead_a_life(), self.peers.run())

    async def _lead_a_life(self) -> None:
        """Wait until it is known who founded the cluster, then run the groups."""
        await self._founding.settle()
        self.peers.tell_leads()
        # Watched from here on, so that what is applied from now is seen, from revision 1.
        self.metastorage.watch("", self._changed)
        founders = self._founding.founders
        self._meta = self.host.open(
            METASTORAGE,
            partition=None,
            founders=founders if self.member in founders else (),
            machine=self.metastorage,
            chunks=self.saver.loaded(METASTORAGE),
        )
        self._keeper = Keeper(
            host=self.host,
            metastorage=self._meta,
            assignments=self.assignments,
            partitions=lambda: {p: group for p, (group, _) in self._partitions.items()},
            lives=lambda: {**self.peers.lives(), self.config.node: self.member},
        )
        self.host.on_tick = self._tick
        await together(self.host.run(), self.saver.run())

    def _tick(self) -> None:
        self._seed_metastorage()
        self._keeper.tick()

    # What the links deliver.

    def raft(self, messages: tuple[tuple[str, Message], ...]) -> None:
        """Messages for raft groups."""
        self.host.step(messages)

    def leads(self) -> tuple[tuple[int, int], ...]:
        """Partitions that this node leads and serves, with their terms."""
        return tuple((p, g.raft.term) for p, (g, _) in self._partitions.items() if g.serving)

    def founders(self) -> tuple[str, ...]:
        """Who founded the cluster, once that is known."""
        return self._founding.founders

    def heard(self, peer: str, incarnation: str, ping: Ping) -> None:
        """What ``peer``, in this life, leads and knows."""
        self._founding.heard(peer, incarnation, ping.founders)
        self.routes.heard(peer, ping.leads)

    def request(self, body: Body, reply: Reply) -> None:
        """Serve a transaction's step as the leader of its partition."""
        group, partition = self._partitions.get(body.partition, (None, None))
        if group is None or partition is None or not group.serving:
            leader = group.leader if group is not None else None
            text = f"{self.config.node} does not lead partition {body.partition}"
            reply(Failed(codes.NOT_LEADER, text, leader))
        elif isinstance(body, ReadKey):
            reply(partition.read(body.key))
        else:
            self._commit(group, partition, body, reply)

    def _commit(self, group: Group, partition: Partition, body: CommitTx, reply: Reply) -> None:
        refusal = partition.admit(body)
        if refusal is not None:
            reply(refusal)
            return

        def done(result: object) -> None:
            if not isinstance(result, Committed | Failed):
                raise NodeFailure(f"a commit of {group.name} came to {result!r}")
            reply(result)

        index = self.host.propose(group, encode_command(body), body.limit_ms / 1000, done)
        if index is not None:
            partition.proposed(body, index)

    async def _ask(
        self, node: str, body: ReadKey | CommitTx, limit_s: float
    ) -> Read | Committed | Failed:
        """Ask the leader ``node``, which may be this one."""
        if node != self.config.node:
            return await self.peers.links[node].request(body, limit_s)
        answer: asyncio.Future[Read | Committed | Failed]
        answer = asyncio.get_running_loop().create_future()

        def reply(result: Read | Committed | Failed) -> None:
            if not answer.done():  # the client may be gone by now
                answer.set_result(result)

        self.request(body, reply)
        # The host answers every proposal at its limit, so this wait is bounded by it.
        return await answer

    # Metastorage.

    def _seed_metastorage(self) -> None:
        """The leader of metastorage writes the assignments, once."""
        if self.assignments or self._proposing or not self._meta.serving:
            return
        config = self.config
        zone = Zone(partitions=config.partitions, replicas=config.replicas, members=config.members)

        def done(_: object) -> None:
            self._proposing = False

        self._proposing = True
        members = {name_of(member): member for member in self._meta.raft.configuration.voters}
        data = encode_invoke(first_assignments(zone, members))
        self.host.propose(self._meta, data, METASTORAGE_LIMIT_S, done)

    def _changed(self, change: Change) -> None:
        """A revision of metastorage was applied."""
        if ZONE in change.entries:
            self._check_zone()
        changed = assignments(change.entries)
        if not changed:
            return
        self.assignments.update(changed)
        text = f"assignments of {len(changed)} partitions at revision {change.revision}"
        self.events.add(events.ASSIGNMENTS_CHANGED, text)
        for partition, assignment in changed.items():
            if self.member in assignment.members and partition not in self._partitions:
                self._start_partition(partition, assignment)

    def _check_zone(self) -> None:
        zone, config = zone_of(self.metastorage), self.config
        mine = Zone(partitions=config.partitions, replicas=config.replicas, members=config.members)
        if zone != mine:
            raise NodeFailure(f"the configuration says {mine}, the cluster is {zone}")

    def _start_partition(self, partition: int, assignment: Assignment) -> None:
        machine, name = Partition(), f"p{partition}"
        founders = assignment.founders if self.member in assignment.founders else ()
        group = self.host.open(
            name,
            partition=partition,
            founders=founders,
            machine=machine,
            chunks=self.saver.loaded(name),
        )
        self._partitions[partition] = (group, machine)
        text = f"starts its replica, log up to {group.raft.last_index}, {group.raft.configuration}"
        self.events.add(events.START_DECISION, text, partition=partition, term=group.raft.term)

    def _partition_group(self, partition: int) -> Group | None:
        held = self._partitions.get(partition)
        return None if held is None else held[0]

    # Admin.

    def _admin(self, question: AskStatus | AskEvents) -> AdminBody:
        if isinstance(question, AskEvents):
            return self.events.since(question.boot, question.cursor)
        config = self.config
        return NodeReport(
            node=config.node,
            incarnation=self._incarnation,
            boot=self.runtime.boot,
            wall_ns=self.runtime.wall_ns(),
            revision=self.metastorage.revision,
            partitions=config.partitions,
            replicas=config.replicas,
            members=config.members,
            assignments={p: names_of(a.members) for p, a in self.assignments.items()},
            groups=tuple(group.status() for group in self.host.groups.values()),
            reachable=self.peers.reachable(),
            log_bytes=self.log.size_bytes,
            bugs=config.bugs,
        )
