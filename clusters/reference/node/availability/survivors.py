"""Which of the copies that are left a reset goes on with (IEP-131, resetPartition)."""

from __future__ import annotations

from collections.abc import Collection, Iterable

from clusters.reference.node.bugs import planted
from clusters.reference.node.rebalance.keys import PartitionState
from clusters.reference.node.wire.messages import LogReply


def holders(state: PartitionState, alive: Collection[str]) -> tuple[str, ...]:
    """The nodes ``alive`` that may have a copy, sorted: those of stable and pending. A pending set
    may hold the data before it is stable.
    """
    sets = (state.stable, state.pending)
    nodes = {node for held in sets if held is not None for node in held.nodes}
    return tuple(sorted(node for node in nodes if node in alive))


def members(
    state: PartitionState, alive: Collection[str], whole: Collection[str]
) -> tuple[str, ...]:
    """The nodes ``alive`` that are to have the partition behind a reset, sorted: those of stable
    with any copy or none, and of pending the holders of ``whole`` ones. To no other node data is
    sent before a scale timer fires.
    """
    stable = () if state.stable is None else state.stable.nodes
    return tuple(sorted({*(node for node in stable if node in alive), *whole}))


def chosen(logs: Iterable[tuple[str, LogReply]]) -> str | None:
    """The node whose log is the most advanced: by generation, last term and last index; of equal
    ones the first by name. The index alone would prefer what an old leader could not commit. A
    copy that is not whole can't go on alone.
    """
    whole = sorted((each for each in logs if each[1].whole), key=lambda each: each[0])
    if not whole:
        return None
    if planted("reset-picks-any"):
        return whole[0][0]
    if planted("reset-by-index-alone"):
        return max(whole, key=lambda each: each[1].index)[0]
    # The first of equal ones is kept by ``max``.
    return max(whole, key=lambda each: (each[1].generation, each[1].term, each[1].index))[0]
