"""What zones' reset timers should be, and which partitions a timer that fires is about: functions
of metastorage's view, the catalog, the topology and the time.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator

from clusters.reference.node.availability import reset_intents
from clusters.reference.node.availability.majority import (
    Standing,
    given_to_lost_copy,
    standing,
)
from clusters.reference.node.availability.reset_intents import INTENT, ZoneResets
from clusters.reference.node.bugs import planted
from clusters.reference.node.catalog.catalog import Catalog
from clusters.reference.node.catalog.options import Zone
from clusters.reference.node.metastorage.metastorage import Invoke, Operation, View, unchanged
from clusters.reference.node.rebalance import keys, transitions
from clusters.reference.node.rebalance.keys import PartitionId, PartitionState
from clusters.reference.node.topology.logical import lives, logical
from clusters.reference.node.zones.data_nodes import Topology


def step(view: View, catalog: Catalog, topology: Topology, physical: int) -> tuple[Invoke, ...]:
    """The invokes that bring every zone's timer up to date with ``topology``, and begin the chains
    of zones that were altered; none where all are.
    """
    names = tuple(node.name for node in topology.nodes)
    starts = {member.name: member.origin for member in logical(view)}
    invokes: list[Invoke] = []
    there = {zone.id: zone for zone in catalog.zones.values() if _resets(zone)}
    for key in view.prefixed(INTENT):
        if int(key.removeprefix(INTENT)) not in there:
            invokes.append(Invoke((unchanged(key, view.get(key)),), (Operation(key, None),)))
    for zone in (there[number] for number in sorted(there)):
        before = reset_intents.read(view, zone.id)
        if before is None:
            lacking = any(lost(view, catalog, zone, names))
            after = reset_intents.created(topology.revision, names, physical, lacking=lacking)
        else:
            after = reset_intents.topology_changed(before, topology.revision, starts, physical)
            if after.intent is None and _resets_are_stuck(view, catalog, zone):
                after = reset_intents.armed(after, topology.revision, names, physical)
        if after != before:
            invokes.append(replaced(view, zone.id, after))
        if zone.highly_available:
            invokes += [
                transitions.chained(state).invoke
                for state in states(view, catalog, zone)
                if state.chain is None
            ]
    return tuple(invokes)


def restart(view: View, names: Collection[str]) -> tuple[Invoke, ...]:
    """The invokes after the whole cluster has started again with ``names``."""
    invokes = []
    starts = {member.name: member.origin for member in logical(view)}
    for key in view.prefixed(INTENT):
        zone = int(key.removeprefix(INTENT))
        before = reset_intents.read(view, zone)
        after = None if before is None else reset_intents.restarted(before, names, starts)
        if after is not None and after != before:
            invokes.append(replaced(view, zone, after))
    return tuple(invokes)


def next_due(view: View, catalog: Catalog) -> int | None:
    """The physical time at which the timer of any zone fires next."""
    due = (
        reset_intents.due_at(state, zone.reset_timeout_s)
        for zone in catalog.zones.values()
        if _resets(zone) and (state := reset_intents.read(view, zone.id)) is not None
    )
    return min((at for at in due if at is not None), default=None)


def due(view: View, catalog: Catalog, physical: int) -> Iterator[tuple[Zone, ZoneResets]]:
    """The zones whose timer has fired, and its state."""
    for name in sorted(catalog.zones):
        zone = catalog.zones[name]
        state = reset_intents.read(view, zone.id) if _resets(zone) else None
        at = None if state is None else reset_intents.due_at(state, zone.reset_timeout_s)
        if state is not None and at is not None and at <= physical:
            yield zone, state


def lost(
    view: View, catalog: Catalog, zone: Zone, *topologies: Collection[str]
) -> Iterator[PartitionState]:
    """The partitions of ``zone`` that have a minority, though not nothing, in each of
    ``topologies``: the one that the timer is for, and the newest.
    """
    for state in states(view, catalog, zone):
        # A reset that goes on ends by itself, or with the timer of the node that it was given to.
        found = {standing(state, names, lives(view)) for names in topologies}
        mistaken = Standing.LOST not in found and planted("reset-with-majority")
        if found == {Standing.MINORITY} or mistaken:
            yield state


def _resets_are_stuck(view: View, catalog: Catalog, zone: Zone) -> bool:
    """Whether a reset of ``zone`` was given to a copy that was lost before it began the generation,
    by a node that was back before it was missed.
    """
    return any(given_to_lost_copy(s, lives(view)) for s in states(view, catalog, zone))


def states(view: View, catalog: Catalog, zone: Zone) -> Iterator[PartitionState]:
    """What metastorage holds of each partition of ``zone`` that has assignments."""
    for table in sorted(catalog.group(zone.name), key=lambda table: table.id):
        for number in range(zone.partitions):
            state = keys.read(view, PartitionId(table.id, number))
            if state.stable is not None:
                yield state


def replaced(view: View, zone: int, after: ZoneResets) -> Invoke:
    """The invoke that puts ``after`` in place of what ``view`` has, unless that has changed."""
    key = f"{INTENT}{zone}"
    return Invoke((unchanged(key, view.get(key)),), (Operation(key, reset_intents.encode(after)),))


def _resets(zone: Zone) -> bool:
    return zone.highly_available or planted("reset-in-sc")
