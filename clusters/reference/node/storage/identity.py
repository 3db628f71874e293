"""The identity of a node: its name, and the incarnation of its directory.

A voter is (name, incarnation). A node whose directory was wiped is a new incarnation and may have
forgotten its votes: it is another member, that groups have to take in first.

A *member* of a raft group is a node in one life of its directory (``name@incarnation``), so that a
later life can't break the promises of an earlier one.
"""

from __future__ import annotations

import random

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


def member_of(node: str, incarnation: str) -> str:
    """The name of ``node`` in groups, in this life."""
    return f"{node}{SEPARATOR}{incarnation}"


def name_of(member: str) -> str:
    """The node's name."""
    return member.partition(SEPARATOR)[0]


def replaced(members: tuple[str, ...], lives: dict[str, str]) -> tuple[str, ...]:
    """``members`` with each node in its present one of ``lives`` (name to member), where known."""
    return tuple(lives.get(name_of(member), member) for member in members)


def names_of(members: tuple[str, ...]) -> tuple[str, ...]:
    """The nodes behind ``members``."""
    return tuple(name_of(member) for member in members)
