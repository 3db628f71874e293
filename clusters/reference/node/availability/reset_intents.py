"""When partitions of a zone are looked at after nodes have left: the reset timer of a zone that is
highly available (IEP-131, initPartitionDistributionResetTimer), as a value under one key.

A leave (re)starts the timer with its own revision; a join does not, since what is back counts when
the timer fires. The state is in metastorage, so the timer goes on, with its deadline, after a
restart of a node, of metastorage's leader, or of the whole cluster.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

import msgspec

from clusters.reference.node.markers import reached
from clusters.reference.node.metastorage.metastorage import View
from clusters.reference.node.runtime.hybrid_clock import span

INTENT = "zone.reset/"  # and the zone's id

replace = msgspec.structs.replace


class Intent(msgspec.Struct, frozen=True, array_like=True):
    """Look for lost majorities of the topology of ``revision``, in which ``alive`` were left or are
    waited for; the timer runs since ``since`` (physical time).
    """

    revision: int
    since: int
    alive: tuple[str, ...]


class ZoneResets(msgspec.Struct, frozen=True, array_like=True):
    """The topology that was handled last, and the names in it of which a leave counts; the timer,
    where it runs; and the nodes that were there when the whole cluster went down and are not back
    yet, with their starts of before.
    """

    revision: int
    names: tuple[str, ...]
    intent: Intent | None = None
    awaited: tuple[tuple[str, str], ...] = ()


encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(ZoneResets).decode


def read(view: View, zone: int) -> ZoneResets | None:
    """The state of the zone with that id, once it is written."""
    held = view.get(f"{INTENT}{zone}")
    return None if held is None else _decode(held.value)


def created(revision: int, names: Collection[str], physical: int, *, lacking: bool) -> ZoneResets:
    """The state of a zone that is new, or was altered to be highly available. ``lacking``: one of
    its partitions has lost its majority already.
    """
    there = tuple(sorted(names))
    intent = Intent(revision, physical, there) if lacking else None
    return ZoneResets(revision, there, intent)


def topology_changed(
    state: ZoneResets, revision: int, starts: Mapping[str, str], physical: int
) -> ZoneResets:
    """The state after the topology of ``revision``, of the nodes with these ``starts``, took the
    place of the one before, by however many events.
    """
    if revision <= state.revision:
        return state
    # A start of before is in the topology until its lease is missed: that is no leave, and the node
    # not one that is back.
    awaited = tuple(
        (name, start) for name, start in state.awaited if starts.get(name, start) == start
    )
    waited = {name for name, _ in awaited}
    there = tuple(sorted(name for name in starts if name not in waited))
    intent = state.intent
    if any(name not in starts for name in state.names):
        if intent is not None:
            reached("reset timer started anew with a newer revision")
        intent = Intent(revision, physical, tuple(sorted({*starts, *waited})))
    return ZoneResets(revision, there, intent, awaited)


def armed(state: ZoneResets, revision: int, names: Collection[str], physical: int) -> ZoneResets:
    """The state with a timer that starts now, in the topology of ``revision`` with ``names``."""
    return replace(state, intent=Intent(revision, physical, tuple(sorted(names))))


def restarted(state: ZoneResets, names: Collection[str], starts: Mapping[str, str]) -> ZoneResets:
    """The state when the whole cluster has started again with ``names``: of the others that were in
    the topology, with ``starts``, none has left since then, and they are waited for.
    """
    # What had left before went unnoticed so far: that is no part of the restart.
    kept = tuple(name for name in state.names if name in names or name not in starts)
    before = {**dict(state.awaited), **starts}
    awaited = tuple((name, before[name]) for name in sorted(before) if name not in names)
    return replace(state, names=kept, awaited=awaited)


def due_at(state: ZoneResets, timeout_s: int) -> int | None:
    """The physical time at which the timer fires; ``None`` where it does not run."""
    return None if state.intent is None else state.intent.since + span(timeout_s)


def done(state: ZoneResets) -> ZoneResets:
    """The state once the timer has fired, and all was done."""
    return replace(state, intent=None)
