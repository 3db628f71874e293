"""The events in the nodes' logs, on the run's axis.

Logs are read while the run lives, from the byte on up to which they are known, and once more from
the logs collected at its end: no line counts twice. A node's clock is known from these readings; a
line is mapped by the nearest of them.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable

import attrs

from clusters.ignite3 import node_log
from clusters.ignite3.logline import LogEvent
from clusters.ignite3.node_log import ClockReading, Log
from clusters.ignite3.role_holders import Holders
from harness.clock import RunClock
from harness.errors import FiredrillError
from harness.history.records import EventKind, StoreEvent
from harness.protocols.cluster import NODE_LOG_BYTES, LogPiece, ReadsLogs
from harness.tasks import together

READ_EVERY_S = 2.0  # each is a command on a node; events missed by a read are in the logs
READ_LIMIT_S = 5.0
CHANGES = (EventKind.ASSIGNMENTS_CHANGED, EventKind.REBALANCE_STAGE)


@attrs.define
class NodeReports:
    """The events that were reported already, of those that several nodes report, or one
    repeatedly.
    """

    versions: set[int] = attrs.field(factory=set)
    refused: set[tuple[str, str]] = attrs.field(factory=set)  # node and boot
    replicas: dict[int, tuple[tuple[str, ...], ...]] = attrs.field(factory=dict)  # that are stable

    def enter(self, node: str, boot: str, heard: LogEvent) -> bool:
        """Record the next event, and return whether it is news: every node reports each topology,
        every new leader asks for the replicas that its partition has and is told that it has them,
        and a removed node is refused with every attempt to connect.
        """
        if heard.kind is EventKind.NODE_REFUSED:
            news = (node, boot) not in self.refused
            self.refused.add((node, boot))
            return news
        if heard.version is not None:
            news = heard.version not in self.versions
            self.versions.add(heard.version)
            return news
        if heard.partition is None or not heard.peers or heard.kind not in CHANGES:
            return True
        replicas = (heard.peers, heard.learners)
        news = self.replicas.get(heard.partition) != replicas
        if heard.kind is EventKind.ASSIGNMENTS_CHANGED:
            self.replicas[heard.partition] = replicas
        return news


class Journal:
    """The logs of all nodes of a run. One reader at a time."""

    def __init__(self) -> None:
        self.holders = Holders()
        self._logs: dict[str, Log] = {}
        self._heard: list[tuple[Log, str, LogEvent]] = []  # with the boot, until they are mapped
        self._told = NodeReports()
        self._reading = asyncio.Lock()
        self._due_s = 0.0
        self._shift_ns = 0  # of the run's axis against the loop's

    async def read(self, provider: ReadsLogs, nodes: Iterable[str], *, now: bool = False) -> None:
        """Read the new part of each log that can be read, unless that was done just before."""
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
                    piece = await provider.read_log(node, log.offset, node_log.PIECE_BYTES)
            # The next read asks from the same byte again: nothing is lost.
            except (TimeoutError, FiredrillError):
                return
            more = len(piece.content) >= node_log.PIECE_BYTES
            self._take(log, piece, asked_ns, int(loop.time() * 1e9))

    def _take(self, log: Log, piece: LogPiece, asked_ns: int, answered_ns: int) -> None:
        """Has no await: after a cancelled read the same piece is asked for again."""
        log.look(
            ClockReading(
                wall_ns=piece.wall_ns,
                # The node read its clock on the way: the middle is off by half of the trip at most.
                loop_ns=(asked_ns + answered_ns) // 2,
                half_trip_ns=(answered_ns - asked_ns + 1) // 2,
            )
        )
        self._hear(log, log.take(piece.content))

    def events(self, clock: RunClock) -> list[StoreEvent]:
        """The events heard since the last call, on the axis of ``clock``."""
        loop_ns = int(asyncio.get_running_loop().time() * 1e9)
        self._shift_ns = clock.now_ns() - loop_ns
        return self._mapped()

    def rest(self, node: str, content: bytes) -> list[StoreEvent]:
        """The events in the collected log of ``node`` beyond those that were read: by its length,
        or by their times where only the end of the log was kept.
        """
        log = self._log(node)
        if len(content) >= NODE_LOG_BYTES:
            log.offset = 0
            self._hear(log, log.take(content, after_ns=log.newest_ns))
        else:
            self._hear(log, log.take(content[log.offset :]))
        return self._mapped()

    def _hear(self, log: Log, every: Iterable[tuple[str, LogEvent]]) -> None:
        for boot, heard in every:
            self.holders.take(log.node, heard)
            self._heard.append((log, boot, heard))

    def _mapped(self) -> list[StoreEvent]:
        """Take out the events heard so far, on the run's axis. An event of a node without a clock
        reading can't be mapped and is dropped. Of an event that several nodes report, the earliest
        report counts, in any order of reading.
        """
        heard, self._heard = self._heard, []
        found = []
        for log, boot, event in heard:
            reading = log.nearest(event.wall_ns)
            if reading is not None:
                mapped = _event(log.node, boot, event, reading, self._shift_ns)
                found.append((mapped, boot, event))
        found.sort(key=lambda each: each[0].at_ns)
        return [mapped for mapped, boot, e in found if self._told.enter(mapped.node, boot, e)]

    def _log(self, node: str) -> Log:
        return self._logs.setdefault(node, Log(node))


def _event(
    node: str, boot: str, heard: LogEvent, reading: ClockReading, shift_ns: int
) -> StoreEvent:
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
