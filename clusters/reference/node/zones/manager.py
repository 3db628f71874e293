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

from clusters.reference.node.catalog.catalog import Catalog
from clusters.reference.node.catalog.options import Zone
from clusters.reference.node.metastorage.metastorage import (
    Condition,
    Invoke,
    Operation,
    Versioned,
)
from clusters.reference.node.zones import data_nodes
from clusters.reference.node.zones.data_nodes import DataNodes, Topology

DATA_NODES = "zone.data.nodes/"  # and the zone's id

_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(DataNodes).decode


class View(Protocol):
    """What is read of metastorage: one state of it."""

    def get(self, key: str) -> Versioned | None:
        """The value of ``key``."""

    def prefixed(self, prefix: str) -> Mapping[str, Versioned]:
        """All keys that begin with ``prefix``."""


def read(view: View, zone: Zone) -> DataNodes | None:
    """The state of ``zone``, once it is written."""
    held = view.get(f"{DATA_NODES}{zone.id}")
    return None if held is None else _decode(held.value)


def next_due(view: View) -> int | None:
    """When a timer of any zone fires next."""
    due = (data_nodes.due_at(_decode(held.value)) for held in view.prefixed(DATA_NODES).values())
    return min((ts for ts in due if ts is not None), default=None)


def step(
    view: View, catalog: Catalog, topology: Topology, ts: int, *, oldest: int = 0
) -> tuple[Invoke, ...]:
    """The invokes that bring every zone's state up to date, by zone; none where all are. The state
    of zones that were dropped is removed, timers and history with it; a history that changes keeps
    what readers at ``oldest`` and later need. Raises ``TimestampBehind``.
    """
    states = view.prefixed(DATA_NODES)
    there = {f"{DATA_NODES}{zone.id}": zone for zone in catalog.zones.values()}
    invokes = []
    for key in sorted({*states, *there}):
        held = states.get(key)
        before = None if held is None else _decode(held.value)
        after = _following(before, there.get(key), topology, ts)
        if after != before:
            value = None if after is None else _encode(data_nodes.compacted(after, oldest))
            invokes.append(_replaced(key, held, value))
    return tuple(invokes)


def resume(view: View, down_since: int, ts: int) -> tuple[Invoke, ...]:
    """The invokes by which every zone resumes after the whole cluster was down; to be done once a
    restart.
    """
    invokes = []
    for key, held in view.prefixed(DATA_NODES).items():
        before = _decode(held.value)
        after = data_nodes.resumed(before, down_since=down_since, ts=ts)
        if after != before:
            invokes.append(_replaced(key, held, _encode(after)))
    return tuple(invokes)


def _following(
    before: DataNodes | None, zone: Zone | None, topology: Topology, ts: int
) -> DataNodes | None:
    if zone is None:
        return None
    if before is None:
        return data_nodes.created(zone, topology, ts)
    # The topology first, so that another filter sees the nodes that joined with it.
    state = data_nodes.topology_changed(before, topology, ts)
    return data_nodes.fired(data_nodes.altered(state, zone, ts), ts)


def _replaced(key: str, held: Versioned | None, value: bytes | None) -> Invoke:
    unchanged = (
        Condition(key, "absent")
        if held is None
        else Condition(key, "revision", revision=held.revision)
    )
    return Invoke((unchanged,), (Operation(key, value),))
