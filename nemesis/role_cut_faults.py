"""The cut of single links, between nodes that are named by their roles.

``A>B`` drops what A sends to B, ``A<>B`` what either sends to the other; A and B are targets as
those of any other fault: ``primary of partition 0>metastorage leader``.
"""

from __future__ import annotations

import random

import attrs

from harness.errors import PlanError
from harness.protocols import targets
from harness.protocols.cluster import Roles
from harness.protocols.fault_kinds import CUT
from harness.protocols.faults import Victims
from nemesis import grudges, resolution
from nemesis.partition_faults import LinkFault

BOTH_WAYS, ONE_WAY = "<>", ">"


@attrs.frozen(kw_only=True)
class CutFault(LinkFault):
    """A ``LinkFault`` whose target names both ends."""

    def check(self, target: str, nodes: tuple[str, ...], partitions: int | None, path: str) -> None:
        """Refuse a text that does not name two ends, each by a target, or one node as both."""
        ends = [targets.checked(end, None, nodes, partitions, path) for end in _ends(target, path)]
        if ends[0].nodes == ends[1].nodes and len(ends[0].nodes) == 1:
            expected = "the two ends of a link, which are different nodes"
            raise PlanError(path, f"target must be {expected} (got {target!r})")

    def resolve(
        self, target: str, roles: Roles, nodes: tuple[str, ...], draw: int
    ) -> Victims | None:
        """The nodes at both ends now, and the links between them; ``None`` where no link is between
        two nodes. An end of ``any partition`` is of the partition of the other one.
        """
        source, destination = _ends(target, "target")
        partition = _any_of(roles, draw)
        hits = [
            resolution.resolve(targets.parse(end), roles, nodes, end_draw)
            for end, end_draw in (
                (source.replace("any partition", partition), draw),
                (destination.replace("any partition", partition), draw + 1),
            )
        ]
        first, second = hits
        if first is None or second is None:
            return None
        grudge = grudges.one_way(first.nodes, second.nodes)
        if BOTH_WAYS in target:
            grudge = grudges.union((grudge, grudges.one_way(second.nodes, first.nodes)))
        hit = tuple(sorted({node for link in grudge for node in link}))
        held = tuple(dict.fromkeys((*first.roles, *second.roles)))
        return Victims(nodes=hit, roles=held, grudge=grudge) if grudge else None


def _ends(target: str, path: str) -> tuple[str, str]:
    """The texts of both ends. Raises ``PlanError``."""
    parts = [part.strip() for part in target.split(BOTH_WAYS if BOTH_WAYS in target else ONE_WAY)]
    if len(parts) != 2 or not all(parts):
        expected = "the two ends of a link, such as n1>n2 or leader of partition 0<>n3"
        raise PlanError(path, f"target must be {expected} (got {target!r})")
    return parts[0], parts[1]


def _any_of(roles: Roles, draw: int) -> str:
    told = sorted(roles.voters or roles.leaders)
    return f"partition {random.Random(draw).choice(told)}" if told else "any partition"


def cut() -> CutFault:
    """Cut the links between two roles: ``leader of partition 0<>learner of partition 0``."""
    return CutFault(kind=CUT, cuts=lambda hit, nodes, draw: ())
