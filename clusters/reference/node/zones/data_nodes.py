"""The data nodes of a zone: a history that is switched atomically, and the timers that switch it
(IEP-101, "DATA_NODES_AUTO_ADJUST rules").

A zone's state is one value under one key of metastorage. An event and a timestamp make the next
value; nothing here waits or asks the time. ``due_at`` says when a timer fires next, and the
driver of the state calls ``fired`` then. Since the state holds the start of every timer, timers go
on after a restart of the driver: reading the state is arming them again.

* A join (re)starts the scale-up timer, a leave the scale-down timer; neither moves the other.
* The joint timer is (re)started by both, and switches once.
* A timer keeps only what still is so when it fires: a node that came and went is forgotten, one
  that went and came back stays.
* A node that joins again is a join, too: the entry that it makes may equal the one before, and lets
  a partition that was reset without the node take it back (IEP-131, "Data nodes are rewritten on
  scale up even if they are the same").

Timestamps are those of the hybrid clock, waits are seconds. A timer's start and its end are
``physical`` time, of a timestamp's unit: a start of a node, or a primary that takes over, brings
timestamps forward by up to the reach of a lease's promises, and such a jump is no time that has
passed. Where ``physical`` is not given, it is the timestamp.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Iterator

import msgspec

from clusters.reference.node.bugs import planted
from clusters.reference.node.catalog import filters
from clusters.reference.node.catalog.catalog import Table
from clusters.reference.node.catalog.nodes import Node
from clusters.reference.node.catalog.options import Joint, Separate, Zone
from clusters.reference.node.markers import reached
from clusters.reference.node.runtime.hybrid_clock import span

replace = msgspec.structs.replace


class TimestampBehind(Exception):
    """An event whose timestamp is below one that the history has: it would change the past."""


class Topology(msgspec.Struct, frozen=True, kw_only=True):
    """The logical topology, and the revision that made it so."""

    revision: int
    nodes: tuple[Node, ...]


class Entry(msgspec.Struct, frozen=True, array_like=True):
    """From ``ts`` on the data nodes are ``nodes``, sorted by name."""

    ts: int
    nodes: tuple[Node, ...]


class Timer(msgspec.Struct, frozen=True, array_like=True):
    """A timer that started at ``since`` (physical time): the nodes that it will add, the names it
    will remove.
    """

    since: int
    joined: tuple[Node, ...] = ()
    left: tuple[str, ...] = ()


class DataNodes(msgspec.Struct, frozen=True, kw_only=True):
    """A zone's data nodes: the waits and the filter that they follow, the topology that was handled
    last, the history (the oldest first, never empty), and the timers that run. A zone has ``joint``
    alone, or ``up`` and ``down``.
    """

    waits: Separate | Joint
    filter: str
    topology: Topology
    history: tuple[Entry, ...]
    up: Timer | None = None
    down: Timer | None = None
    joint: Timer | None = None

    @property
    def latest(self) -> tuple[Node, ...]:
        """The newest data nodes."""
        return self.history[-1].nodes

    def at(self, ts: int) -> tuple[Node, ...] | None:
        """The data nodes at ``ts``; ``None`` before the first entry that is kept."""
        place = bisect_right(self.history, ts, key=lambda entry: entry.ts)
        return self.history[place - 1].nodes if place else None

    def running(self) -> Iterator[tuple[Timer, int | None]]:
        """Each timer that runs with its wait in seconds, ``None`` for never."""
        waits: list[tuple[Timer | None, int | None]]
        if isinstance(self.waits, Joint):
            waits = [(self.joint, self.waits.wait_s)]
        else:
            waits = [(self.up, self.waits.up_s), (self.down, self.waits.down_s)]
        yield from ((timer, wait_s) for timer, wait_s in waits if timer is not None)


def of_profile(nodes: Iterable[Node], profile: str) -> tuple[Node, ...]:
    """The data nodes of a table: those of its zone that have its storage profile."""
    return tuple(node for node in nodes if profile in node.profiles)


def created(zone: Zone, topology: Topology, ts: int) -> DataNodes:
    """The state of a zone that was created at ``ts``: its data nodes are those there are."""
    nodes = _sorted(filters.filtered(zone.filter, topology.nodes))
    return DataNodes(
        waits=zone.waits, filter=zone.filter, topology=topology, history=(Entry(ts, nodes),)
    )


def due_at(state: DataNodes) -> int | None:
    """The physical time at which the next timer fires; ``None`` while none runs that ever will."""
    return min(
        (timer.since + span(wait_s) for timer, wait_s in state.running() if wait_s is not None),
        default=None,
    )


def fired(state: DataNodes, ts: int, physical: int | None = None) -> DataNodes:
    """The state after all timers that are due at ``physical``, as one entry of the history. It is
    dated ``ts``, not when the timer was due: readers may have seen the time between. Raises
    ``TimestampBehind``.
    """
    reading = ts if physical is None else physical
    due = [
        timer
        for timer, wait_s in state.running()
        if wait_s is not None and timer.since + span(wait_s) <= reading
    ]
    if not due:
        return state
    nodes = {node.name: node for node in state.latest}
    for timer in due:
        nodes.update({node.name: node for node in timer.joined})
        for name in timer.left:
            nodes.pop(name, None)
    return replace(
        state,
        history=_switched(state.history, ts, nodes.values()),
        up=_unless(state.up, due),
        down=_unless(state.down, due),
        joint=_unless(state.joint, due),
    )


def topology_changed(
    state: DataNodes, topology: Topology, ts: int, physical: int | None = None
) -> DataNodes:
    """The state after ``topology`` took the place of the one before, as ``topologies_changed``."""
    return topologies_changed(state, (topology,), ts, physical)


def topologies_changed(
    state: DataNodes, topologies: Iterable[Topology], ts: int, physical: int | None = None
) -> DataNodes:
    """The state after ``topologies`` took the place of each other, the last of which is there now;
    each by however many events (a leap). Those that are not newer are ignored. What is due at
    ``physical`` is applied after all of them, so that nothing is moved off a node that is back.
    Raises ``TimestampBehind``.
    """
    reading = ts if physical is None else physical
    newer = [each for each in topologies if each.revision > state.topology.revision]
    for topology in newer:
        state = _armed(state, topology, reading)
    return fired(state, ts, reading) if newer else state


def _armed(state: DataNodes, topology: Topology, reading: int) -> DataNodes:
    """The state with ``topology``, and with the timers that it starts at ``reading``."""
    before = _eligible(state.filter, state.topology)
    now = _eligible(state.filter, topology)
    state = replace(state, topology=topology)
    # What the filter leaves out never arms a timer; a node with other attributes is another node.
    joined = tuple(node for name, node in now.items() if before.get(name) != node)
    absent = tuple(node.name for node in state.latest if node.name not in now)
    if isinstance(state.waits, Joint):
        since = _since(state.joint, reading, again=before != now)
        return replace(state, joint=_timer(since, _still(state.joint, now, joined), absent))
    # A node that was gone before must not start the timer again.
    gone = set(absent) - set(() if state.down is None else state.down.left)
    moved = bool(joined) or (bool(gone) and planted("leave-moves-scale-up"))
    up_since = _since(state.up, reading, again=moved)
    up = _timer(up_since, _still(state.up, now, joined), ())
    down = _timer(_since(state.down, reading, again=bool(gone)), (), absent)
    return replace(state, up=up, down=down)


def altered(state: DataNodes, zone: Zone, ts: int) -> DataNodes:
    """The state after the zone became ``zone``.

    Another filter drops all timers: the data nodes are at once what passes it in the topology that
    was handled last. Other waits leave timers their start and their nodes; what is due by them is
    still to be ``fired``. Raises ``TimestampBehind``.
    """
    if zone.filter != state.filter:
        nodes = filters.filtered(zone.filter, state.topology.nodes)
        after = replace(
            state,
            waits=zone.waits,
            filter=zone.filter,
            history=_switched(state.history, ts, nodes),
        )
        if planted("filter-keeps-timers"):
            return after
        return replace(after, up=None, down=None, joint=None)
    return state if zone.waits == state.waits else _with_waits(state, zone.waits)


def resumed(state: DataNodes, *, down_since: int, physical: int) -> DataNodes:
    """The state when the cluster starts again at ``physical``, having been down since
    ``down_since``.

    Time in which the whole cluster was down is no node's absence: every timer starts later by as
    much, or nodes that take longer to start than others would be removed at once.
    """
    pause = max(physical - down_since, 0)

    def later(timer: Timer | None) -> Timer | None:
        return timer if timer is None else replace(timer, since=timer.since + pause)

    return replace(state, up=later(state.up), down=later(state.down), joint=later(state.joint))


def compacted(state: DataNodes, before: int) -> DataNodes:
    """The state without the entries that no reader at ``before`` or later needs."""
    kept = max(bisect_right(state.history, before, key=lambda entry: entry.ts) - 1, 0)
    return replace(state, history=state.history[kept:])


def warning(zone: Zone, topology: Topology, table: Table | None = None) -> str | None:
    """What to tell the client whose statement made ``zone``, or ``table`` of it, if no node can
    hold data of it.
    """
    nodes = filters.filtered(zone.filter, topology.nodes)
    if not nodes:
        return (
            f"zone {zone.name!r}: no node matches the filter {zone.filter!r}, its data nodes are "
            "empty, and operations on its tables are refused"
        )
    if table is None or of_profile(nodes, table.profile):
        return None
    return (
        f"table {table.name!r}: no node of zone {zone.name!r} has the storage profile "
        f"{table.profile!r}, its data nodes are empty, and operations on it are refused"
    )


def _eligible(text: str, topology: Topology) -> dict[str, Node]:
    return {node.name: node for node in _sorted(filters.filtered(text, topology.nodes))}


def _still(timer: Timer | None, now: dict[str, Node], joined: tuple[Node, ...]) -> tuple[Node, ...]:
    """What a timer will add: of its nodes those that are there as they were, and ``joined``."""
    waiting = () if timer is None else timer.joined
    kept = (node for node in waiting if now.get(node.name) == node and node not in joined)
    return _sorted((*kept, *joined))


def _since(timer: Timer | None, physical: int, *, again: bool) -> int:
    """When a timer started: at ``physical`` if it starts or is started ``again``."""
    return physical if again or timer is None else timer.since


def _timer(since: int, joined: tuple[Node, ...], left: tuple[str, ...]) -> Timer | None:
    """The timer with these nodes; none without nodes."""
    return Timer(since, joined, left) if joined or left else None


def _with_waits(state: DataNodes, waits: Separate | Joint) -> DataNodes:
    """``state`` with other waits. A joint timer becomes two that started when it did; two become
    one that started with the later, as the last of their events would have started it.
    """
    up, down, joint = state.up, state.down, state.joint
    if isinstance(waits, Separate) and joint is not None:
        up = _timer(joint.since, joint.joined, ())
        down = _timer(joint.since, (), joint.left)
        joint = None
    elif isinstance(waits, Joint) and (up is not None or down is not None):
        if up is not None and down is not None and up.since != down.since:
            reached("two timers of a zone become one")
        since = max(timer.since for timer in (up, down) if timer is not None)
        joined, left = () if up is None else up.joined, () if down is None else down.left
        up, down, joint = None, None, Timer(since, joined, left)
    return replace(state, waits=waits, up=up, down=down, joint=joint)


def _switched(history: tuple[Entry, ...], ts: int, nodes: Iterable[Node]) -> tuple[Entry, ...]:
    if ts < history[-1].ts:
        raise TimestampBehind(f"data nodes switched at {history[-1].ts}, then at {ts}")
    # Two events of one timestamp are one: no reader can have seen what was between them.
    kept = history[:-1] if history[-1].ts == ts else history
    return (*kept, Entry(ts, _sorted(nodes)))


def _unless(timer: Timer | None, due: list[Timer]) -> Timer | None:
    # By identity: two timers may be equal values.
    return None if any(timer is other for other in due) else timer


def _sorted(nodes: Iterable[Node]) -> tuple[Node, ...]:
    return tuple(sorted(nodes, key=lambda node: node.name))
