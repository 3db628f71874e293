"""What replicas hold: those of one group hold the same once they have applied the same entries,
whether one by one or from a snapshot, and what follows from these entries where a store's reader
says that.
"""

from __future__ import annotations

from harness.protocols.claims import ReplicaContent

KEPT_PLACES = 256  # of each group: one that is further behind is compared no more
LOG = "the log"  # what follows from it, as a replica among the others


class Contents:
    """What the first replica told of each place; an empty text where the next ones agree."""

    def __init__(self) -> None:
        self._told: dict[str, dict[int, tuple[int, str]]] = {}

    def told(self, node: str, fact: ReplicaContent) -> str | None:
        """``node`` tells of a place; ``None`` where it is the first one."""
        places = self._told.setdefault(fact.group, {})
        before = places.get(fact.index)
        if before is None:
            places[fact.index] = fact.digest, node
            if len(places) > KEPT_PLACES:
                del places[next(iter(places))]
            return None
        digest, other = before
        if digest == fact.digest:
            return ""
        return f"{fact.group} of {node} and of {other} differ after entry {fact.index}"
