"""Nodes that are in the topology, and out of it, in true time; and timers over a time in which the
whole cluster was down.

A leader counts a node's silence from when it has applied the node's last renewal, which can't be
before a majority had it. So a node that is out was silent, by what disks hold, for at least as long
as it may be. That it is out in time can be asked of a leader only that goes on: which is seen by
what it commits.
"""

from __future__ import annotations

from collections.abc import Iterator

import attrs

from clusters.providers.sim.oracles.duties import Talking
from clusters.providers.sim.oracles.leases import Leases
from harness.protocols.claims import NodeDeparture, NodeJoined, TimersResumed

ROUNDING_S = 0.01  # times are those of records, some of which come together
TURN_S = 0.25  # of the time between two commits of a leader no more counts
OUT_WITHIN_S = 4.0  # beside a node's silence: a write, and one that is tried again
# A renewal is under way for a while before a majority has it, and so is the entry by which the
# cluster goes on.
UNDER_WAY_S = 1.2


class SteadyLeader:
    """The time of the leader that commits the entries of one group, as it goes on."""

    def __init__(self) -> None:
        self._leader: tuple[str, int] = "", 0
        self._last_s = 0.0

    def turn(self, now_s: float, node: str, term: int) -> float:
        """How much of the leader's time has passed since its last commit; below 0: another one
        leads.
        """
        passed_s, self._last_s = now_s - self._last_s, now_s
        if self._leader != (node, term):
            self._leader = node, term
            return -1.0
        return min(passed_s, TURN_S)


@attrs.define
class _Presence:
    """A start of a node in the topology: its last sign of life, and how much of a leader's time
    has passed since.
    """

    holder: str
    silence_s: float
    sign_s: float
    silent_s: float = 0.0
    told: bool = False


class Topologies:
    """Judges which nodes join the topology and which leave it: each verb returns why that is wrong,
    or an empty text.
    """

    def __init__(self, leases: Leases, drift: float, talking: Talking) -> None:
        """``talking``: whether two nodes have just heard of each other."""
        self._talking = talking
        self._leases, self._drift = leases, drift
        self._there: dict[str, _Presence] = {}  # by node
        # By holder: since when a disk has its last renewal that is committed.
        self._sign_s: dict[str, float] = {}

    def renewed(self, logged_s: float, on_majority_s: float, holder: str) -> None:
        """A renewal is committed, which a disk has since ``logged_s`` and a majority since
        ``on_majority_s``: which may be the next start of a cluster that went down in between.
        """
        self._sign_s[holder] = logged_s
        presence = self._there.get(self._leases.node_of(holder))
        if presence is not None:
            presence.sign_s, presence.silent_s, presence.told = on_majority_s, 0.0, False

    def joined(self, on_majority_s: float, fact: NodeJoined) -> None:
        """A start joins by an entry that a majority has since ``on_majority_s``."""
        self._there[fact.node] = _Presence(fact.holder, fact.silence_s, on_majority_s)

    def departed(self, logged_s: float, writer: str, fact: NodeDeparture) -> str | None:
        """A node is out by an entry of the leader ``writer``, which is on a disk since
        ``logged_s``; ``None`` where it has left by itself.
        """
        presence = self._there.pop(fact.node, None)
        if presence is None or fact.asked or writer in ("", fact.node):
            return None
        silent_s = (logged_s - presence.sign_s) * (1 + self._drift)
        if silent_s >= presence.silence_s - ROUNDING_S:
            return ""
        return (
            f"{fact.holder} is out, and was silent for {logged_s - presence.sign_s:.3f} s, of "
            f"{presence.silence_s:g} s that a node may be"
        )

    def turn(self, leader: str, passed_s: float) -> Iterator[str]:
        """The ``leader`` has committed once more; yields a text for each node that should be
        out.
        """
        for node, presence in self._there.items():
            is_in = leader in self._there and node != leader
            presence.silent_s = presence.silent_s + passed_s if passed_s >= 0 and is_in else 0.0
            most_s = presence.silence_s * (1 + self._drift) + OUT_WITHIN_S
            if presence.silent_s > most_s and not presence.told:
                presence.told = True
                yield (
                    f"{presence.holder} is in the topology, and has renewed no lease for "
                    f"{presence.silent_s:.1f} s of the time of {leader}, where "
                    f"{presence.silence_s:g} s are too long"
                )

    def resumed(self, logged_s: float, writer: str, fact: TimersResumed) -> str | None:
        """The whole cluster goes on, by an entry of ``writer`` that is on a disk since
        ``logged_s``; ``None`` where no timer runs, or it is not known since when it was down.
        """
        for holder in fact.earlier:
            node = self._leases.node_of(holder)
            if self._leases.runs(holder) and writer and self._talking(writer, node):
                return (
                    f"the cluster goes on as one that was down, and {holder} has run all the while"
                )
        signs = [self._sign_s[holder] for holder in fact.earlier if holder in self._sign_s]
        if not signs or not fact.shifts:
            return None
        down_s = logged_s - max(signs)
        tolerated_s = UNDER_WAY_S + down_s * self._drift + self._leases.wall_spread_s()
        for what, shift_s in fact.shifts:
            if abs(shift_s - down_s) > tolerated_s:
                return (
                    f"{what} begins {shift_s:.1f} s later as the cluster goes on, which was down "
                    f"for {down_s:.1f} s"
                )
        return ""
