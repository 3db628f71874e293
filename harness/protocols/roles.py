"""The roles of nodes as values, and as the text that records and verdicts hold.

``str`` of a role and ``parse`` are the only places that know the text: ``leader of partition 3``,
``metastorage leader``.
"""

from __future__ import annotations

import enum
import re
from collections.abc import Collection, Iterable

import attrs

from harness.protocols.cluster import Roles


class RoleKind(enum.StrEnum):
    """A role; all but the last two are of one partition."""

    PRIMARY = "primary"
    LEADER = "leader"
    FOLLOWER = "follower"
    VOTER = "voter"  # of a partition without a known leader: it may be the leader itself
    LEARNER = "learner"
    METASTORAGE_LEADER = "metastorage leader"
    MANAGEMENT_LEADER = "management leader"


OF_CLUSTER = (RoleKind.METASTORAGE_LEADER, RoleKind.MANAGEMENT_LEADER)
LEADS = frozenset({RoleKind.PRIMARY, RoleKind.LEADER, *OF_CLUSTER})
"""Roles that one node holds at a time."""
VOTES = frozenset({RoleKind.PRIMARY, RoleKind.LEADER, RoleKind.FOLLOWER, RoleKind.VOTER})

PRIMARY, VOTER, METASTORAGE = "primary of a partition", "other voter", "metastorage leader"
COVERED = (PRIMARY, VOTER, METASTORAGE)
"""The classes of roles by which coverage counts. A voter that may be the leader is of none."""
_ARTICLES = {VOTER: "another voter"}  # "other" and an article are one word
_CLASS_OF = {
    RoleKind.PRIMARY: PRIMARY,
    RoleKind.LEADER: PRIMARY,
    RoleKind.FOLLOWER: VOTER,
    RoleKind.METASTORAGE_LEADER: METASTORAGE,
}

# Up to nine digits, which fit the tables' 32 bits, and none of another script.
_OF_PARTITION = re.compile(r"([a-z ]+) of partition (\d{1,9})", re.ASCII)
# Plans name followers so, as targets: those of a partition that are not its leader.
_WORDS = {kind.value: kind for kind in RoleKind} | {"other voter": RoleKind.FOLLOWER}


def cell_name(kind: str, role: str) -> str:
    """Return a cell of coverage in words: faults of one kind on one class of roles."""
    return f"{kind} of {_ARTICLES.get(role, f'a {role}')}"


@attrs.frozen
class Role:
    """A role that a node holds, in ``partition`` where the kind is of one."""

    kind: RoleKind
    partition: int | None = None

    def __str__(self) -> str:
        """The text of records, verdicts and reports."""
        of = "" if self.partition is None else f" of partition {self.partition}"
        return f"{self.kind.value}{of}"


def parse(text: str) -> Role | None:
    """Return the role that ``text`` denotes; ``None`` for any text that no role has."""
    found = _OF_PARTITION.fullmatch(text)
    kind = _WORDS.get(found[1] if found else text)
    if kind is None or (kind in OF_CLUSTER) is (found is not None):
        return None
    return Role(kind, int(found[2]) if found else None)


def parsed(texts: Iterable[str] | None) -> tuple[Role, ...]:
    """Return the roles among ``texts``, as a record holds them."""
    return tuple(role for text in texts or () if (role := parse(text)) is not None)


def classes(roles: Iterable[Role]) -> tuple[str, ...]:
    """Return the classes of ``COVERED`` that ``roles`` belong to, in that order."""
    held = {_CLASS_OF.get(role.kind) for role in roles}
    return tuple(name for name in COVERED if name in held)


def held_by(nodes: Collection[str], roles: Roles) -> tuple[Role, ...]:
    """Return every role that any of ``nodes`` holds."""

    def of(kind: RoleKind, holders: dict[int, str]) -> list[Role]:
        return [Role(kind, p) for p, node in sorted(holders.items()) if node in nodes]

    held = of(RoleKind.PRIMARY, roles.primaries or {}) + of(RoleKind.LEADER, roles.leaders)
    alone = (roles.metastorage_leader, roles.management_leader)
    held += [Role(kind) for kind, node in zip(OF_CLUSTER, alone, strict=True) if node in nodes]
    held += [
        Role(RoleKind.FOLLOWER if partition in roles.leaders else RoleKind.VOTER, partition)
        for partition, voters in sorted(roles.voters.items())
        if any(n in nodes and n != roles.leaders.get(partition) for n in voters)
    ]
    held += [
        Role(RoleKind.LEARNER, partition)
        for partition, learners in sorted(roles.learners.items())
        if any(node in nodes for node in learners)
    ]
    return tuple(held)
