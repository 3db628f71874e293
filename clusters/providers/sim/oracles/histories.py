"""How far groups and disks were at earlier times, to the second: a decision is judged by what there
was when it was made, and not by what has come since.
"""

from __future__ import annotations


class Histories:
    """The commit indices of groups, and the ends of logs, by the second."""

    def __init__(self) -> None:
        self._commits: dict[str, dict[int, int]] = {}
        self._ends: dict[tuple[str, str], dict[int, int]] = {}  # by node and group

    def committed(self, now_s: float, group: str, index: int) -> None:
        """All entries of ``group`` up to ``index`` are committed."""
        self._commits.setdefault(group, {})[int(now_s)] = index

    def synced(self, now_s: float, node: str, group: str, last_index: int) -> None:
        """The log of ``group`` on the disk of ``node`` ends with ``last_index``."""
        self._ends.setdefault((node, group), {})[int(now_s)] = last_index

    def commit_index(self, at_s: float, group: str) -> int:
        """What was committed by ``at_s`` at the least."""
        return _before(self._commits.get(group, {}), at_s)

    def last_index(self, at_s: float, node: str, group: str) -> int:
        """Where the log on the disk of ``node`` ended by ``at_s``."""
        return _before(self._ends.get((node, group), {}), at_s)


def _before(known: dict[int, int], at_s: float) -> int:
    seconds = [second for second in known if second + 1 <= at_s]
    return known[max(seconds)] if seconds else 0
