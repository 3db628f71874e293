"""Majorities over a set of voters: the one place that counts, so that joint sets fit in later."""

from __future__ import annotations

import enum
from collections.abc import Callable, Mapping


class Vote(enum.Enum):
    """How an election stands."""

    WON = "won"
    LOST = "lost"
    OPEN = "open"


def majority(voters: tuple[str, ...]) -> int:
    """How many of ``voters`` decide."""
    return len(voters) // 2 + 1


def reached(voters: tuple[str, ...], value: Callable[[str], int]) -> int:
    """The greatest number that the values of a majority of ``voters`` have reached."""
    return sorted((value(name) for name in voters), reverse=True)[majority(voters) - 1]


def tally(voters: tuple[str, ...], votes: Mapping[str, bool]) -> Vote:
    """Whether the votes so far decide; those of strangers don't count."""
    granted = sum(votes.get(name) is True for name in voters)
    refused = sum(votes.get(name) is False for name in voters)
    if granted >= majority(voters):
        return Vote.WON
    if len(voters) - refused < majority(voters):
        return Vote.LOST
    return Vote.OPEN
