"""One node's log as far as it is known, and its clock by the readings that were taken of it."""

from __future__ import annotations

from collections.abc import Iterator

import attrs

from clusters.ignite3.logline import LogEvent, parse_line
from harness.history.records import EventKind

PIECE_BYTES = 1 << 19  # a node under contention writes some hundred kilobytes a second
TICK_NS = 1_000_000  # of the times in logs
CLOCK_DRIFT = 1e-4  # how far wall and monotonic time of one machine may drift apart


@attrs.frozen(kw_only=True)
class ClockReading:
    """One look at a node's wall clock: ``wall_ns`` there was ``loop_ns`` here, give or take
    ``half_trip_ns``.
    """

    wall_ns: int
    loop_ns: int
    half_trip_ns: int

    def uncertainty_ns(self, wall_ns: int) -> int:
        """The greatest error of mapping ``wall_ns`` by this reading."""
        return self.half_trip_ns + TICK_NS + int(abs(self.wall_ns - wall_ns) * CLOCK_DRIFT)


@attrs.define
class Log:
    """How far one node's log is known: to a byte, and to a time. ``boots`` counts the starts in
    it.
    """

    node: str
    offset: int = 0
    boots: int = 0
    newest_ns: int = 0
    first: ClockReading | None = None
    last: ClockReading | None = None
    best: ClockReading | None = None

    def take(self, content: bytes, *, after_ns: int = 0) -> Iterator[tuple[str, LogEvent]]:
        """The events in the whole lines of ``content``, which begins at ``offset``, each with its
        boot; none from before ``after_ns`` by the node's clock.
        """
        whole = content.rfind(b"\n") + 1
        if not whole and len(content) >= PIECE_BYTES:
            whole = len(content)  # a line that no piece holds is none of ours
        self.offset += whole
        # Not ``splitlines``, which breaks at further characters that a message may hold.
        for line in content[:whole].decode("utf-8", "replace").split("\n"):
            found = parse_line(line.rstrip("\r"))
            if found is not None and found.wall_ns > after_ns:
                self.boots += found.kind is EventKind.NODE_STARTED
                self.newest_ns = max(self.newest_ns, found.wall_ns)
                yield str(self.boots), found

    def look(self, reading: ClockReading) -> None:
        """Keep the first and the last reading of the clock, and the quickest."""
        self.first, self.last = self.first or reading, reading
        if self.best is None or reading.half_trip_ns < self.best.half_trip_ns:
            self.best = reading

    def nearest(self, wall_ns: int) -> ClockReading | None:
        """The reading of the clock by which to map ``wall_ns``."""
        known = [reading for reading in (self.first, self.last, self.best) if reading]
        return min(known, key=lambda reading: reading.uncertainty_ns(wall_ns), default=None)
