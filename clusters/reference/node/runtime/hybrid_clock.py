"""The hybrid logical clock of a node: timestamps that follow wall time and never contradict causes.

A timestamp is 64 bits: milliseconds since 1970 above, a counter of 16 bits below (Kulkarni et al.,
"Logical Physical Clocks", 2014). Nothing rests on wall clocks being right: locks and leases order
transactions, the clock only numbers them. So its physical part is wall time at the start, carried
on by monotonic time: a wall clock that jumps later moves nothing, until its node asks for it anew.
"""

from __future__ import annotations

from collections.abc import Callable

from clusters.reference.node.bugs import planted

COUNTER_BITS = 16
TICK = 1 << COUNTER_BITS  # a millisecond, as a difference of timestamps
MAX_AHEAD_S = 5.0  # of a peer's clock before ours; further ahead is a broken clock, not skew
_NS_PER_MS = 1_000_000


class Hlc:
    """One node's clock."""

    def __init__(self, *, wall_ns: Callable[[], int], monotonic_s: Callable[[], float]) -> None:
        self._wall_ns, self._monotonic_s = wall_ns, monotonic_s
        self.read_wall()
        self.last = 0

    def read_wall(self) -> None:
        """Take wall time anew, which was wrong as it was read last, and may have been set right
        since. Timestamps go on above every one that this clock gave or saw.
        """
        self._anchor_ms = self._wall_ns() / _NS_PER_MS - self._monotonic_s() * 1000

    def now(self) -> int:
        """A timestamp above every one that this clock gave or saw."""
        self.last = max(self.last + 1, self.physical())
        return self.last

    def observe(self, ts: int) -> None:
        """From now on give only timestamps above ``ts``, which the cluster has agreed on."""
        if not planted("clock-not-advanced"):
            self.last = max(self.last, ts)

    def receive(self, ts: int) -> bool:
        """Observe a timestamp of a peer's clock, unless it is ``MAX_AHEAD_S`` ahead of ours: one
        broken clock must not carry all others away. Returns whether it was observed.
        """
        if ts > self.last and ts > self.physical() + span(MAX_AHEAD_S):
            return False
        self.observe(ts)
        return True

    def physical(self) -> int:
        """Wall time by this machine, as a timestamp; goes back only where ``read_wall`` does."""
        return int(self._anchor_ms + self._monotonic_s() * 1000) << COUNTER_BITS


def span(seconds: float) -> int:
    """``seconds`` as a difference of timestamps."""
    return int(seconds * 1000) << COUNTER_BITS
