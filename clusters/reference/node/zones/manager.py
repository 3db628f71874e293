"""What the zones' keys in metastorage should be: a function of what is there, the catalog, the
topology and the time.

One small loop on the leader of metastorage calls ``step`` whenever the catalog or the topology has
changed and when ``next_due`` has come, and does the invokes. Each replaces one zone's state by
compare-and-set, so that two leaders at once do no harm: of two invokes from one state one is done.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

import msgspec

from clusters.reference.node.catalog import catalog as catalogs
from clusters.reference.node.catalog.catalog import Catalog
from clusters.reference.node.catalog.options import Zone
from clusters.reference.node.markers import reached
from clusters.reference.node.metastorage.metastorage import (
    Change,
    Compacted,
    Invoke,
    Operation,
    Versioned,
    unchanged,
)
from clusters.reference.node.topology.logical import LOGICAL, decode_members
from clusters.reference.node.zones import data_nodes
from clusters.reference.node.zones.data_nodes import DataNodes, Entry, Topology

HISTORY = "zone.data.nodes/"  # and the zone's id: its revision is that of the last switch
TIMERS = "zone.timers/"  # all the rest of a zone's state, written with every event

_encode = msgspec.msgpack.Encoder().encode
decode_history = msgspec.msgpack.Decoder(tuple[Entry, ...]).decode
decode_rest = msgspec.msgpack.Decoder(DataNodes).decode


class View(Protocol):
    """What is read of metastorage: one state of it."""

    def get(self, key: str) -> Versioned | None:
        """The value of ``key``."""

    def prefixed(self, prefix: str) -> Mapping[str, Versioned]:
        """All keys that begin with ``prefix``."""


class History(View, Protocol):
    """One state of metastorage, and what led to it."""

    def changes(self, prefix: tuple[str, ...], after: int) -> tuple[Change, ...]:
        """The changes of each revision above ``after`` under any of the prefixes, the oldest first.
        Raises ``Compacted``.
        """


def read(view: View, zone: int) -> DataNodes | None:
    """The state of the zone with that id, once it is written."""
    rest, history = view.get(f"{TIMERS}{zone}"), view.get(f"{HISTORY}{zone}")
    if rest is None or history is None:
        return None
    return msgspec.structs.replace(decode_rest(rest.value), history=decode_history(history.value))


def next_due(view: View) -> int | None:
    """The physical time at which a timer of any zone fires next."""
    due = (data_nodes.due_at(state) for state in _states(view).values())
    return min((ts for ts in due if ts is not None), default=None)


def _states(view: View) -> dict[int, DataNodes]:
    """The state of every zone, by the zone's id."""
    ids = sorted(int(key.removeprefix(TIMERS)) for key in view.prefixed(TIMERS))
    return {zone: state for zone in ids if (state := read(view, zone)) is not None}


def step(
    view: History,
    catalog: Catalog,
    topology: Topology,
    ts: int,
    *,
    physical: int | None = None,
    oldest: int = 0,
) -> tuple[Invoke, ...]:
    """The invokes that bring every zone's state up to date, by zone; none where all are. Switches
    are dated ``ts``, timers go by ``physical`` time (``ts`` where it is not given). The state
    of zones that were dropped is removed, timers and history with it; a history that changes keeps
    what readers at ``oldest`` and later need. Raises ``TimestampBehind``.
    """
    states = _states(view)
    there = {zone.id: zone for zone in catalog.zones.values()}
    invokes = []
    for zone in sorted({*states, *there}):
        before = states.get(zone)
        after = _following(view, before, there.get(zone), topology, ts, physical)
        if after != before:
            # Only along with a change: compaction alone would cost a revision.
            kept = None if after is None else data_nodes.compacted(after, oldest)
            invokes.append(_replaced(view, zone, before, kept))
    return tuple(invokes)


def resume(view: View, down_since: int, physical: int) -> tuple[Invoke, ...]:
    """The invokes by which every zone resumes after the whole cluster was down; to be done once a
    restart.
    """
    invokes = []
    for zone, before in _states(view).items():
        after = data_nodes.resumed(before, down_since=down_since, physical=physical)
        if after != before:
            invokes.append(_replaced(view, zone, before, after))
    return tuple(invokes)


def _following(
    view: History,
    before: DataNodes | None,
    zone: Zone | None,
    topology: Topology,
    ts: int,
    physical: int | None,
) -> DataNodes | None:
    if zone is None:
        return None
    if before is None:
        return data_nodes.created(zone, topology, ts)
    # By the order of revisions, however late they are followed: each topology may start timers,
    # also one that did not last, and what a statement found goes by the options of before.
    found, later = _topologies_since(view, before, zone, topology)
    state = data_nodes.topologies_changed(before, found, ts, physical)
    if (detour := _filter_there_and_back(view, before, zone)) is not None:
        reached("filter of a zone followed there and back")
        state = data_nodes.altered(state, detour, ts)
    state = data_nodes.altered(state, zone, ts)
    if later:
        reached("topology that changed after a statement followed along with it")
        state = data_nodes.topologies_changed(state, later, ts, physical)
    return data_nodes.fired(state, ts, physical)


def _topologies_since(
    view: History, before: DataNodes, zone: Zone, topology: Topology
) -> tuple[tuple[Topology, ...], tuple[Topology, ...]]:
    """The topologies since that of ``before``: those that the last statement on the zone found, all
    where ``before`` has followed it; and those behind it. ``topology`` alone where no revision
    tells of the others any more.
    """
    if topology.revision <= before.topology.revision:
        return (), ()
    said, stated = (before.waits, before.filter), False
    try:
        changes = view.changes((catalogs.KEY, LOGICAL), before.topology.revision)
    except Compacted:
        statement = view.get(catalogs.KEY)
        earlier = statement is not None and statement.revision < topology.revision
        stated = earlier and said != (zone.waits, zone.filter)
        changes = ()
    found, later = list[Topology](), list[Topology]()
    for change in changes:
        if (members := change.entries.get(LOGICAL)) is not None:
            nodes = tuple(member.node for member in decode_members(members))
            later.append(Topology(revision=change.revision, nodes=nodes))
        if (text := change.entries.get(catalogs.KEY)) is not None:
            for other in catalogs.decode(text).zones.values():
                if other.id == zone.id and said != (other.waits, other.filter):
                    said, stated = (other.waits, other.filter), True
                    found += later
                    later.clear()
    if not any(each.revision == topology.revision for each in (*found, *later)):
        later.append(topology)
    return (tuple(found), tuple(later)) if stated else (tuple(later), ())


def _filter_there_and_back(view: History, before: DataNodes, zone: Zone) -> Zone | None:
    """The zone under another filter than ``before`` has followed and ``zone`` has again: that one
    applied at once, too, and no timer has survived it. ``None`` where there was none, or no
    revision tells of it any more.
    """
    if zone.filter != before.filter:
        return None
    written = view.get(f"{TIMERS}{zone.id}")
    try:
        # Whatever altered the zone earlier is in ``before``: it was written with that.
        changes = view.changes((catalogs.KEY,), 0 if written is None else written.revision)
    except Compacted:
        return None
    for change in changes:
        text = change.entries[catalogs.KEY]
        for other in () if text is None else catalogs.decode(text).zones.values():
            if other.id == zone.id and other.filter != zone.filter:
                return other
    return None


def _replaced(view: View, zone: int, before: DataNodes | None, after: DataNodes | None) -> Invoke:
    """The invoke that puts ``after`` in place of what ``view`` has, unless that has changed: every
    change writes the timers' key.
    """
    key = f"{TIMERS}{zone}"
    as_read = (unchanged(key, view.get(key)),)
    if after is None:
        return Invoke(as_read, (Operation(key, None), Operation(f"{HISTORY}{zone}", None)))
    operations = [Operation(key, _encode(msgspec.structs.replace(after, history=())))]
    # Not with every event: a rebalance is triggered by the revision of the history's key.
    if before is None or before.history != after.history:
        operations.append(Operation(f"{HISTORY}{zone}", _encode(after.history)))
    return Invoke(as_read, tuple(operations))
