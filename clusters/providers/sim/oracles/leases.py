"""Leases in true time: the simulation sees when a renewal was sent, and every clock.

A lease is counted as its holder may count it at best: from when the renewal was sent, by the
holder's own clock, once the renewal is on the disks of a majority. That the holder knows of it is
not asked for: a snapshot tells it before anything of it is on the holder's disk. An answer outside
even that is outside for certain.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import accumulate

import attrs

from clusters.providers.sim.loop import true_loop
from clusters.providers.sim.machine import Clocks
from harness.clock import NS_PER_S
from harness.protocols.claims import ClaimsReader, LeaseRenewal, LogEntry, PrimaryAct, PrimaryGrant

ROUNDING_S = 0.002  # of a renewal's time, which stores may round to milliseconds


@attrs.define
class _Start:
    """One start of a node, which may hold a lease by its ``clocks``, from both of their readings
    at that moment.
    """

    node: str
    clocks: Clocks
    wall_ns: int
    monotonic_s: float
    running: Callable[[], bool]
    true_s: float  # when it began
    jumps: int  # of its wall clock before
    until_s: float = float("-inf")  # of its lease, by its own clock, as a majority's disks have it
    committed_s: float = float("-inf")  # the same, of all renewals that are committed
    # On its disk, and not yet found on a majority: index, mark, and until when by its clock.
    renewed: list[tuple[int, int, float]] = attrs.field(factory=list)
    # By holder: its own clock as the last renewal of that was on a majority, and could be applied.
    seen_s: dict[str, float] = attrs.field(factory=dict)

    def local_s(self) -> float:
        """Its clock now."""
        return self.clocks.monotonic_s()

    def moved_s(self) -> list[float]:
        """By how much its wall clock has been ahead of the one that it started with, at one time or
        another since then.
        """
        return list(accumulate(self.clocks.jumps[self.jumps :], initial=0.0))

    def local_at_s(self, true_s: float) -> float:
        """Its clock at ``true_s``, a moment ago."""
        return self.local_s() - (true_loop().true_time() - true_s) * self.clocks.timeline.rate


class Leases:
    """All leases and grants of one run."""

    def __init__(self, reader: ClaimsReader, on_majority: Callable[[int, int], bool]) -> None:
        """``on_majority``: whether the entry of that index and mark, of the log that the renewals
        are in, is on the disks of a majority.
        """
        self._reader, self._on_majority = reader, on_majority
        self._starts: dict[str, _Start] = {}
        self._present: dict[str, str] = {}  # node: holder
        self._last: dict[str, str] = {}  # node: the holder whose renewal came last
        self._grants: dict[str, PrimaryGrant] = {}  # by the group
        self._acted: dict[str, tuple[int, str]] = {}  # group: the last epoch, and its holder

    def started(self, node: str, boot: str, clocks: Clocks, running: Callable[[], bool]) -> None:
        """A program starts."""
        holder = self._reader.holder(node, boot)
        self._starts[holder] = _Start(
            node=node,
            clocks=clocks,
            wall_ns=clocks.wall_ns(),
            monotonic_s=clocks.monotonic_s(),
            running=running,
            true_s=true_loop().true_time(),
            jumps=len(clocks.jumps),
        )
        self._present[node] = holder

    def node_of(self, holder: str) -> str:
        """The node that ``holder`` is a start of; empty where it is not known."""
        start = self._starts.get(holder)
        return "" if start is None else start.node

    def runs(self, holder: str) -> bool:
        """Whether the program that ``holder`` is a start of runs still."""
        start = self._starts.get(holder)
        return start is not None and self._present.get(start.node) == holder and start.running()

    def wall_spread_s(self) -> float:
        """By how much the wall clocks differ which programs have started with, or may have read
        since.
        """
        ahead_s = [
            start.wall_ns / NS_PER_S - start.true_s + moved_s
            for start in self._starts.values()
            for moved_s in start.moved_s()
        ]
        return max(ahead_s, default=0.0) - min(ahead_s, default=0.0)

    def renewal(self, node: str, entry: LogEntry, fact: LeaseRenewal) -> None:
        """A renewal is synced on the disk of ``node``, in ``entry``."""
        start = self._starts.get(fact.holder)
        if start is not None and start.node == node:
            start.renewed.append((entry.index, entry.mark, self._until_s(start, fact)))

    def renewed(self, on_majority_s: float, fact: LeaseRenewal) -> None:
        """A renewal is committed, which was on a majority since ``on_majority_s``."""
        start = self._starts.get(fact.holder)
        if start is None:
            return
        start.committed_s = max(start.committed_s, self._until_s(start, fact))
        self._last[start.node] = fact.holder
        for holder in self._present.values():
            other = self._starts[holder]
            other.seen_s[fact.holder] = other.local_at_s(on_majority_s)

    def _until_s(self, start: _Start, fact: LeaseRenewal) -> float:
        # A store may stamp renewals by wall time as of its start, or as it has read it again since.
        sent_s = start.monotonic_s + (fact.sent_ns - start.wall_ns) / NS_PER_S
        latest_s = sent_s - min(start.moved_s())
        # No later than now: a clock that is ahead stamps its renewals ahead.
        return min(latest_s, start.local_s()) + self._reader.lease_s

    def _learn(self, start: _Start) -> None:
        """Count the last of the renewals on its disk that a majority has."""
        for place in range(len(start.renewed) - 1, -1, -1):
            index, mark, until_s = start.renewed[place]
            if self._on_majority(index, mark):
                start.until_s = max(start.until_s, until_s)
                del start.renewed[: place + 1]
                return

    def acted(self, node: str, fact: PrimaryAct) -> tuple[str, str]:
        """What was wrong with the lease of ``node``, and with another's; each empty if nothing."""
        holder = self._present.get(node, "")
        start = self._starts.get(holder)
        outside = self._outside(start, fact) if start is not None else ""
        epoch, before = self._acted.get(fact.group, (0, ""))
        if fact.epoch >= epoch:
            self._acted[fact.group] = fact.epoch, holder
            return outside, ""
        # An entry outlives its epoch: each later takeover stands behind it. A lock does not.
        if not fact.epoch or (fact.logged and before == holder):
            return outside, ""
        earlier = self.node_of(before)
        text = f"it acts for {fact.group} in epoch {fact.epoch}, after {earlier} did in {epoch}"
        return outside, text

    def _outside(self, start: _Start, fact: PrimaryAct) -> str:
        if start.local_s() - start.until_s > ROUNDING_S:
            self._learn(start)
        until_s = max(start.until_s, start.committed_s)
        late_s = start.local_s() - until_s
        if late_s <= ROUNDING_S:
            return ""
        if until_s == float("-inf"):
            return f"it acts for {fact.group} without any lease"
        return f"it acts for {fact.group}, {late_s:.3f} s after its lease ended by its own clock"

    def holder(self, group: str) -> str:
        """The holder of the last grant of ``group``; empty where that is given up."""
        grant = self._grants.get(group)
        return "" if grant is None or grant.released else grant.holder

    def granted(self, logged_s: float, on_majority_s: float, fact: PrimaryGrant) -> str | None:
        """A grant has been committed, which was on a disk since ``logged_s`` and on a majority
        since ``on_majority_s``; ``None`` where there is no predecessor to wait for.
        """
        before = self._grants.get(fact.group)
        self._grants[fact.group] = fact
        if before is None or before.released or before.holder == fact.holder:
            return None
        held, taker = self._starts.get(before.holder), self._starts.get(fact.holder)
        if held is None or taker is None:
            return None
        left_s = self._left_s(held, taker, on_majority_s)
        if left_s is not None and left_s > ROUNDING_S:
            return (
                f"epoch {fact.epoch} of {fact.group} is granted to {fact.holder}, and the lease of "
                f"{before.holder} holds for another {left_s:.3f} s by its own clock"
            )
        waited_s = self._waited_s(before.holder, taker, logged_s)
        least_s = self._reader.lease_s * (1 + self._reader.drift)
        if waited_s is not None and waited_s < least_s - ROUNDING_S:
            return (
                f"epoch {fact.epoch} of {fact.group} is granted to {fact.holder}, which has waited "
                f"for the lease of {before.holder} for {waited_s:.3f} s by its own clock, and a "
                f"clock that drifts as it may asks for {least_s:.3f} s"
            )
        return None if left_s is None and waited_s is None else ""

    def _left_s(self, held: _Start, taker: _Start, on_majority_s: float) -> float | None:
        """How long the lease ``held`` still was to last at ``on_majority_s``, by its own clock."""
        if not held.running() or not self._within_bounds(held, taker):
            return None
        return held.committed_s - held.local_at_s(on_majority_s)

    def _waited_s(self, holder: str, taker: _Start, logged_s: float) -> float | None:
        """How long ``taker``, by its own clock, can have known at ``logged_s`` of the last renewal
        of ``holder``; ``None`` where there is nothing to wait for: that node has started again.
        """
        held = self._starts[holder]
        if held.node == taker.node or self._last.get(held.node) != holder:
            return None
        # What was committed before it started, it has learnt since.
        since_s = max(taker.seen_s.get(holder, taker.monotonic_s), taker.monotonic_s)
        return taker.local_at_s(logged_s) - since_s

    def _within_bounds(self, one: _Start, other: _Start) -> bool:
        ratio = one.clocks.timeline.rate / other.clocks.timeline.rate
        return abs(ratio - 1) <= self._reader.drift
