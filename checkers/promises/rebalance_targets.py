"""Where partitions are to be: affinity functions, written from their definitions, and the events
that ask for their targets.

``rendezvous``: of a table's data nodes those hold partition p whose weights for it are the highest,
as many as there are replicas (all, if there are fewer). The weight of node n is the first 64 bits,
big-endian, of the BLAKE2b digest of 8 bytes of the text "p/n"; between equal weights the name that
sorts later wins (Thaler and Ravishankar, "Using name-based mappings to increase hit rates", 1998).
"""

from __future__ import annotations

import hashlib
from bisect import bisect_right
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any, TypeVar

import attrs

from harness.protocols.changes import TopologyKind
from harness.protocols.promise import Affinity

T = TypeVar("T")
Row = dict[str, Any]
Nodes = frozenset[str]
Function = Callable[[int, Collection[str], int], Nodes]


def rendezvous(partition: int, nodes: Collection[str], replicas: int) -> Nodes:
    """The nodes that hold ``partition`` of a table, by its number in the table."""
    weights = sorted((_weight(f"{partition}/{node}"), node) for node in nodes)
    return frozenset(node for _, node in weights[max(len(weights) - replicas, 0) :])


FUNCTIONS: Mapping[str, Function] = {"rendezvous": rendezvous}


def _weight(text: str) -> bytes:
    # Bytes of one length sort as the numbers that they are.
    return hashlib.blake2b(text.encode(), digest_size=8).digest()


@attrs.frozen(kw_only=True)
class RequestedAssignment:
    """What an event asks for: ``replicas`` of ``nodes`` for partition ``number`` of a table, chosen
    by ``function``.
    """

    function: str
    number: int
    nodes: Nodes
    replicas: int

    def problem(self, target: Nodes, there: Sequence[Nodes] = ()) -> str:
        """Why ``target`` is not what is asked for; empty where it is. Of a function that is not
        known here only how many nodes it gives, and that these are data nodes. ``there``: nodes to
        which it may be confined, each a set that is enough.
        """
        size = min(self.replicas, len(self.nodes))
        if known := FUNCTIONS.get(self.function):
            wanted = known(self.number, self.nodes, self.replicas)
            if target == wanted and not there:
                return ""
            if any(target == wanted & each for each in there):
                return ""
            left = "".join(f", of which {_names(wanted & each)} are there" for each in there[:1])
            return f"{self.function} gives {_names(wanted)}{left}"
        if strangers := target - self.nodes:
            return f"{_names(strangers)} are no data nodes"
        lacking = size - len(target)
        if lacking == 0 or any(
            target <= each and 0 < lacking <= len(self.nodes - each) for each in there
        ):
            return ""
        return f"{size} nodes are to hold it"


class Targets:
    """What each event asks for, from the changes of zones and data nodes."""

    def __init__(
        self,
        topology: Iterable[Row],
        affinities: Iterable[Affinity],
        *,
        available: bool = False,
    ) -> None:
        """``available``: an absent node is no aim before it comes back, unless it is stable."""
        self._available = available
        self._members: list[tuple[int, Nodes]] = []
        self._affinities = {each.table: each for each in affinities}
        self._replicas: dict[str, list[tuple[int, int]]] = defaultdict(list)
        self._nodes: dict[str, list[tuple[int, Nodes]]] = defaultdict(list)
        for row in sorted(topology, key=lambda row: int(row["revision"])):
            if row["kind"] == TopologyKind.ZONE and row["replicas"] is not None:
                self._replicas[row["zone"]].append((row["revision"], row["replicas"]))
            if row["kind"] == TopologyKind.DATA_NODES:
                found = frozenset(row["nodes"] or ())
                self._nodes[row["zone"]].append((row["revision"], found))
            if row["kind"] == TopologyKind.LOGICAL:
                self._members.append((row["revision"], frozenset(row["nodes"] or ())))

    def asked(self, table: str, number: int, zone: str, event: int) -> RequestedAssignment | None:
        """What the event of revision ``event`` asks for partition ``number`` of ``table``, if that
        lies in ``zone``; ``None`` where that was not told.
        """
        affinity = self._affinities.get(table)
        replicas = _newest(self._replicas[zone], event)
        nodes = _newest(self._nodes[zone], event)
        if affinity is None or replicas is None or nodes is None:
            return None
        return RequestedAssignment(
            function=affinity.function,
            number=number,
            nodes=nodes - frozenset(affinity.barred),
            replicas=replicas,
        )

    def there(self, stable: Sequence[Nodes], event: int, answer: int) -> list[Nodes]:
        """The nodes to which the answer of revision ``answer`` to ``event`` may be confined: those
        that were there and those that were stable, one of ``stable``, at a time between the two.
        None where it is to be whole.
        """
        if not (self._available and stable):
            return []
        first = _newest(self._members, event)
        later = [nodes for revision, nodes in self._members if event < revision < answer]
        members = [*([] if first is None else [first]), *later]
        return [nodes | held for nodes in members for held in stable]


def _newest(history: list[tuple[int, T]], revision: int) -> T | None:
    place = bisect_right(history, revision, key=lambda each: each[0])
    return history[place - 1][1] if place else None


def _names(nodes: Iterable[str]) -> str:
    return " ".join(sorted(nodes)) or "none"
