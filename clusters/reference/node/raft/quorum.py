"""Majorities: the one place that counts. A joint configuration needs both of its majorities."""

from __future__ import annotations

import enum
from collections.abc import Callable, Mapping

from clusters.reference.node.raft.configuration import Configuration


class Vote(enum.Enum):
    """How an election stands."""

    WON = "won"
    LOST = "lost"
    OPEN = "open"


def majority(voters: tuple[str, ...]) -> int:
    """How many of ``voters`` decide."""
    return len(voters) // 2 + 1


def reached(config: Configuration, value: Callable[[str], int]) -> int:
    """The greatest number that the values of a quorum of ``config`` have reached."""
    least = _reached(config.voters, value)
    return min(least, _reached(config.outgoing, value)) if config.outgoing else least


def tally(config: Configuration, votes: Mapping[str, bool]) -> Vote:
    """Whether the votes so far decide; those of strangers don't count."""
    halves = [_tally(half, votes) for half in (config.voters, config.outgoing) if half]
    if not halves or Vote.LOST in halves:
        return Vote.LOST
    return Vote.OPEN if Vote.OPEN in halves else Vote.WON


def _reached(voters: tuple[str, ...], value: Callable[[str], int]) -> int:
    return sorted(map(value, voters))[-majority(voters)]


def _tally(voters: tuple[str, ...], votes: Mapping[str, bool]) -> Vote:
    granted = sum(votes.get(name) is True for name in voters)
    refused = sum(votes.get(name) is False for name in voters)
    if granted >= majority(voters):
        return Vote.WON
    if len(voters) - refused < majority(voters):
        return Vote.LOST
    return Vote.OPEN
