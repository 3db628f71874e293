"""A node, put together: log, groups, links, metastorage, partitions, clients."""

from __future__ import annotations

import asyncio
import logging

from clusters.reference.node import codes, events
from clusters.reference.node.config import Config, check
from clusters.reference.node.groups import Group, Host
from clusters.reference.node.metastorage.assignments import (
    ZONE,
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
from clusters.reference.node.sessions import Sessions
from clusters.reference.node.storage.identity import Acquaintances, load
from clusters.reference.node.storage.log import SharedLog
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
        self.log = SharedLog(runtime.disk, fsync="no-fsync" not in config.bugs)
        self.metastorage = Metastorage()
        self.routes = Routes(config.partitions, self._partition_group)
        self.assignments: dict[int, tuple[str, ...]] = {}
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
        self._identity = await load(runtime.disk, config.node, runtime.random)
        await self.log.open()
        if self.log.torn is not None:
            self.events.add(events.TORN_TAIL, str(self.log.torn))
        self.host = Host(
            node=config.node,
            log=self.log,
            event_log=self.events,
            rng=runtime.random,
            tick_s=config.tick_ms / 1000,
            election_ticks=config.election_ticks,
            bugs=frozenset(config.bugs),
        )
        self.peers = Peers(
            node=config.node,
            incarnation=self._identity.incarnation,
            addresses=config.peers,
            network=runtime.network,
            rng=runtime.random,
            accept=Acquaintances(runtime.disk, self._identity).accept,
            local=self,
        )
        self.host.on_send, self.host.on_tick = self.peers.send_raft, self._seed_metastorage
        self.host.on_leading = self.peers.tell_leads

    async def _serve(self) -> None:
        config, network = self.config, self.runtime.network
        sessions = Sessions(
            node=config.node,
            boot=self.runtime.boot,
            routes=self.routes,
            ask=self._ask,
            admin=self._admin,
        )
        # Watched from here on, so that what is applied from now is seen, from revision 1.
        self.metastorage.watch("", self._changed)
        self._meta = self.host.open(
            METASTORAGE, partition=None, voters=config.members, machine=self.metastorage
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
        """Host and links, until one fails or the node is told to stop."""
        await together(self.host.run(), self.peers.run())

    @property
    def _incarnation(self) -> str:
        return self._identity.incarnation

    # What the links deliver.

    def raft(self, messages: tuple[tuple[str, Message], ...]) -> None:
        """Messages for raft groups."""
        self.host.step(messages)

    def leads(self) -> tuple[tuple[int, int], ...]:
        """Partitions that this node leads and serves, with their terms."""
        return tuple((p, g.raft.term) for p, (g, _) in self._partitions.items() if g.serving)

    def heard(self, peer: str, leads: tuple[tuple[int, int], ...]) -> None:
        """What ``peer`` leads."""
        self.routes.heard(peer, leads)

    def request(self, body: Body, reply: Reply) -> None:
        """Serve a transaction's step as the leader of its partition."""
        group, partition = self._partitions.get(body.partition, (None, None))
        if group is None or partition is None or not group.serving:
            leader = group.raft.leader if group is not None else None
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
        data = encode_invoke(first_assignments(zone))
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
        for partition, nodes in changed.items():
            if self.config.node in nodes and partition not in self._partitions:
                self._start_partition(partition, nodes)

    def _check_zone(self) -> None:
        zone, config = zone_of(self.metastorage), self.config
        mine = Zone(partitions=config.partitions, replicas=config.replicas, members=config.members)
        if zone != mine:
            raise NodeFailure(f"the configuration says {mine}, the cluster is {zone}")

    def _start_partition(self, partition: int, nodes: tuple[str, ...]) -> None:
        machine = Partition()
        group = self.host.open(f"p{partition}", partition=partition, voters=nodes, machine=machine)
        self._partitions[partition] = (group, machine)
        text = f"starts its replica, log up to {group.raft.last_index}, voters {', '.join(nodes)}"
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
            assignments=self.assignments,
            groups=tuple(group.status() for group in self.host.groups.values()),
            reachable=self.peers.reachable(),
            log_bytes=self.log.size_bytes,
            bugs=config.bugs,
        )
