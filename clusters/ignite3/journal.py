"""What nodes say in their logs, as events on the run's axis, and who leads what by it.

Logs are read while the run lives, from the byte on up to which they are known, and once more from
what was collected at its end: no line counts twice. A node's clock is known from these readings; a
line is mapped by the nearest of them.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Iterator, Mapping

import attrs

from clusters.ignite3.logline import MANAGEMENT, METASTORAGE, Said, partition_of_group, said
from harness.clock import RunClock
from harness.cluster import Roles
from harness.errors import FiredrillError
from harness.nodelog import LogPiece, ReadsLogs
from harness.records import EventKind, StoreEvent
from harness.tasks import together

READ_EVERY_S = 2.0  # each is a command on a node; what nobody asked for in time is in the logs
READ_LIMIT_S = 5.0
PIECE_BYTES = 1 << 19  # a node under contention writes some hundred kilobytes a second
KEPT_BYTES = 32 << 20  # providers keep the end of a log that is longer, one no less than this
TICK_NS = 1_000_000  # of the times in logs
CLOCK_DRIFT = 1e-4  # how far wall and monotonic time of one machine may drift apart


@attrs.frozen(kw_only=True)
class Reading:
    """One look at a node's wall clock: ``wall_ns`` there was ``loop_ns`` here, give or take
    ``half_trip_ns``.
    """

    wall_ns: int
    loop_ns: int
    half_trip_ns: int

    def uncertainty_ns(self, wall_ns: int) -> int:
        """What mapping ``wall_ns`` by this reading may be off by."""
        return self.half_trip_ns + TICK_NS + int(abs(self.wall_ns - wall_ns) * CLOCK_DRIFT)


@attrs.define
class Log:
    """How far one node's log is known: to a byte, and to a time. ``boots`` counts the starts in
    it.
    """

    node: str
    offset: int = 0
    boots: int = 0
    newest_ns: int = 0
    first: Reading | None = None
    last: Reading | None = None
    best: Reading | None = None

    def take(self, content: bytes) -> Iterator[Said]:
        """What the whole lines of ``content`` say, which begins at ``offset``."""
        whole = content.rfind(b"\n") + 1
        if not whole and len(content) >= PIECE_BYTES:
            whole = len(content)  # a line that no piece holds is none of ours
        self.offset += whole
        for line in content[:whole].decode("utf-8", "replace").split("\n"):
            if found := said(line.rstrip("\r")):
                yield found

    def look(self, reading: Reading) -> None:
        """Keep the first and the last look at the clock, and the quickest."""
        self.first, self.last = self.first or reading, reading
        if self.best is None or reading.half_trip_ns < self.best.half_trip_ns:
            self.best = reading

    def nearest(self, wall_ns: int) -> Reading | None:
        """The look at the clock by which to map ``wall_ns``."""
        known = [reading for reading in (self.first, self.last, self.best) if reading]
        return min(known, key=lambda reading: reading.uncertainty_ns(wall_ns), default=None)


@attrs.define
class Holders:
    """Who holds what, by what was said last. Leaders by term, leases by their beginning."""

    leaders: dict[str, tuple[int, str]] = attrs.field(factory=dict)
    leases: dict[int, tuple[int, str]] = attrs.field(factory=dict)
    learners: dict[int, tuple[str, ...]] = attrs.field(factory=dict)

    def take(self, node: str, heard: Said) -> None:
        """The next event of ``node``."""
        if heard.kind is EventKind.NODE_STARTED:
            self.leaders = {g: held for g, held in self.leaders.items() if held[1] != node}
            self.leases = {p: held for p, held in self.leases.items() if held[1] != node}
        elif heard.text.startswith("leads ") and heard.term is not None:
            known = self.leaders.get(heard.group, (0, ""))
            self.leaders[heard.group] = max(known, (heard.term, node))
        elif heard.kind is EventKind.LEADER_LOST:
            if self.leaders.get(heard.group) == (heard.term, node):
                del self.leaders[heard.group]
        elif heard.lease is not None and heard.partition is not None:
            known = self.leases.get(heard.partition, (0, ""))
            self.leases[heard.partition] = max(known, (heard.lease, node))
        if heard.partition is not None and heard.peers:
            self.learners[heard.partition] = heard.learners


class Journal:
    """The logs of all nodes of a run. One reader at a time."""

    def __init__(self) -> None:
        self.holders = Holders()
        self._logs: dict[str, Log] = {}
        self._heard: list[tuple[Log, str, Said]] = []  # with the boot, until somebody maps them
        self._versions: set[int] = set()
        self._replicas: dict[int, tuple[tuple[str, ...], ...]] = {}  # that are stable, told already
        self._reading = asyncio.Lock()
        self._due_s = 0.0
        self._shift_ns = 0  # of the run's axis against the loop's

    async def read(self, provider: ReadsLogs, nodes: Iterable[str], *, now: bool = False) -> None:
        """Read what is new of every node that can be asked, unless that was done just before."""
        loop = asyncio.get_running_loop()
        async with self._reading:
            if loop.time() < self._due_s and not now:
                return
            await together(self._read(provider, node) for node in nodes)
            self._due_s = loop.time() + READ_EVERY_S

    async def _read(self, provider: ReadsLogs, node: str) -> None:
        loop = asyncio.get_running_loop()
        log = self._log(node)
        more = True
        while more:
            asked_ns = int(loop.time() * 1e9)
            try:
                async with asyncio.timeout(READ_LIMIT_S):
                    piece = await provider.read_log(node, log.offset, PIECE_BYTES)
            except (TimeoutError, FiredrillError):
                return
            more = len(piece.content) >= PIECE_BYTES
            self._take(log, piece, asked_ns, int(loop.time() * 1e9))

    def _take(self, log: Log, piece: LogPiece, asked_ns: int, answered_ns: int) -> None:
        """Without an await: what a call that was cancelled had asked for is asked for again."""
        log.look(
            Reading(
                wall_ns=piece.wall_ns,
                loop_ns=(asked_ns + answered_ns) // 2,
                half_trip_ns=(answered_ns - asked_ns + 1) // 2,
            )
        )
        self._hear(log, log.take(piece.content))

    def events(self, clock: RunClock) -> list[StoreEvent]:
        """What was heard since the last call, on the axis of ``clock``."""
        loop_ns = int(asyncio.get_running_loop().time() * 1e9)
        self._shift_ns = clock.now_ns() - loop_ns
        return self._mapped()

    def rest(self, node: str, content: bytes) -> list[StoreEvent]:
        """What the log of ``node`` that was collected holds beyond what was read of it: by its
        length, or by its times where only the end was kept.
        """
        log = self._log(node)
        if len(content) >= KEPT_BYTES:
            log.offset, after_ns = 0, log.newest_ns
            self._hear(log, (heard for heard in log.take(content) if heard.wall_ns > after_ns))
        else:
            self._hear(log, log.take(content[log.offset :]))
        return self._mapped()

    def _hear(self, log: Log, every: Iterable[Said]) -> None:
        for heard in every:
            log.boots += heard.kind is EventKind.NODE_STARTED
            log.newest_ns = max(log.newest_ns, heard.wall_ns)
            self.holders.take(log.node, heard)
            if not self._known(heard):
                self._heard.append((log, str(log.boots), heard))

    def _known(self, heard: Said) -> bool:
        """Whether nothing is new in it: every node tells of each topology, and every new leader
        asks for the replicas that its partition has, and is told that it has them.
        """
        if heard.version is not None:
            known = heard.version in self._versions
            self._versions.add(heard.version)
            return known
        changes = (EventKind.ASSIGNMENTS_CHANGED, EventKind.REBALANCE_STAGE)
        if heard.partition is None or not heard.peers or heard.kind not in changes:
            return False
        replicas = (heard.peers, heard.learners)
        known = self._replicas.get(heard.partition) == replicas
        if heard.kind is EventKind.ASSIGNMENTS_CHANGED:
            self._replicas[heard.partition] = replicas
        return known

    def _mapped(self) -> list[StoreEvent]:
        """Empties what was heard; without a look at its clock nobody knows when a node said it."""
        heard, self._heard = self._heard, []
        found = []
        for log, boot, event in heard:
            reading = log.nearest(event.wall_ns)
            if reading is not None:
                found.append(_event(log.node, boot, event, reading, self._shift_ns))
        return found

    def _log(self, node: str) -> Log:
        return self._logs.setdefault(node, Log(node))


def roles_of(held: Mapping[str, tuple[int, ...]], holders: Holders) -> Roles:
    """The roles of the nodes that answered, each with the partitions that it ``held``; nothing at
    all where none did.
    """
    if not held:
        return Roles()
    learners: dict[int, tuple[str, ...]] = {}
    voters: dict[int, tuple[str, ...]] = {}
    for node, partitions in held.items():
        for partition in partitions:
            into = learners if node in holders.learners.get(partition, ()) else voters
            into[partition] = (*into.get(partition, ()), node)
    leaders = {group: node for group, (_, node) in holders.leaders.items() if node in held}
    some = {*leaders.values(), *(node for node, partitions in held.items() if partitions)}
    return Roles(
        leaders={
            p: node for g, node in leaders.items() if (p := partition_of_group(g)) is not None
        },
        primaries={p: node for p, (_, node) in holders.leases.items() if node in held},
        voters=voters,
        learners=learners,
        metastorage_leader=leaders.get(METASTORAGE),
        management_leader=leaders.get(MANAGEMENT),
        others=tuple(node for node in held if node not in some),
    )


def _event(node: str, boot: str, heard: Said, reading: Reading, shift_ns: int) -> StoreEvent:
    return StoreEvent(
        kind=heard.kind,
        node=node,
        wall_ns=heard.wall_ns,
        boot=boot,
        at_ns=heard.wall_ns - reading.wall_ns + reading.loop_ns + shift_ns,
        uncertainty_ns=reading.uncertainty_ns(heard.wall_ns),
        partition=heard.partition,
        term=heard.term,
        text=heard.text,
    )
