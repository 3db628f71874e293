"""The lines of a node's log that report what the store did, as events.

The release reports leaders of partitions, their assignments and whether these were forced nowhere
else: neither a system view nor its REST has any of it. Lines are those of release 3.1.0; a line
that no row of ``_RULES`` matches is no event. The default zone, which drills remove, has number 0.
"""

from __future__ import annotations

import calendar
import re
import time
from collections.abc import Callable
from typing import Final

import attrs

from harness.history.records import EventKind

METASTORAGE: Final = "metastorage_group"
MANAGEMENT: Final = "cmg_group"
_DEFAULT_ZONE: Final = "0"
_NS_PER_MS: Final = 1_000_000
_NODES_SHOWN: Final = 12

_HEAD = re.compile(
    r"(\d{4}-\d\d-\d\d \d\d:\d\d:\d\d):(\d{3}) ([+-])(\d\d)(\d\d) \[\w+\]\[[^\]]*\]\[\w+\] (.*)",
    re.ASCII | re.DOTALL,
)
_GROUP = re.compile(r"(\d+)_part_(\d+)", re.ASCII)
_ASSIGNED = re.compile(r"Assignment \[consistentId=([^,\]]+), isPeer=(true|false)\]")
_PEER = re.compile(r"Peer \[consistentId=([^,\]]+)")
_FIRST_OF_QUEUE = re.compile(r"Assignments \[nodes=\w+ \[(.*?)\], force=(true|false)")
_VERSION = re.compile(r"LogicalTopologySnapshot \[version=(\d+)")
_MEMBER = re.compile(r"name=([^,}]+)")
_KEY = r"[^,]*?(?P<group>\d+_part_\d+), "
_OF_ZONE = r"zoneId=(?P<zone>\d+), partitionId=(?P<partition>\d+)"


@attrs.frozen(kw_only=True)
class LogEvent:
    """One event as a line has it. ``group`` is the raft group that it is about, empty where it is
    about none; ``peers`` and ``learners`` are the replicas that it names, ``lease`` when the lease
    began by the store's own clock. ``version`` is the logical topology's: every node tells of each.
    ``elected``: the node leads its group from now on.
    """

    kind: EventKind
    wall_ns: int
    text: str
    group: str = ""
    partition: int | None = None
    term: int | None = None
    peers: tuple[str, ...] = ()
    learners: tuple[str, ...] = ()
    lease: int | None = None
    version: int | None = None
    elected: bool = False


def parse_line(line: str) -> LogEvent | None:
    """The event in ``line``, ``None`` where it holds none that counts."""
    head = _HEAD.match(line)
    if head is None:
        return None
    message = head[6]
    for start, pattern, make in _RULES:
        if message.startswith(start) and (match := pattern.match(message)):
            return make(match, _wall_ns(head))
    return None


def _wall_ns(head: re.Match[str]) -> int:
    at_s = calendar.timegm(time.strptime(head[1], "%Y-%m-%d %H:%M:%S"))
    zone_s = (int(head[4]) * 60 + int(head[5])) * 60
    at_s -= zone_s if head[3] == "+" else -zone_s
    return (at_s * 1000 + int(head[2])) * _NS_PER_MS


def partition_of_group(group: str) -> int | None:
    """The partition whose raft group this is, ``None`` where it is not a partition's."""
    match = _GROUP.fullmatch(group)
    return int(match[2]) if match else None


def _group_of(match: re.Match[str]) -> str:
    return f"{match['zone']}_part_{match['partition']}"


def _ours(group: str) -> bool:
    return not group.startswith(f"{_DEFAULT_ZONE}_part_")


def _replicas(text: str) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Peers and learners among the assignments in ``text``, ascending."""
    found = sorted(set(_ASSIGNED.findall(text)))
    return (
        tuple(name for name, peer in found if peer == "true"),
        tuple(name for name, peer in found if peer == "false"),
    )


def _told(peers: tuple[str, ...], learners: tuple[str, ...]) -> str:
    named = ", ".join(peers[:_NODES_SHOWN]) or "nobody"
    return f"{named}; learners {', '.join(learners[:_NODES_SHOWN])}" if learners else named


Make = Callable[[re.Match[str], int], LogEvent | None]


def _elected(match: re.Match[str], wall_ns: int) -> LogEvent | None:
    group, term = match["group"], int(match["term"])
    text = f"leads {_named(group)}, voters {match['conf'].replace(',', ', ')}"
    # Events of leaders in no partition are the metastorage's.
    managed = group == MANAGEMENT
    kind = EventKind.CONFIGURATION_CHANGED if managed else EventKind.LEADER_ELECTED
    found = _of_group(group, kind, wall_ns, text, term=term)
    return found and attrs.evolve(found, elected=True)


def _stepped_down(match: re.Match[str], wall_ns: int) -> LogEvent | None:
    group = match["group"]
    dead = match["dead"].replace(",", ", ")
    kind = EventKind.CONFIGURATION_CHANGED if group == MANAGEMENT else EventKind.LEADER_LOST
    text = f"steps down from {_named(group)}: no quorum without {dead}"
    return _of_group(group, kind, wall_ns, text, term=int(match["term"]))


def _peers_set(match: re.Match[str], wall_ns: int) -> LogEvent | None:
    group = match["group"]
    text = f"replaces the voters of {_named(group)}: {match['old']} -> {match['new']}"
    return _of_group(group, EventKind.CONFIGURATION_CHANGED, wall_ns, text)


def _lease(match: re.Match[str], wall_ns: int) -> LogEvent | None:
    said = _of_group(match["group"], EventKind.LEASE_GRANTED, wall_ns, "accepts the lease")
    return attrs.evolve(said, lease=int(match["lease"])) if said else None


def _pending(match: re.Match[str], wall_ns: int) -> LogEvent | None:
    peers, learners = _replicas(match["value"])
    text = f"pending: {_told(peers, learners)}"
    return _of_group(match["group"], EventKind.ASSIGNMENTS_CHANGED, wall_ns, text)


def _planned(match: re.Match[str], wall_ns: int) -> LogEvent | None:
    peers, learners = _replicas(match["value"])
    text = f"planned: {_told(peers, learners)}"
    return _of_group(match["group"], EventKind.ASSIGNMENTS_CHANGED, wall_ns, text)


def _forced(match: re.Match[str], wall_ns: int) -> LogEvent | None:
    first = _FIRST_OF_QUEUE.search(match["value"])
    peers, learners = _replicas(first[1] if first else match["value"])
    group = _group_of(match)
    text = f"forced reset of {_named(group)} to {_told(peers, learners)}"
    found = _of_group(group, EventKind.RESET, wall_ns, text)
    return attrs.evolve(found, peers=peers, learners=learners) if found else None


def _reset_ended(match: re.Match[str], wall_ns: int) -> LogEvent | None:
    status = match["status"].lower().replace("_", " ")
    text = f"a reset was asked for and ended: {status}"
    return _of_group(match["group"], EventKind.REBALANCE_STAGE, wall_ns, text)


def _stable(match: re.Match[str], wall_ns: int) -> LogEvent | None:
    peers, learners = _replicas(match["applied"])
    text = f"stable: {_told(peers, learners)}"
    if match["planned"]:
        text += f"; next: {_told(*_replicas(match['planned']))}"
    found = _of_group(match["group"], EventKind.ASSIGNMENTS_CHANGED, wall_ns, text)
    return attrs.evolve(found, peers=peers, learners=learners) if found else None


def _changing(match: re.Match[str], wall_ns: int) -> LogEvent | None:
    if partition_of_group(match["group"]) is None:  # learners, with every node that comes and goes
        return None
    peers = tuple(sorted(_PEER.findall(match["peers"])))
    learners = tuple(sorted(_PEER.findall(match["learners"])))
    text = f"asks for the replicas {_told(peers, learners)}"
    found = _of_group(match["group"], EventKind.REBALANCE_STAGE, wall_ns, text)
    return attrs.evolve(found, peers=peers, learners=learners) if found else None


def _caught_up(match: re.Match[str], wall_ns: int) -> LogEvent | None:
    if partition_of_group(match["group"]) is None:
        return None
    text = f"new replicas caught up: {match['old']} -> {match['new']}"
    return _of_group(match["group"], EventKind.REBALANCE_STAGE, wall_ns, text)


def _started(match: re.Match[str], wall_ns: int) -> LogEvent | None:
    peers = tuple(sorted(_PEER.findall(match["peers"])))
    learners = tuple(sorted(_PEER.findall(match["learners"])))
    group = match["group"]
    if partition_of_group(group) is None:  # every node has one of either, at every start
        return None
    text = f"starts its replica, that of {_named(group)}, among {_told(peers, learners)}"
    found = _of_group(group, EventKind.START_DECISION, wall_ns, text)
    return attrs.evolve(found, peers=peers, learners=learners) if found else None


def _copied(match: re.Match[str], wall_ns: int) -> LogEvent | None:
    text = "took a snapshot in, in place of what it had"
    return _of_group(_group_of(match), EventKind.SNAPSHOT_INSTALLED, wall_ns, text)


def _copying(match: re.Match[str], wall_ns: int) -> LogEvent | None:
    text = "begins to take a snapshot in" if match["what"] == "started" else "gives a snapshot up"
    return _of_group(_group_of(match), EventKind.REBALANCE_STAGE, wall_ns, text)


def _node_began(match: re.Match[str], wall_ns: int) -> LogEvent | None:
    return LogEvent(kind=EventKind.NODE_STARTED, wall_ns=wall_ns, text="its process began")


def _node_ready(match: re.Match[str], wall_ns: int) -> LogEvent | None:
    return LogEvent(
        kind=EventKind.START_DECISION, wall_ns=wall_ns, text="is started, by its own word"
    )


def _node_gives_up(match: re.Match[str], wall_ns: int) -> LogEvent | None:
    return LogEvent(
        kind=EventKind.NODE_STOPPED, wall_ns=wall_ns, text="gives its start up, and ends"
    )


def _refused(match: re.Match[str], wall_ns: int) -> LogEvent | None:
    # Always of the node whose log it is: a node that refuses another writes another line.
    text = "is refused by others, who threw it out: it has to be restarted"
    return LogEvent(kind=EventKind.NODE_REFUSED, wall_ns=wall_ns, text=text)


def _node_ended(match: re.Match[str], wall_ns: int) -> LogEvent | None:
    return LogEvent(kind=EventKind.NODE_STOPPED, wall_ns=wall_ns, text="ended in order")


def _topology(match: re.Match[str], wall_ns: int) -> LogEvent | None:
    version = _VERSION.search(match["rest"])
    if version is None:
        return None
    gone = match["what"].startswith("removed")
    members = ", ".join(sorted(_MEMBER.findall(match["rest"][version.end() :]))[:_NODES_SHOWN])
    text = f"{match['node']} {'left' if gone else 'joined'} the topology: {members or 'nobody'}"
    return LogEvent(
        kind=EventKind.CONFIGURATION_CHANGED,
        wall_ns=wall_ns,
        text=text,
        version=int(version[1]),
    )


def _of_group(
    group: str, kind: EventKind, wall_ns: int, text: str, term: int | None = None
) -> LogEvent | None:
    if not _ours(group):
        return None
    partition = partition_of_group(group)
    return LogEvent(
        kind=kind, wall_ns=wall_ns, text=text, group=group, partition=partition, term=term
    )


def _named(group: str) -> str:
    partition = partition_of_group(group)
    if partition is not None:
        return f"partition {partition}"
    return {METASTORAGE: "metastorage", MANAGEMENT: "cluster management"}.get(group, group)


def _rule(start: str, rest: str, make: Make) -> tuple[str, re.Pattern[str], Make]:
    return start, re.compile(re.escape(start) + rest, re.DOTALL), make


_RULES: Final = (
    _rule(
        "Node <",
        r"(?P<group>[^/]+)/[^>]*> become leader of group, term=(?P<term>\d+), conf=(?P<conf>\S*), ",
        _elected,
    ),
    _rule(
        "Node <",
        r"(?P<group>[^/]+)/[^>]*> steps down when alive nodes don't satisfy quorum, "
        r"term=(?P<term>\d+), deadNodes=(?P<dead>\S*), ",
        _stepped_down,
    ),
    _rule(
        "Node <",
        r"(?P<group>[^/]+)/[^>]*> set peers from (?P<old>\S*) to (?P<new>\S*)\.$",
        _peers_set,
    ),
    _rule(
        "Lease accepted [group=",
        r"(?P<group>[^,]+), leaseStartTime=.*?composite=(?P<lease>\d+)",
        _lease,
    ),
    _rule(
        "Update metastore pending partitions key [key=", _KEY + r".*?newVal=(?P<value>.*)", _pending
    ),
    _rule(
        "Update metastore planned partitions key [key=", _KEY + r".*?newVal=(?P<value>.*)", _planned
    ),
    _rule(
        "Force update metastore pending partitions key [key=",
        r".*?partition=(?P<partition>\d+), zone=(?P<zone>\d+).*?newVal=(?P<value>.*)",
        _forced,
    ),
    _rule(
        "Partition ",
        r".*?(?P<group>\d+_part_\d+).*? returned (?P<status>\w+) status on reset attempt",
        _reset_ended,
    ),
    _rule(
        "Rebalance finished",
        r"[^\[]*\[zonePartitionId=(?P<group>[^,]+), appliedPeers=(?P<applied>.*?)"
        r"(?:, plannedPeers=(?P<planned>.*))?\]$",
        _stable,
    ),
    _rule(
        "Sending changePeersAndLearnersAsync request for group=",
        r"(?P<group>\S+) to peers=(?P<peers>.*?) and learners=(?P<learners>.*?) with leader term",
        _changing,
    ),
    _rule(
        "Catch up phase to change peers was successfully finished [node=<",
        r"(?P<group>[^/]+)/.*?from=\[(?P<old>[^\]]*)\] to=\[(?P<new>[^\]]*)\]",
        _caught_up,
    ),
    _rule(
        "Start new raft node=RaftNodeId [groupId=",
        r"(?P<group>[^,]+), .*? with initial configuration=PeersAndLearners "
        r"\[peers=(?P<peers>.*?), learners=(?P<learners>.*)\]",
        _started,
    ),
    _rule("Copier completes the rebalancing", r".*?" + _OF_ZONE, _copied),
    _rule("Copier is ", r"(?P<what>started|canceled) .*?" + _OF_ZONE, _copying),
    _rule("Starting node: [name=", "", _node_began),
    _rule("Apache Ignite started successfully!", "", _node_ready),
    _rule("Unable to start [node=", "", _node_gives_up),
    _rule("Handshake rejected by ", r"\w+: \S+ is stale, node should be restarted", _refused),
    _rule("Setting Ignite ref to null as shutdown is completed", "", _node_ended),
    _rule(
        "Node ",
        r"(?P<what>added to|removed from) logical topology \[node=\{id=[^,]*, name=(?P<node>[^,}]+)"
        r"(?P<rest>.*)",
        _topology,
    ),
)
