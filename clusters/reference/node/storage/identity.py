"""The identity of a node: its name, and the incarnation of its directory.

A voter is (name, incarnation). A node whose directory was wiped is a new incarnation and may have
forgotten its votes: it is another member, that groups have to take in first.

A *member* of a raft group is one life of a replica: a node in one life of its directory
(``name@incarnation``), and from the second replica of the group in that directory on the number of
the replica (``name@incarnation.2``). So a later life can't break the promises of an earlier one.
"""

from __future__ import annotations

import random
from collections.abc import Mapping

import msgspec

from clusters.reference.node.bugs import planted
from clusters.reference.node.markers import reached
from clusters.reference.node.runtime import Disk, DiskError

FILE = "identity.json"


class Identity(msgspec.Struct, frozen=True, kw_only=True):
    """``founders`` are the members that the cluster began with, once that is known."""

    node: str
    incarnation: str
    founders: tuple[str, ...] = ()


async def load(disk: Disk, node: str, rng: random.Random) -> Identity:
    """The identity in the directory, made at the first start. Raises ``DiskError`` if it is another
    node's or unreadable.
    """
    data = await disk.read(FILE)
    if not data:
        # Drawn, not counted: a wiped directory can't know how many lives it had.
        drawn = 0 if planted("wiped-node-votes") else rng.getrandbits(64)
        identity = Identity(node=node, incarnation=f"{drawn:016x}")
        await save(disk, identity)
        reached("new life of a directory")
        return identity
    try:
        identity = msgspec.json.decode(data, type=Identity)
    except msgspec.DecodeError as error:
        raise DiskError(f"{FILE}: not an identity: {error}") from error
    if identity.node != node:
        raise DiskError(f"{FILE}: the directory is of node {identity.node!r}, not of {node!r}")
    return identity


async def save(disk: Disk, identity: Identity) -> None:
    """Make ``identity`` the directory's. Raises ``DiskError``."""
    await disk.replace(FILE, msgspec.json.encode(identity))


SEPARATOR = "@"
LIFE = "."
FIRST_LIFE = 1


def member_of(node: str, incarnation: str) -> str:
    """The name of ``node`` in groups, in this life."""
    return f"{node}{SEPARATOR}{incarnation}"


def replica_of(directory: str, life: int) -> str:
    """The member that is the replica number ``life`` of a group in ``directory``, itself the member
    of the first one.
    """
    return directory if life == FIRST_LIFE else f"{directory}{LIFE}{life}"


def directory_of(member: str) -> str:
    """The node and the life of its directory of ``member``, whichever replica it is there."""
    node, separator, incarnation = member.partition(SEPARATOR)
    return f"{node}{separator}{incarnation.partition(LIFE)[0]}"


def life_of(member: str) -> int:
    """Which replica of its group ``member`` is in its directory."""
    life = member.partition(SEPARATOR)[2].partition(LIFE)[2]
    return int(life) if life else FIRST_LIFE


def name_of(member: str) -> str:
    """The node's name."""
    return member.partition(SEPARATOR)[0]


def replaced(members: tuple[str, ...], lives: Mapping[str, str]) -> tuple[str, ...]:
    """``members``, where the directory of a node is in another one of ``lives`` (name to member)
    with that in place of the former one.
    """

    def present(member: str) -> str:
        life = lives.get(name_of(member), member)
        return member if life == directory_of(member) else life

    return tuple(map(present, members))


def names_of(members: tuple[str, ...]) -> tuple[str, ...]:
    """The nodes behind ``members``."""
    return tuple(name_of(member) for member in members)
