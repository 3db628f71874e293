"""Copies that are erased: none that is assigned and that others do not have, and none of a group
that can't serve without it.

Judged is what had been so for a while: a node that acts by what it has applied is a little behind.
"""

from __future__ import annotations

import attrs

from clusters.providers.sim.oracles.durability import Durability
from clusters.providers.sim.oracles.synced_disks import Lives, SyncedDisk, SyncedLog
from harness.protocols.claims import Placement

BEHIND_S = 2.0


@attrs.define
class _Placed:
    """Since when each node is to have a copy, and since when most of the nodes are missing."""

    fact: Placement
    since_s: dict[str, float]
    lost_s: float | None = None


class Erasures:
    """Judges copies that go; an empty text where nothing is wrong."""

    def __init__(self, lives: Lives, durability: Durability) -> None:
        self._lives, self._durability = lives, durability
        self._placed: dict[str, _Placed] = {}  # by root
        self._begin_anew = False

    def begin_anew(self) -> None:
        """From now on copies may be erased where they stay assigned."""
        self._begin_anew = True

    def placed(self, now_s: float, fact: Placement) -> None:
        """Copies belong elsewhere from now on."""
        before = self._placed.pop(fact.root, None)
        if not fact.nodes:
            return
        since_s = {} if before is None else before.since_s
        lost_s = None if before is None else before.lost_s
        self._placed[fact.root] = _Placed(
            fact,
            {node: since_s.get(node, now_s) for node in fact.nodes},
            None if fact.majority else lost_s or now_s,
        )

    def erased(self, now_s: float, disk: SyncedDisk, group: str, log: SyncedLog) -> str | None:
        """The copy of ``group`` on ``disk`` is erased, of which ``log`` was left; ``None`` where
        it is not known to have been one.
        """
        index = self._durability.commit_index(group)
        mark = self._durability.committed_mark(group, index)
        placed = self._placed.get(self._durability.root(group))
        if log.left or not log.members or not log.members[-1][1].voters or placed is None:
            return None
        if mark is None or not log.holds(index, mark):
            return ""
        text = self._needed(now_s, disk, placed)
        # What a reset has cut off is erased as it is.
        return text or (
            self._lacking(disk, group, index, mark) if group == placed.fact.group else ""
        )

    def _needed(self, now_s: float, disk: SyncedDisk, placed: _Placed) -> str:
        fact, since_s = placed.fact, placed.since_s.get(disk.node)
        if since_s is not None:
            if fact.reset or self._begin_anew or now_s - since_s < BEHIND_S:
                return ""
            return f"a copy of {fact.root} is erased, which belongs there since {since_s:.3f} s"
        if not fact.reset or placed.lost_s is None or now_s - placed.lost_s < BEHIND_S:
            return ""
        return (
            f"a copy of {fact.root} is erased, and of {' '.join(fact.nodes)}, which are to have "
            f"it, too few are there since {placed.lost_s:.3f} s"
        )

    def _lacking(self, disk: SyncedDisk, group: str, index: int, mark: int) -> str:
        """Why most voters do not hold what was committed without this copy."""
        member = disk.member_of(group)
        texts = []
        for _, members in self._lives.members(group):
            for half in filter(None, (members.voters, members.outgoing)):
                count = sum(
                    self._lives.log(name, group).holds(index, mark)
                    for name in half
                    if name != member and self._lives.lives(name, group)
                )
                if member in half and count <= len(half) // 2:
                    texts.append(f"{count} of {len(half)} voters hold entry {index} without it")
                    break
            else:
                return ""
        return f"a copy of {group} is erased, and {texts[0]}" if texts else ""
