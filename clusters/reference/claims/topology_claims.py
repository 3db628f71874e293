"""The topology once more, from metastorage's log: which nodes come and go and why they may, what
timers of zones become as the whole cluster goes on, which resets are owed, and where copies belong.
"""

from __future__ import annotations

from collections.abc import Iterator

import msgspec

from clusters.reference.claims.durable_facts import generation_name
from clusters.reference.node.catalog import catalog as catalogs
from clusters.reference.node.catalog.options import Zone
from clusters.reference.node.config import DEFAULT_DETECTION_S
from clusters.reference.node.metastorage.metastorage import Change, Metastorage
from clusters.reference.node.placement.lease_expiry import DRIFT
from clusters.reference.node.rebalance.driver import Numbers, numbers
from clusters.reference.node.rebalance.keys import (
    CHAIN,
    GENERATION,
    PENDING,
    STABLE,
    PartitionId,
    PartitionState,
    read,
)
from clusters.reference.node.runtime.hybrid_clock import span
from clusters.reference.node.storage.identity import directory_of, name_of
from clusters.reference.node.topology.logical import (
    LIVES,
    LOGICAL,
    RESUMED,
    Member,
    decode_members,
    decode_names,
    lives,
)
from clusters.reference.node.zones.data_nodes import DataNodes
from clusters.reference.node.zones.manager import TIMERS
from harness.protocols.claims import (
    Duties,
    Duty,
    Fact,
    NodeDeparture,
    NodeJoined,
    Placement,
    TimersResumed,
)

# Beside the wait of its zone: a reset lets a lease run out, asks each copy, and tries again after
# two seconds at most, of which it mostly needs none.
RESET_WITHIN_S = 4.0
_OF_PARTITIONS = (STABLE, PENDING, GENERATION, CHAIN, LOGICAL, LIVES, RESUMED, catalogs.KEY)

_timers = msgspec.msgpack.Decoder(DataNodes).decode


class TopologyClaims:
    """Follows the nodes, timers and assignments in ``state``, revision by revision."""

    def __init__(self, state: Metastorage) -> None:
        self._state = state
        self.silence_s = DEFAULT_DETECTION_S
        self._members: dict[str, Member] = {}
        self._after_leave: frozenset[str] = frozenset()  # that were left as a node last left
        self._ending: dict[str, None] = {}  # starts that have asked to leave
        self._zones: dict[str, DataNodes] = {}  # by key
        self._resumed: tuple[str, ...] = ()  # the starts with which the cluster last went on
        self._back: dict[str, None] = {}  # nodes that have joined since then
        self._duties: tuple[Duty, ...] = ()
        self._placed: dict[str, Placement] = {}
        self._highly_available: dict[str, bool | None] = {}  # by root; ``None``: it was altered

    def ends(self, holder: str) -> None:
        """The start ``holder`` asks to leave."""
        self._ending[holder] = None

    def resets_itself(self, root: str) -> bool:
        """Whether ``root`` is reset where it loses its majority, and always was."""
        return bool(self._highly_available.get(root))

    def changed(self, change: Change) -> Iterator[Fact]:
        """Yield what the revision promises; ``state`` has applied it."""
        entries = change.entries
        if (members := entries.get(LOGICAL)) is not None:
            yield from self._moved({member.name: member for member in decode_members(members)})
        if (resumed := entries.get(RESUMED)) is not None:
            yield self._goes_on(change)
            self._resumed, self._back = decode_names(resumed), {}
        for key, value in entries.items():
            if key.startswith(TIMERS):
                if value is None:
                    self._zones.pop(key, None)
                else:
                    self._zones[key] = _timers(value)
        if any(key.startswith(_OF_PARTITIONS) for key in entries):
            yield from self._assigned()

    def _moved(self, now: dict[str, Member]) -> Iterator[Fact]:
        before, self._members = self._members, now
        for name, member in now.items():
            if name not in before or before[name].origin != member.origin:
                self._back[name] = None
                yield NodeJoined(name, member.origin, self.silence_s)
        if any(name not in now for name in before):
            self._after_leave = frozenset(now)
        for name, member in before.items():
            if name not in now:
                yield NodeDeparture(name, member.origin, member.origin in self._ending)

    def _goes_on(self, change: Change) -> Fact:
        shifts = []
        for key, before in self._zones.items():
            value = change.entries.get(key)
            after = before if value is None else _timers(value)
            for name in ("up", "down", "joint"):
                began, begins = getattr(before, name), getattr(after, name)
                if began is not None and begins is not None:
                    shift_s = (begins.since - began.since) / span(1.0)
                    what = f"the {name} timer of zone {key.removeprefix(TIMERS)}"
                    shifts.append((what, shift_s))
        earlier = (*(member.origin for member in self._members.values()), *self._resumed)
        return TimersResumed(tuple(dict.fromkeys(earlier)), tuple(shifts))

    # Partitions.

    def _assigned(self) -> Iterator[Fact]:
        given, known = numbers(self._state), lives(self._state)
        duties: list[Duty] = []
        gone = dict(self._placed)
        for zone, state, number in self._partitions(given):
            placed = self._placement(state, f"p{number}")
            gone.pop(placed.root, None)
            modes, is_now = self._highly_available, zone.highly_available
            modes[placed.root] = is_now if modes.get(placed.root, is_now) == is_now else None
            if self._placed.get(placed.root) != placed:
                self._placed[placed.root] = placed
                yield placed
            if zone.highly_available and (duty := self._reset(zone, state, placed.root, known)):
                duties.append(duty)
        for root in gone:  # its table is dropped
            del self._placed[root]
            yield Placement(root, root, (), majority=True, reset=False)
        if (found := tuple(duties)) != self._duties:
            self._duties = found
            yield Duties(found)

    def _partitions(self, given: Numbers) -> Iterator[tuple[Zone, PartitionState, int]]:
        catalog = catalogs.read(self._state.get)
        for name, zone in catalog.zones.items():
            for table in catalog.group(name):
                for place in range(zone.partitions):
                    partition = PartitionId(table.id, place)
                    number = given.of(partition)
                    state = read(self._state, partition)
                    if number is not None and state.stable is not None:
                        yield zone, state, number

    def _placement(self, state: PartitionState, root: str) -> Placement:
        stable, pending = _nodes(state)
        there = sum(node in self._members for node in stable)
        nodes = tuple(sorted({*stable, *pending}))
        reset = bool(state.generation) or state.chain is not None
        group = generation_name(root, state.generation)
        return Placement(root, group, nodes, 2 * there > len(stable), reset)

    def _reset(
        self, zone: Zone, state: PartitionState, root: str, known: dict[str, str]
    ) -> Duty | None:
        """The reset that is owed to a partition of which a minority is there, if one is."""
        stable, pending = _nodes(state)
        left = [node for node in stable if node in self._members]
        given = state.pending if state.pending is not None and state.pending.force else None
        directory = "" if given is None else directory_of(given.member)
        is_lost = bool(directory) and known.get(name_of(directory), directory) != directory
        goes_on = given is not None and not is_lost and any(n in self._members for n in given.nodes)
        # After a start of the whole cluster nodes that were there before it are waited for.
        gone = [node for node in stable if node not in self._members]
        awaited = self._resumed and any(node not in self._back for node in gone)
        # Where none is left nothing is reset, also if one comes back while the timer runs.
        lost = not left or self._after_leave.isdisjoint(stable)
        if lost or awaited or goes_on or (2 * len(left) > len(stable) and not is_lost):
            return None
        revisions = [
            0 if (held := self._state.get(key)) is None else held.revision
            for key in (LOGICAL, catalogs.KEY, RESUMED)
        ]
        at = "/".join(map(str, (*revisions, state.stable_revision, state.pending_revision)))
        what = f"{root} of {' '.join(stable)} is to be reset, {' '.join(left)} are left ({at})"
        holders = tuple(sorted({*left, *(node for node in pending if node in self._members)}))
        within_s = zone.reset_timeout_s * (1 + DRIFT) + RESET_WITHIN_S
        return Duty(what, within_s, holders, root)


def _nodes(state: PartitionState) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """The nodes of stable and of pending."""
    stable, pending = state.stable, state.pending
    return (
        () if stable is None else stable.nodes,
        () if pending is None else pending.nodes,
    )
