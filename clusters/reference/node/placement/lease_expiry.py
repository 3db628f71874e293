"""Leases: which node may act for a partition, and until when.

A node renews *one* lease in metastorage for all that it does; a partition's *grant* names the node
that is its primary, with an epoch. Both are metastorage keys that every node sees applied in the
same order, which is what makes this safe without synchronised clocks:

* A lease counts, on its holder's monotonic clock, from when its renewal was *sent*, and only once
  the holder has itself *applied* it: any grant to another that came before is applied by then.
* A node that wants the grant of another waits ``LEASE_S`` and the drift bound on its own monotonic
  clock from when *it* applied the other's last renewal, and takes the grant on condition that this
  renewal still is the last.

So the old holder stops before the new one begins, as long as no monotonic clock gains or loses more
than ``DRIFT`` against another within a lease.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

import msgspec

from clusters.reference.node.bugs import planted
from clusters.reference.node.markers import reached
from clusters.reference.node.metastorage.metastorage import Change, Condition, Versioned
from clusters.reference.node.runtime.hybrid_clock import Hlc, span

LEASE = "lease/"
PRIMARY = "primary/"
LEASE_S = 1.0
RENEW_S = 0.25  # two renewals in a row may be lost: the third is sent before the lease is over
DRIFT = 0.05  # of two monotonic clocks against each other, and room for a slow turn of the loop
# A lease is over for certain so long after its last renewal, by any other clock.
EXPIRED_S = LEASE_S * (1 + DRIFT)
CEILING_S = 1.5  # promises about timestamps reach so far ahead: past the lease's end
MARGIN_S = 0.1  # beyond a clock that is ahead of its machine's time
MAX_STARTS = 64  # of a node that are remembered: no message is so late
SAMPLES = 64  # of the clock, one a renewal: longer than any snapshot is open


class Lease(msgspec.Struct, frozen=True, array_like=True):
    """A node's last renewal: its start, the renewal's number, and the timestamp up to which it may
    promise readers that nothing changes: its successor begins above.
    """

    origin: str
    number: int
    ceiling: int


class Grant(msgspec.Struct, frozen=True, array_like=True):
    """The primary of a partition. ``released``: the primary has given the grant up, or a reset of
    its partition has ended it. ``generation``: of the partition. ``ceiling``, of one that was given
    up: the primary has promised nothing above it; 0 where only its lease tells.
    """

    node: str
    origin: str
    epoch: int
    released: bool = False
    generation: int = 0
    ceiling: int = 0


class ObservedLease(msgspec.Struct, frozen=True):
    """The last renewal of a node, the revision that brought it, and when it was applied here."""

    lease: Lease
    revision: int
    at_s: float


encode = msgspec.msgpack.Encoder().encode
decode_lease = msgspec.msgpack.Decoder(Lease).decode
decode_grant = msgspec.msgpack.Decoder(Grant).decode


class LeaseTable:
    """All leases and grants as this node knows them, from the revisions of metastorage that it has
    applied.
    """

    def __init__(
        self,
        *,
        node: str,
        origin: str,
        clock: Hlc,
        monotonic_s: Callable[[], float],
        held: Callable[[str], Versioned | None],
    ) -> None:
        """``held`` is metastorage's ``get``."""
        self._node, self._origin, self._clock = node, origin, clock
        self._monotonic_s, self._get = monotonic_s, held
        self._sent: dict[int, tuple[float, int]] = {}  # renewal -> when, and its ceiling
        self._number = 0
        self._until_s = float("-inf")
        self._samples: deque[tuple[float, int]] = deque(maxlen=SAMPLES)
        self.ceiling = 0
        # When our last renewal was sent that is applied, and when that was with each other node's:
        # what was applied later than one of ours was not applied before ours was sent.
        self._applied_s = float("-inf")
        self._after_s: dict[str, float] = {}
        self.seen: dict[str, ObservedLease] = {}
        self._since_s: dict[str, float] = {}  # when the start that has the lease was first seen
        self._superseded: dict[str, dict[str, None]] = {}  # starts before it, the last ones
        self.grants: dict[int, Grant] = {}

    # -- our own lease

    def holds(self) -> bool:
        """Whether our lease holds now."""
        past_s = 10 * LEASE_S if planted("lease-past-end") else 0.0
        return self._monotonic_s() < self._until_s + past_s

    @property
    def left_s(self) -> float:
        """How long our lease still holds; below 0 if it does not."""
        return max(self._until_s - self._monotonic_s(), -1.0)

    def next_renewal(self) -> Lease:
        """The renewal to send now."""
        self._number += 1
        now_s = self._monotonic_s()
        self._samples.append((now_s, self._clock.last))
        # Ahead of this machine's time, not of the clock: a clock that a successor's takeover has
        # put ahead must not be put further ahead by the next one.
        ceiling = max(self._clock.physical() + span(CEILING_S), self._clock.now() + span(MARGIN_S))
        self._sent[self._number] = now_s, ceiling
        # A renewal that was lost is never applied, and would stay here for good.
        self._sent.pop(self._number - SAMPLES, None)
        return Lease(self._origin, self._number, ceiling)

    def end(self) -> None:
        """Let our lease end now: this node stops."""
        self._until_s = float("-inf")
        # A renewal that is still under way must not bring the lease back when it is applied.
        self._sent.clear()

    def clock_at(self, at_s: float) -> int:
        """A timestamp that our clock had not passed before ``at_s``, by the samples of the
        clock.
        """
        for when_s, ts in self._samples:
            if when_s >= at_s:
                return ts
        return self._clock.last

    def given_up(self, grant: Grant) -> Grant:
        """Our ``grant``, released: its primary is closed. A promise is never above the clock."""
        return released(grant, self._clock.last)

    def observe_predecessor(self, held: Grant) -> None:
        """Put our clock past every promise of the primary with the grant ``held``, before we take
        over from it. It has told how far they reach if it gave the grant up; else they reach as far
        as its lease allows.
        """
        seen = self.seen.get(held.node)
        if held.ceiling:
            reached("promises of a predecessor as it told them")
            self._clock.observe(held.ceiling)
        elif seen is not None:
            self._clock.observe(seen.lease.ceiling)

    # -- what metastorage says

    def changed(self, change: Change) -> None:
        """Take in a revision."""
        for key, value in change.entries.items():
            if value is None:
                if key.startswith(PRIMARY):
                    self.grants.pop(int(key.removeprefix(PRIMARY)), None)
            elif key.startswith(LEASE):
                # After a restored snapshot the change's own revision is a later one.
                entry = self._get(key)
                revision = change.revision if entry is None else entry.revision
                self._renewed(key.removeprefix(LEASE), decode_lease(value), revision)
            elif key.startswith(PRIMARY):
                self.grants[int(key.removeprefix(PRIMARY))] = decode_grant(value)

    def _renewed(self, node: str, lease: Lease, revision: int) -> None:
        before = self.seen.get(node)
        self.seen[node] = ObservedLease(lease, revision, self._monotonic_s())
        if before is None or before.lease.origin != lease.origin:
            self._started(node, lease.origin, before)
        if node != self._node:
            self._after_s[node] = self._applied_s
            return
        if lease.origin != self._origin:
            reached("ceiling of an earlier start observed")
            # An earlier start of ours may have promised up to there.
            self._clock.observe(lease.ceiling)
        elif lease.number in self._sent:
            sent_s, ceiling = self._sent.pop(lease.number)
            self._until_s = max(self._until_s, sent_s + LEASE_S)
            self._applied_s = max(self._applied_s, sent_s)
            self.ceiling = max(self.ceiling, ceiling)

    def _started(self, node: str, origin: str, before: ObservedLease | None) -> None:
        """The lease of ``node`` is of another start than ``before``. A start that was seen before
        is no later one: a renewal of an earlier start may arrive after that start has ended.
        """
        self._since_s[node] = self._monotonic_s()
        superseded = self._superseded.setdefault(node, {})
        if before is not None and origin not in superseded:
            reached("start of a node superseded")
            superseded[before.lease.origin] = None
            while len(superseded) > MAX_STARTS:
                del superseded[next(iter(superseded))]

    def mine(self, partition: int) -> Grant | None:
        """Our grant of ``partition``, if we have it and have not given it up."""
        grant = self.grants.get(partition)
        ours = grant is not None and grant.origin == self._origin and not grant.released
        return grant if ours else None

    def granted_until_s(self, partition: int, generation: int) -> float:
        """Until when, by our clock, the grant of ``partition`` in ``generation`` surely holds:
        until then no reset can have begun another one.
        """
        grant = self.grants.get(partition)
        if grant is None or grant.released or grant.generation != generation:
            return float("-inf")
        if grant.node == self._node:
            return self._until_s if grant.origin == self._origin else float("-inf")
        seen = self.seen.get(grant.node)
        if seen is None or seen.lease.origin != grant.origin:
            return float("-inf")
        return self._after_s.get(grant.node, float("-inf")) + LEASE_S

    def primary(self, partition: int) -> str | None:
        """The node that was granted ``partition`` last, unless it gave that up."""
        grant = self.grants.get(partition)
        return None if grant is None or grant.released else grant.node

    def coordinator_dead(self, origin: str) -> bool:
        """Whether the lease of that start of a node, a coordinator, has surely expired."""
        return self.expired(origin.rpartition("~")[0], origin)

    def expired(self, node: str, origin: str) -> bool:
        """Whether the lease of that start of ``node`` has run out, its clock drifting as it may."""
        seen = self.seen.get(node)
        if seen is None or self.superseded(node, origin):
            return True
        # Where another start has the lease of which we don't know that it came later, its first
        # renewal ended the lease of ``origin`` at the latest.
        last_s = seen.at_s if seen.lease.origin == origin else self._since_s[node]
        return self._monotonic_s() > last_s + EXPIRED_S

    def superseded(self, node: str, origin: str) -> bool:
        """Whether a later start of ``node`` was seen: a directory belongs to one start at a time,
        so the earlier one has ended.
        """
        return origin in self._superseded.get(node, ())


def released(grant: Grant, ceiling: int = 0) -> Grant:
    """``grant``, marked as released."""
    return Grant(grant.node, grant.origin, grant.epoch, True, grant.generation, ceiling)


def superseding(
    leases: LeaseTable, partition: int, held: Grant | None, *, own: str | None = None
) -> tuple[Condition, ...]:
    """What must be so when metastorage takes the grant ``held`` of ``partition`` from its primary,
    for another one or for none, so that nothing acts under it any more: it is the last grant, and
    its lease, which must have expired here, has not been renewed. ``own``: this node, whose grant
    needs no lease to be over.
    """
    key = f"{PRIMARY}{partition}"
    if held is None:
        return (Condition(key, "absent"),)
    last = Condition(key, "value", value=encode(held))
    if held.node == own or held.released or leases.superseded(held.node, held.origin):
        return (last,)
    lease, seen = f"{LEASE}{held.node}", leases.seen.get(held.node)
    renewed = (
        Condition(lease, "absent")
        if seen is None
        else Condition(lease, "revision", revision=seen.revision)
    )
    return last, renewed


def origin_of(node: str, boot: str) -> str:
    """The name of one start of ``node``: the end of a boot id is unlike for every start."""
    return f"{node}~{boot[-8:]}"
