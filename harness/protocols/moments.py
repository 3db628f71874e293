"""Moments of a store at which faults can be aimed: a closed list, and where they come from.

A plan names one in ``on``. Simulated nodes tell each moment at the very instant; of a store on real
nodes a run hears those that its events stand for, as late as they are fetched.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Collection
from typing import Protocol, runtime_checkable

import attrs

from harness.history.records import EventKind, StoreEvent
from harness.protocols.cluster import Provider, Roles, System


class Moment(enum.StrEnum):
    """A moment in a store's life. The texts stand in plans."""

    LEADER_ELECTED = "leader-elected"
    PRIMARY_GRANTED = "primary-granted"
    PREPARE_LOGGED = "prepare-logged"  # durable, and its coordinator not told yet
    OUTCOME_LOGGED = "outcome-logged"  # durable, and no participant has finished
    SNAPSHOT_INSTALLING = "snapshot-installing"  # received, and nothing of it in force
    SNAPSHOT_INSTALLED = "snapshot-installed"
    SNAPSHOT_SAVED = "snapshot-saved"  # a checkpoint: the log before it may go
    MEMBERS_CATCHING_UP = "members-catching-up"
    MEMBERS_JOINT = "members-joint"
    MEMBERS_STABLE = "members-stable"
    LEASE_ENDING = "lease-ending"  # before another renewal can come


@attrs.frozen(kw_only=True)
class Happening:
    """A moment that has come, on ``node``, of ``partition`` where it is of one."""

    moment: Moment
    node: str
    partition: int | None = None

    def __str__(self) -> str:
        of = "" if self.partition is None else f", partition {self.partition}"
        return f"{self.moment.value} ({self.node}{of})"


Observer = Callable[[Happening], None]


@runtime_checkable
class WatchesMoments(Protocol):
    """A ``Provider`` that sees moments inside its nodes as they come."""

    def moments(self) -> frozenset[Moment]:
        """Return the moments that it sees."""

    def watch(self, observer: Observer) -> None:
        """Call ``observer`` at each moment from now on, in the middle of the node's step: it must
        neither wait nor set timers.
        """

    def roles_now(self) -> Roles:
        """Return the leaders and primaries by the moments so far, without asking any node."""


@runtime_checkable
class TellsMoments(Protocol):
    """A ``System`` some of whose events are moments (``moment_of``)."""

    def moments(self) -> frozenset[Moment]:
        """Return the moments that its events tell."""


class RolesHeard:
    """The node that led each partition last, and that was granted it last, by the moments so far.
    A leader of no partition is that of the metastorage.
    """

    def __init__(self) -> None:
        self._leaders: dict[int, str] = {}
        self._primaries: dict[int, str] = {}
        self._metastorage_leader: str | None = None

    def take(self, happening: Happening) -> None:
        """Take in the next moment."""
        node, partition = happening.node, happening.partition
        if happening.moment is Moment.LEADER_ELECTED and partition is None:
            self._metastorage_leader = node
        elif happening.moment is Moment.LEADER_ELECTED and partition is not None:
            self._leaders[partition] = node
        elif happening.moment is Moment.PRIMARY_GRANTED and partition is not None:
            self._primaries[partition] = node

    def roles(self, running: Collection[str]) -> Roles:
        """Return the roles of those nodes that are ``running``."""
        leader = self._metastorage_leader
        return Roles(
            leaders={p: node for p, node in sorted(self._leaders.items()) if node in running},
            primaries={p: node for p, node in sorted(self._primaries.items()) if node in running},
            metastorage_leader=leader if leader in running else None,
        )


_OF_EVENTS = {
    EventKind.LEADER_ELECTED: Moment.LEADER_ELECTED,
    EventKind.SNAPSHOT_INSTALLED: Moment.SNAPSHOT_INSTALLED,
}


def moment_of(event: StoreEvent) -> Moment | None:
    """Return the moment that ``event`` tells, if it is one."""
    if event.kind is EventKind.LEASE_GRANTED:
        # Without a partition it is the lease of a node, under which nothing is granted yet.
        return None if event.partition is None else Moment.PRIMARY_GRANTED
    return _OF_EVENTS.get(event.kind)


def moments_told(provider: Provider, system: System) -> frozenset[Moment]:
    """Return the moments at which a fault can be aimed on this provider's nodes."""
    # First: it sees a moment as it comes, where events tell of it some polls later.
    if isinstance(provider, WatchesMoments):
        return provider.moments()
    return system.moments() if isinstance(system, TellsMoments) else frozenset()
