"""What replicas tell of themselves so that others can judge whether they agree."""

from __future__ import annotations

import msgspec


class AskStates(msgspec.Struct, frozen=True, array_like=True, tag="states"):
    """Admin: the state of every replica here; with ``whole`` also contents and logs, as digests."""

    whole: bool = False


class LogMark(msgspec.Struct, frozen=True, array_like=True):
    """One entry of a log: ``digest`` stands for all that is in it."""

    index: int
    term: int
    digest: int


class Recovered(msgspec.Struct, frozen=True, array_like=True):
    """What this start found on its disk: term, vote, and up to where the log or its snapshot."""

    term: int
    vote: str | None
    last_index: int


class ReplicaReport(msgspec.Struct, frozen=True, array_like=True):
    """One replica at one moment. ``term`` and ``vote`` are durable, as is all up to
    ``applied_index``, whose entry is of ``applied_term``.

    ``voter``: it counts, among ``voters``. ``acting``: it would acknowledge now, under ``epoch``.
    ``locks`` and ``prepared``: what transactions hold here. ``content`` and ``log``, the newest
    committed entries, only where the whole was asked for.
    """

    group: str
    partition: int | None
    leading: bool
    voter: bool
    voters: int
    term: int
    vote: str | None
    applied_index: int
    applied_term: int
    commit_index: int
    last_index: int
    recovered: Recovered
    epoch: int
    acting: bool
    locks: int
    prepared: int
    content: int | None = None
    log: tuple[LogMark, ...] = ()


class StateReport(msgspec.Struct, frozen=True, kw_only=True, tag="state-report"):
    """All replicas of a node. ``member`` is the node in this life of its directory."""

    node: str
    member: str
    boot: str
    replicas: tuple[ReplicaReport, ...]
