"""Forced resets and stable members: what metastorage says of a group is so, or is owed.

A reset loses what no copy has that it asks. So it must ask all that are there, and go on with the
one that has most. Judged is what was committed a while before, and what lay on the disk of another
copy by then, whose node and that of the reset have gone on talking: such a node can't have been
passed over for its silence. A partition of which no copy is left may begin anew, where an operator
asks for it: there a copy on a node that is silent, and not missed yet, counts as well.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from clusters.providers.sim.oracles.durability import Durability
from clusters.providers.sim.oracles.histories import Histories
from clusters.providers.sim.oracles.memberships import Configurations
from clusters.providers.sim.oracles.synced_disks import Lives, SyncedDisk
from harness.protocols.claims import ForcedReset, Members, StableMembers

COMMITTED_BEFORE_S = 2.0
HELD_BEFORE_S = 1.0


class Resets:
    """Judges what metastorage says; an empty text where nothing is wrong."""

    def __init__(
        self,
        *,
        disks: Mapping[str, SyncedDisk],
        lives: Lives,
        durability: Durability,
        configurations: Configurations,
        histories: Histories,
        talking: Callable[[str, str], bool],
    ) -> None:
        """``talking``: whether the programs on two nodes have just sent each other messages."""
        self._disks, self._lives, self._durability = disks, lives, durability
        self._configurations, self._histories, self._talking = configurations, histories, talking

    def forced(self, now_s: float, writer: str, fact: ForcedReset, holder: str) -> str | None:
        """The program on ``writer`` has reset a group; ``holder``: of the grant that is still in
        force, if one is. ``None`` where nothing can be told.
        """
        if fact.majority:
            return f"{fact.group} is reset to {fact.node}, and most of its nodes are there"
        if holder:
            return f"{fact.group} is reset to {fact.node}, and its grant to {holder} is in force"
        index = self._histories.commit_index(now_s - COMMITTED_BEFORE_S, fact.group)
        mark = self._durability.committed_mark(fact.group, index)
        disk = self._disks.get(fact.node)
        if mark is None or disk is None:
            return None
        if fact.member and disk.member_of(fact.group) != fact.member:
            return None  # it was destroyed since it was asked
        if disk.log(fact.group).holds(index, mark):
            return ""
        # Silent ones count, too: what begins anew has nothing.
        anew = not fact.member
        for node in fact.asked:
            has = node != fact.node and self._has(now_s, node, fact.group, index, mark)
            if has and anew:
                return f"{fact.group} begins anew on {fact.node}, and {node} has a copy of it"
            if has and self._talking(writer, node):
                return (
                    f"{fact.group} is reset to {fact.node}, which lacks entry {index}: that was "
                    f"committed, and {node} has it"
                )
        return ""

    def _has(self, now_s: float, node: str, group: str, index: int, mark: int) -> bool:
        """Whether the copy on ``node`` is whole, and has had the entry for a while: it may be that
        of a learner, which has no vote and all of the data.
        """
        disk = self._disks.get(node)
        log = None if disk is None else disk.log(group)
        if log is None or log.left or not log.members or not log.members[-1][1].voters:
            return False
        held = self._histories.last_index(now_s - HELD_BEFORE_S, node, group)
        return held >= index and log.holds(index, mark)

    def stable(self, fact: StableMembers) -> str | None:
        """A group has come to its next members; ``None`` where it was founded with them."""
        nodes = frozenset(fact.nodes)
        logs = [disk.log(fact.group) for disk in self._disks.values()]
        if any(log.members and self._nodes(log.members[0][1]) == nodes for log in logs):
            return None
        members = self._configurations.alone(fact.group, fact.index)
        places = [place for place, found in members if self._nodes(found) == nodes]
        lacking = [self._lives.shortfall(fact.group, *place) for place in places]
        if lacking and not all(lacking):
            return ""
        why = lacking[-1] if lacking else "no entry says so"
        return f"{fact.group} has come to {' '.join(sorted(nodes))}, and {why}"

    def _nodes(self, members: Members) -> frozenset[str]:
        lives = self._lives.by_member
        return frozenset(lives[name].node if name in lives else name for name in members.voters)
