"""Metastorage once more, from its log: what a revision did to leases, grants and assignments, and
what it thereby promises.
"""

from __future__ import annotations

from clusters.reference.claims.durable_facts import entry_mark, generation_name
from clusters.reference.claims.topology_claims import TopologyClaims
from clusters.reference.claims.zone_steps import ZoneSteps
from clusters.reference.node.metastorage.metastorage import METASTORAGE, Change, Metastorage
from clusters.reference.node.placement.lease_expiry import (
    CEILING_S,
    LEASE,
    PRIMARY,
    Grant,
    decode_grant,
    decode_lease,
)
from clusters.reference.node.placement.rendezvous import Zone, zone_of
from clusters.reference.node.raft.types import Entry
from clusters.reference.node.rebalance.driver import numbers
from clusters.reference.node.rebalance.keys import (
    APPLIED,
    GENERATION,
    NUMBER_BYTES,
    PENDING,
    STABLE,
    Assignments,
    PartitionId,
)
from clusters.reference.node.rebalance.keys import decode as decode_assignments
from clusters.reference.node.runtime.hybrid_clock import COUNTER_BITS, span
from clusters.reference.node.topology.logical import logical
from harness.protocols.claims import (
    Fact,
    ForcedReset,
    LeaseRenewal,
    NoOpEntry,
    PrimaryGrant,
    StableMembers,
    TimestampOrder,
)

NS_PER_MS = 1_000_000


class MetastorageClaims:
    """Metastorage once more, from what is committed: a grant counts only if its conditions hold."""

    def __init__(self) -> None:
        self._entries: dict[tuple[int, int], Entry] = {}
        self._changed: list[Fact] = []
        self._state = Metastorage()
        self._state.observe(PRIMARY, self._observe)
        self._state.observe(LEASE, self._observe_renewals)
        self._state.observe("", self._observe_all)
        self.topology = TopologyClaims(self._state)
        self._zone_steps = ZoneSteps(self._state)
        self._complete = True  # of what is missing all that follows may be another
        self._values: dict[str, bytes | None] = {}
        self._zone: Zone | None = None
        self._held: dict[str, Grant] = {}  # by group, the last one
        self._ceilings: dict[str, int] = {}  # of each start, the highest
        self._promised: dict[tuple[str, int], int] = {}  # by group and epoch: before it began
        self._renewed: dict[str, int] = {}  # of each start, the highest ceiling that a disk has
        self._told: dict[tuple[str, str], int] = {}  # by group and start: its highest promise

    @property
    def partitions(self) -> int:
        """How many partitions there are; 0 until that is decided."""
        if self._zone is None:
            self._zone = zone_of(self._state)
        return 0 if self._zone is None else self._zone.partitions

    def promises(self, group: str, origin: str, ts: int) -> TimestampOrder | None:
        """The start ``origin``, as the primary of ``group``, tells readers that nothing comes to be
        up to ``ts`` any more; ``None`` where no renewal of it was seen.
        """
        key, ceiling = (group, origin), self._renewed.get(origin)
        self._told[key] = max(ts, self._told.get(key, 0))
        if ceiling is None:
            return None
        return TimestampOrder(f"what follows the ceiling of {origin}", ceiling + 1, ts)

    def renewal_logged(self, value: bytes) -> None:
        """A disk has a renewal, whether it comes to count or not."""
        lease = decode_lease(value)
        self._renewed[lease.origin] = max(lease.ceiling, self._renewed.get(lease.origin, 0))

    def logged(self, entry: Entry) -> None:
        self._entries[(entry.index, entry_mark(entry))] = entry

    @property
    def revision(self) -> int:
        """What is committed, as far as all of it is known; 0 where that is not so."""
        return self._state.revision if self._complete else 0

    def committed(self, index: int, mark: int) -> list[Fact]:
        self._complete = self._complete and mark != 0
        entry = self._entries.pop((index, mark), None)
        if entry is not None:  # of a leader's first entry and of configurations nothing follows
            self._state.apply(entry)
        changed, self._changed = self._changed, []
        return changed

    def _observe(self, change: Change) -> None:
        for key, value in change.entries.items():
            if value is not None:
                grant = decode_grant(value)
                group = partition_group(int(key.removeprefix(PRIMARY)))
                self._follow(group, grant)
                self._changed.append(PrimaryGrant(group, grant.origin, grant.epoch, grant.released))

    def _follow(self, group: str, grant: Grant) -> None:
        before = self._held.get(group)
        self._held[group] = grant
        if grant.released and grant.ceiling:
            # The next primary begins above it, whatever the lease says.
            what = f"what follows the ceiling of the release of epoch {grant.epoch} of {group}"
            told = self._told.get((group, grant.origin), 0)
            self._changed.append(TimestampOrder(what, grant.ceiling + 1, told))
        # What a node has promised itself is below its clock; an earlier start of it may have sent
        # a renewal which that start has never applied, so that it promised nothing by it.
        if before is None or before.node == grant.node or before.generation != grant.generation:
            return
        told = before.ceiling if before.released else 0
        self._promised[(group, grant.epoch)] = told or self._ceilings.get(before.origin, 0)

    def promised(self, group: str, epoch: int) -> int:
        """Up to where the primary before ``epoch`` may have promised readers that nothing comes to
        be any more; 0 where that is not known.
        """
        return self._promised.get((group, epoch), 0)

    def _observe_all(self, change: Change) -> None:
        """A revision that gives all its keys the values that they have changes nothing."""
        if all(self._values.get(key) == value for key, value in change.entries.items()):
            self._changed.append(NoOpEntry(METASTORAGE, min(change.entries, default="")))
        self._assigned(change)
        if self._complete:
            self._changed.extend(self.topology.changed(change))
            self._changed.extend(self._zone_steps.changed(change))
        self._values.update(change.entries)

    def _observe_renewals(self, change: Change) -> None:
        for value in change.entries.values():
            if value is not None:
                lease = decode_lease(value)
                known = self._ceilings.get(lease.origin, 0)
                self._ceilings[lease.origin] = max(known, lease.ceiling)
                # The next primary begins above the ceiling of the last one: it never falls.
                what = f"the ceiling of renewal {lease.number} of {lease.origin}"
                self._changed.append(TimestampOrder(what, lease.ceiling, known - 1))
                self._changed.append(renewed(value))

    # Assignments.

    def _assigned(self, change: Change) -> None:
        for key, value in change.entries.items():
            if value is None:
                continue
            if key.startswith(PENDING):
                self._forced(key.removeprefix(PENDING), decode_assignments(value), change)
            elif key.startswith(APPLIED):
                self._switched(key.removeprefix(APPLIED), value)

    def _forced(self, name: str, forced: Assignments, change: Change) -> None:
        """A reset, unless it takes up what an earlier one has cut off: that asks other copies."""
        group = self._group(name)
        if not forced.force or group is None or f"{STABLE}{name}" in change.entries:
            return
        stable, pending = self._before(STABLE, name), self._before(PENDING, name)
        if stable is None:
            return
        alive = {member.name for member in logical(self._state)}
        holders = {*stable.nodes, *(() if pending is None else pending.nodes)} & alive
        left = sum(node in alive for node in stable.nodes)
        # Where a reset goes on already nodes that are there may have no copy that counts.
        again = pending is not None and pending.force
        self._changed.append(
            ForcedReset(
                partition_group(group),
                generation_name(partition_group(group), self._generation(name)),
                forced.nodes[0],
                forced.member,
                tuple(sorted(holders)),
                not (forced.manual or again) and left > len(stable.nodes) // 2,
            )
        )

    def _switched(self, name: str, applied: bytes) -> None:
        """Stable names the members that the group has come to."""
        group, stable = self._group(name), self._state.get(f"{STABLE}{name}")
        if group is None or stable is None:
            return
        generation = int.from_bytes(applied[:NUMBER_BYTES], "big")
        index = int.from_bytes(applied[NUMBER_BYTES:], "big")
        nodes = decode_assignments(stable.value).nodes
        self._changed.append(
            StableMembers(generation_name(partition_group(group), generation), index, nodes)
        )

    def _group(self, name: str) -> int | None:
        table, _, number = name.partition("/")
        return numbers(self._state).of(PartitionId(int(table), int(number)))

    def _before(self, prefix: str, name: str) -> Assignments | None:
        value = self._values.get(f"{prefix}{name}")
        return None if value is None else decode_assignments(value)

    def _generation(self, name: str) -> int:
        return int.from_bytes(self._values.get(f"{GENERATION}{name}") or b"", "big")


def partition_group(partition: int) -> str:
    """The name of the raft group of ``partition``."""
    return f"p{partition}"


def renewed(value: bytes) -> LeaseRenewal:
    """A renewal says when it was sent by the ceiling that it asks for, which lies so far ahead at
    least: where it is further ahead, that is later than it was sent.
    """
    lease = decode_lease(value)
    sent_ms = (lease.ceiling - span(CEILING_S)) >> COUNTER_BITS
    return LeaseRenewal(lease.origin, (sent_ms + 1) * NS_PER_MS)
