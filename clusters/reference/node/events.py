"""The node's event log: the last events since this start, for whoever asks, and for the log file.

The kinds are the closed list of the harness's ``EventKind``, as the strings that travel.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable

from clusters.reference.node.wire.reports import EventBatch, NodeEvent

MAX_EVENTS = 10_000  # a reader that is slower than that loses the oldest, and is told how many

NODE_STARTED = "node-started"
NODE_STOPPED = "node-stopped"
START_DECISION = "start-decision"
LEADER_ELECTED = "leader-elected"
LEADER_LOST = "leader-lost"
LEASE_GRANTED = "lease-granted"
LEASE_LOST = "lease-lost"
ASSIGNMENTS_CHANGED = "assignments-changed"
LOG_TRUNCATED = "log-truncated"
TORN_TAIL = "torn-tail"
STORAGE_ERROR = "storage-error"
EVENTS_LOST = "events-lost"

log = logging.getLogger("node.events")


class EventLog:
    """Bounded and in memory; a killed node takes what nobody fetched with it."""

    def __init__(self, *, boot: str, wall_ns: Callable[[], int]) -> None:
        self._boot, self._wall_ns = boot, wall_ns
        self._events: deque[NodeEvent] = deque(maxlen=MAX_EVENTS)
        self._seq = 0

    def add(
        self, kind: str, text: str, *, partition: int | None = None, term: int | None = None
    ) -> None:
        """Record that ``kind`` happened now."""
        self._seq += 1
        self._events.append(
            NodeEvent(self._seq, kind, self._wall_ns(), self._boot, partition, term, text)
        )
        where = "" if partition is None else f" partition={partition}"
        log.info("%s%s term=%s %s", kind, where, term, text)

    def since(self, boot: str, cursor: int) -> EventBatch:
        """Events after ``cursor`` of start ``boot``; another start means all there are. Those that
        had to go before they were asked for are told of as one event.
        """
        after = cursor if boot == self._boot else 0
        kept = tuple(e for e in self._events if e.seq > after)
        gap = kept[0].seq - after - 1 if kept else 0
        if gap:
            text = f"{gap} events were dropped before anybody asked for them"
            first = kept[0]
            lost = NodeEvent(
                first.seq - 1, EVENTS_LOST, first.wall_ns, self._boot, None, None, text
            )
            kept = (lost, *kept)
        return EventBatch(
            boot=self._boot,
            wall_ns=self._wall_ns(),
            cursor=self._seq,
            events=kept,
        )
