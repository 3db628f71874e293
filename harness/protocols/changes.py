"""Changes of assignments and topology, by revision: values, and the protocol of a system that
reports them.

A system that moves partitions between nodes writes down, at one place and under ascending
revisions, where each partition is (stable), where it goes (pending) and where it goes after that
(planned), which nodes are there, and on which of them data may lie. All changes of one revision
happened at once. From them checkers judge rebalances, and know no system.
"""

from __future__ import annotations

import enum
from typing import Protocol, runtime_checkable

import msgspec

from harness.clock import RunClock
from harness.protocols.cluster import Cluster


class AssignmentKind(enum.StrEnum):
    """What was written about a partition."""

    STABLE = "stable"
    PENDING = "pending"
    PLANNED = "planned"
    LOCK = "lock"  # pending must not change: the leader of ``term`` goes on to it
    # The stable sets since the last graceful change, one for each forced reset: ``nodes`` is the
    # last of them, ``text`` has all, with ``LINKS_APART`` between them.
    CHAIN = "chain"
    TRIGGER = "trigger"  # ``number``: the revision of the event that was handled last
    # No key: the leader of term ``number`` has accepted a change of peers that was for ``term``;
    # ``revision`` is that of the pending set that asked for it.
    CHANGE_PEERS = "change-peers"
    # A change of peers that the leader of term ``term`` began or was asked for has failed; ``text``
    # says how (``busy``, ``stale-term`` ...).
    CHANGE_FAILED = "change-failed"
    # That leader was asked to cancel the change of peers that goes on; ``number``: 1 where it was.
    CANCEL = "cancel"


OF_LEADERS = frozenset(
    {AssignmentKind.CHANGE_PEERS, AssignmentKind.CHANGE_FAILED, AssignmentKind.CANCEL}
)
"""What no revision wrote: the leader of a partition's group did it, under that revision."""


LINKS_APART = " > "


class TopologyKind(enum.StrEnum):
    """What was written about the nodes of a cluster, or of one of its zones."""

    PHYSICAL = "physical"  # the connected nodes
    LOGICAL = "logical"  # those of them that have joined
    ZONE = "zone"  # the options of a zone; without waits: it was dropped
    ELIGIBLE = "eligible"  # the nodes of the logical topology that pass the zone's filter
    DATA_NODES = "data-nodes"  # the nodes on which a zone's data may lie
    RESTART = "restart"  # the whole cluster was down, and goes on
    GAP = "gap"  # not every change up to this revision was reported


class AssignmentChange(msgspec.Struct, frozen=True, kw_only=True):
    """One key of one partition that a revision wrote. ``nodes`` is ``None`` where a set was
    removed, ``number`` where a trigger was. ``zone`` is that of ``table``. ``node`` reported it
    first; ``at_ns``, on the run's axis: a node had applied it by then.
    """

    revision: int
    at_ns: int
    node: str
    partition: int
    table: str
    zone: str
    kind: AssignmentKind
    nodes: tuple[str, ...] | None = None
    term: int | None = None
    number: int | None = None
    text: str = ""


class TopologyChange(msgspec.Struct, frozen=True, kw_only=True):
    """One change of the topology, or of a zone. ``ts_ns``: the store's own time from which on data
    nodes are these. Of a zone ``up_s``, ``down_s`` or ``joint_s`` are the waits that it has
    (infinite: never), ``text`` its filter; ``reset_s``, where it is highly available: what a reset
    waits for after nodes have left. Of eligible nodes ``text`` names those that are there as
    before, but with other attributes.
    """

    revision: int
    at_ns: int
    node: str
    kind: TopologyKind
    zone: str | None = None
    nodes: tuple[str, ...] | None = None
    ts_ns: int | None = None
    up_s: float | None = None
    down_s: float | None = None
    joint_s: float | None = None
    replicas: int | None = None
    text: str = ""
    reset_s: float | None = None


class ReportedChanges(msgspec.Struct, frozen=True, kw_only=True):
    """A node's answer: every change above revision ``begins`` and up to ``revision`` that it has
    not reported before; it may repeat those that another node has reported.
    """

    begins: int
    revision: int
    assignments: tuple[AssignmentChange, ...] = ()
    topology: tuple[TopologyChange, ...] = ()


@runtime_checkable
class TellsChanges(Protocol):
    """A ``System`` whose nodes report changes of assignments and topology."""

    async def changes(self, cluster: Cluster, node: str, clock: RunClock) -> ReportedChanges | None:
        """Return what ``node`` has not reported yet; ``None`` where it does not answer in time."""
