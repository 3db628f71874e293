"""Who leads which partition, as far as a node knows: own groups, and what peers say."""

from __future__ import annotations

from collections.abc import Callable

from clusters.reference.node.groups import Group


class Routes:
    """The newest term wins; what an own group knows to be over is not believed."""

    def __init__(self, partitions: int, group: Callable[[int], Group | None]) -> None:
        """``group(p)``: this node's member of partition ``p``, if it has one."""
        self.partitions = partitions
        self._group = group
        self._heard: dict[int, tuple[int, str]] = {}

    def leader(self, partition: int) -> str | None:
        """The leader, if one is known."""
        term, leader = self._heard.get(partition, (0, None))
        group = self._group(partition)
        if group is not None and group.raft.term >= term:
            # At the same term a peer that says it leads is as good as our own member's word.
            return group.leader or (leader if group.raft.term == term else None)
        return leader

    def heard(self, peer: str, leads: tuple[tuple[int, int], ...]) -> None:
        """``peer`` leads these (partition, term), and nothing else."""
        said = dict(leads)
        for partition, (_, node) in list(self._heard.items()):
            if node == peer and partition not in said:
                del self._heard[partition]
        for partition, term in leads:
            if term >= self._heard.get(partition, (0, ""))[0]:
                self._heard[partition] = (term, peer)

    def forget(self, partition: int, node: str) -> None:
        """``node`` did not answer as the leader of ``partition``."""
        if self._heard.get(partition, (0, ""))[1] == node:
            del self._heard[partition]
