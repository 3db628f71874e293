"""The node's event log: the last events since this start, for questions and for the log file.

The kinds are the closed list of the harness's ``EventKind``, as the strings that travel. A line of
the log file is the whole event: of a killed node only that file is left.
"""

from __future__ import annotations

import logging
import re
from collections import deque
from collections.abc import Callable

import msgspec

from clusters.reference.node.wire.reports import EventBatch, NodeEvent, ResetReport

MAX_EVENTS = 10_000  # a reader that is slower than that loses the oldest, and is told how many

NODE_STARTED = "node-started"
NODE_STOPPED = "node-stopped"
START_DECISION = "start-decision"
STARTS, ERASES = "starts", "erases"  # its decisions
LEADER_ELECTED = "leader-elected"
LEADER_LOST = "leader-lost"
LEASE_GRANTED = "lease-granted"
LEASE_LOST = "lease-lost"
ASSIGNMENTS_CHANGED = "assignments-changed"
CATALOG_CHANGED = "catalog-changed"
DATA_NODES_CHANGED = "data-nodes-changed"
TOPOLOGY_CHANGED = "topology-changed"
REBALANCE_STAGE = "rebalance-stage"
PARTITION_RESET = "partition-reset"
RESET_ASKED = "reset-asked"
RESTORED = "restored"
LOG_TRUNCATED = "log-truncated"
TORN_TAIL = "torn-tail"
STORAGE_ERROR = "storage-error"
LOST_LOG = "lost-log"
EVENTS_LOST = "events-lost"

log = logging.getLogger("node.events")

_LINE = re.compile(
    r"\S+ INFO node\.events: (?P<kind>\S+): (?P<text>.*)"
    r" \[partition=(?P<partition>-|-?\d{1,9}) term=(?P<term>-|\d{1,18}) seq=(?P<seq>\d{1,18})"
    r" boot=(?P<boot>\S+) wall_ns=(?P<wall_ns>\d{1,18}|[1-8]\d{18})"
    r"(?: generation=(?P<generation>\d{1,18}))?(?: reset=(?P<reset>\S+))?"
    r"(?: decision=(?P<decision>starts|erases))?(?: about=(?P<about>\S+))?\]"
)


_reset = msgspec.json.Decoder(ResetReport).decode


def line_of(event: NodeEvent) -> str:
    """``event`` as the message of one line of a log: the text for a person comes first."""
    partition = "-" if event.partition is None else event.partition
    term = "-" if event.term is None else event.term
    of_generation = "" if event.generation is None else f" generation={event.generation}"
    if event.reset is not None:
        of_generation += f" reset={msgspec.json.encode(event.reset).decode()}"
    told = (("decision", event.decision), ("about", event.about))
    more = of_generation + "".join(f" {name}={value}" for name, value in told if value is not None)
    return (
        f"{event.kind}: {' '.join(event.text.split())} [partition={partition} term={term}"
        f" seq={event.seq} boot={event.boot} wall_ns={event.wall_ns}{more}]"
    )


def parse_line(line: str) -> NodeEvent | None:
    """The event in a line of a node's log, ``None`` for any other line, and for one that a kill or
    the end of a file cut off.
    """
    found = _LINE.fullmatch(line)
    if found is None:
        return None
    partition, term, generation = found["partition"], found["term"], found["generation"]
    try:
        reset = None if found["reset"] is None else _reset(found["reset"])
    except msgspec.DecodeError:
        return None
    return NodeEvent(
        seq=int(found["seq"]),
        kind=found["kind"],
        wall_ns=int(found["wall_ns"]),
        boot=found["boot"],
        partition=None if partition == "-" else int(partition),
        term=None if term == "-" else int(term),
        text=found["text"],
        generation=None if generation is None else int(generation),
        reset=reset,
        decision=found["decision"],
        about=found["about"],
    )


class EventLog:
    """Bounded and in memory; a killed node leaves the rest in its log file."""

    def __init__(self, *, boot: str, wall_ns: Callable[[], int]) -> None:
        self._boot, self._wall_ns = boot, wall_ns
        self._events: deque[NodeEvent] = deque(maxlen=MAX_EVENTS)
        self._seq = 0

    def add(
        self,
        kind: str,
        text: str,
        *,
        partition: int | None = None,
        term: int | None = None,
        generation: int | None = None,
        reset: ResetReport | None = None,
        decision: str | None = None,
        about: str | None = None,
    ) -> None:
        """Record that ``kind`` happened now: what was decided of the copy here, and the node that
        it is about, where it is not this one.
        """
        self._seq += 1
        event = NodeEvent(
            seq=self._seq,
            kind=kind,
            wall_ns=self._wall_ns(),
            boot=self._boot,
            partition=partition,
            term=term,
            text=text,
            # The first generation goes without saying.
            generation=generation or None,
            reset=reset,
            decision=decision,
            about=about,
        )
        self._events.append(event)
        log.info("%s", line_of(event))

    def since(self, boot: str, cursor: int) -> EventBatch:
        """Events after ``cursor`` of start ``boot``; for another start all events there are. One
        event stands for those that were dropped before they were asked for.
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
