"""Whether a partition can serve by what metastorage says: its stable assignments and the logical
topology (IEP-131, checkMajority), and the refusal of requests where it can't.

A node refuses what it knows to be without an answer, so that no client waits for a deadline. It
may know too little, as one that is cut off from metastorage, and then asks the primary.
"""

from __future__ import annotations

import enum
from collections.abc import Collection, Mapping

from clusters.reference.node.catalog import catalog as catalogs
from clusters.reference.node.markers import reached
from clusters.reference.node.metastorage.metastorage import Change, View
from clusters.reference.node.raft.configuration import majority
from clusters.reference.node.rebalance import keys
from clusters.reference.node.rebalance.driver import Numbers, numbers
from clusters.reference.node.rebalance.keys import PartitionId, PartitionState
from clusters.reference.node.storage.identity import directory_of, name_of
from clusters.reference.node.topology.logical import LOGICAL, lives, logical
from clusters.reference.node.wire import error_table as codes
from clusters.reference.node.wire.messages import Failed


class Standing(enum.StrEnum):
    """What is left of a partition's stable assignments."""

    MAJORITY = "majority"
    MINORITY = "minority"
    LOST = "lost"  # no node of them


def standing(
    state: PartitionState, alive: Collection[str], lives: Mapping[str, str] | None = None
) -> Standing:
    """Of the partition of ``state`` where the nodes ``alive`` are left, in these ``lives``
    (``topology.logical.lives``).
    """
    nodes = () if state.stable is None else state.stable.nodes
    left = sum(node in alive for node in nodes)
    whole = left >= majority(nodes) and not given_to_lost_copy(state, lives or {})
    if not nodes or whole:
        return Standing.MAJORITY
    return Standing.MINORITY if left else Standing.LOST


def given_to_lost_copy(state: PartitionState, lives: Mapping[str, str]) -> bool:
    """Whether a reset that is under way has given the partition to a copy that is gone: its node's
    directory was lost since, and what begins there would begin empty. No other copy runs then, so
    there is no majority, however many nodes are left.
    """
    pending = state.pending
    if pending is None or not pending.force or not pending.member:
        return False
    directory = directory_of(pending.member)
    return lives.get(name_of(pending.member), directory) != directory


class Refusals:
    """Why requests to a partition are refused, as far as this node has applied metastorage."""

    def __init__(self, view: View) -> None:
        self._view = view
        self._alive: frozenset[str] = frozenset()
        self._numbers: Numbers | None = None
        self._known: dict[int, Failed | None] = {}

    def observed(self, change: Change) -> None:
        """A revision of metastorage was applied."""
        watched = (keys.STABLE, keys.PENDING, LOGICAL, catalogs.KEY)
        if any(key.startswith(watched) for key in change.entries):
            self._known.clear()
            self._numbers = None

    def of(self, number: int) -> Failed | None:
        """The refusal of what is asked of the partition; ``None`` where its primary is to be
        asked.
        """
        if self._numbers is None:
            self._numbers = numbers(self._view)
            self._alive = frozenset(member.name for member in logical(self._view))
        if number not in self._known:
            partition = self._numbers.partition(number)
            self._known[number] = None if partition is None else self._refusal(partition)
        return self._known[number]

    def _refusal(self, partition: PartitionId) -> Failed | None:
        state = keys.read(self._view, partition)
        found = standing(state, self._alive, lives(self._view))
        # Before the first node has joined nobody knows what is left.
        if found is Standing.MAJORITY or not self._alive or state.stable is None:
            return None
        nodes = " ".join(state.stable.nodes)
        if found is Standing.LOST:
            reached("request refused, the partition is lost")
            text = f"partition {partition.number} is lost: none of {nodes} is left"
            return Failed(codes.PARTITION_LOST, text)
        reached("request refused without a majority")
        text = f"partition {partition.number} has no majority: too few of {nodes} are left"
        return Failed(codes.NO_MAJORITY, text)
