"""What a store does without need: entries that change nothing, again and again.

Each one costs a sync on a majority of disks. A repeated request makes one now and then; a task that
proposes at each of its turns makes them as long as it runs.
"""

from __future__ import annotations

from collections import deque

from harness.protocols.claims import NoOpEntry

MOST, WITHIN_S = 8, 4.0


class Upkeep:
    """Counts the needless entries of each group."""

    def __init__(self) -> None:
        self._came_s: dict[str, deque[float]] = {}

    def needless(self, now_s: float, fact: NoOpEntry) -> str:
        """An entry that changed nothing is committed; the text is empty where few were before."""
        came_s = self._came_s.setdefault(fact.group, deque(maxlen=MOST))
        came_s.append(now_s)
        if len(came_s) < MOST or now_s - came_s[0] > WITHIN_S:
            return ""
        return (
            f"{MOST} entries of {fact.group} within {now_s - came_s[0]:.3f} s have changed nothing"
        )
