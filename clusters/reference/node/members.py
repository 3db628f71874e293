"""A member of a raft group is one life of a node: its name and the incarnation of its directory.

A node that was wiped is another member. Nobody counts its votes until the group has taken it in,
so that what the old one promised can't be broken by the new one.
"""

from __future__ import annotations

SEPARATOR = "@"


def member_of(node: str, incarnation: str) -> str:
    """How groups call ``node`` in this life."""
    return f"{node}{SEPARATOR}{incarnation}"


def name_of(member: str) -> str:
    """The node's name."""
    return member.partition(SEPARATOR)[0]


def replaced(members: tuple[str, ...], lives: dict[str, str]) -> tuple[str, ...]:
    """``members`` with each node in its present one of ``lives`` (name to member), where known."""
    return tuple(lives.get(name_of(member), member) for member in members)
