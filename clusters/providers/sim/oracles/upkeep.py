"""What a store does without need: entries that change nothing, again and again.

Each one costs a sync on a majority of disks. A repeated request makes one now and then; a task that
proposes at each of its turns makes them as long as it runs.
"""

from __future__ import annotations

from collections import deque

from harness.protocols.claims import NoOpEntry

MOST, WITHIN_S = 8, 4.0


class Upkeep:
    """Counts the needless entries of each group, and of each key that they are about: while a
    disk is slow a request for each of many keys may be repeated.
    """

    def __init__(self) -> None:
        self._came_s: dict[NoOpEntry, deque[float]] = {}

    def needless(self, now_s: float, fact: NoOpEntry) -> str:
        """An entry that changed nothing is committed; the text is empty where few were before."""
        came_s = self._came_s.setdefault(fact, deque(maxlen=MOST))
        came_s.append(now_s)
        if len(came_s) < MOST or now_s - came_s[0] > WITHIN_S:
            return ""
        about = f" about {fact.key}" if fact.key else ""
        within = f"within {now_s - came_s[0]:.3f} s"
        return f"{MOST} entries of {fact.group}{about} {within} have changed nothing"
