"""What a leader owes by its own log: duties that stay while it goes on, and reaches all that it
needs.

Only its own time counts, and only where nothing keeps it: a fault that falls meanwhile, another
leader or another log begins it anew. So what is left undone was forgotten, or given up.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import attrs

from harness.protocols.claims import Duties, Duty

Talking = Callable[[str, str], bool]


@attrs.define
class _Due:
    duty: Duty
    passed_s: float = 0.0
    told: bool = False


class DutyList:
    """The duties of the leader of one group."""

    def __init__(self, talking: Talking, has_copy: Callable[[str, str], bool]) -> None:
        """``talking``: whether two nodes have just heard of each other; ``has_copy``: whether a
        node has a whole copy of a group, in whichever generation.
        """
        self._talking, self._has_copy = talking, has_copy
        self._due: dict[str, _Due] = {}

    def changed(self, fact: Duties) -> None:
        """Other duties are due from now on."""
        known = self._due
        self._due = {each.what: known.get(each.what) or _Due(each) for each in fact.duties}

    def turn(self, leader: str, passed_s: float) -> Iterator[str]:
        """The ``leader`` has committed once more, after so much of its time (see
        ``SteadyLeader``); yields a text for each duty that is overdue.
        """
        for due in self._due.values():
            duty = due.duty
            if passed_s < 0 or not all(self._talking(leader, node) for node in duty.nodes):
                due.passed_s = 0.0
                continue
            due.passed_s += passed_s
            if due.passed_s <= duty.within_s or due.told:
                continue
            if not duty.root or any(self._has_copy(node, duty.root) for node in duty.nodes):
                due.told = True
                yield (
                    f"{duty.what}: {leader} has led for {due.passed_s:.1f} s since, of "
                    f"{duty.within_s:.1f} s that it takes at most"
                )
