"""The state that replicas of a store report: values, and the protocol of a system that reports it.

A system of replicated logs may report, at any moment, the state of each of its replicas. From the
states sampled during a run, and from the whole states at its end, checkers judge promises that hold
for every such system: replicas agree, a term has one leader, durable entries are never forgotten,
no lock is left. A system that does not report is not judged by them.
"""

from __future__ import annotations

from typing import Protocol, runtime_checkable

import msgspec

from harness.protocols.cluster import Cluster


class LogMark(msgspec.Struct, frozen=True):
    """One entry of a log; equal entries have equal ``digest`` (an int64)."""

    index: int
    term: int
    digest: int


class RecoveredState(msgspec.Struct, frozen=True):
    """The state that a replica found on its disk when its node started."""

    term: int
    vote: str | None
    last_index: int


class ReplicaState(msgspec.Struct, frozen=True, kw_only=True):
    """One replica of one replicated group, as its node reported it at some moment of the request.

    ``life`` changes each time the node's disk is wiped, ``boot`` with every start. ``term`` and
    ``vote`` are durable; so is every entry up to ``applied_index``, the last of which is of
    ``applied_term`` (0: not known). ``voter``: the replica counts, one of ``voters``. ``acting``:
    it would acknowledge clients now, as the primary of ``epoch``. ``locks`` and ``prepared`` count
    what transactions hold.

    ``generation``: of the partition, the one whose log this replica has, as far as it has come;
    numbers of entries and terms say the same of two replicas within one only.

    ``content`` (an int64, equal for equal contents) and ``log``, its newest applied entries, are
    present where the whole state was requested.
    """

    node: str
    life: str
    boot: str
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
    recovered: RecoveredState
    epoch: int
    acting: bool
    locks: int
    prepared: int
    generation: int = 0
    content: int | None = None
    log: tuple[LogMark, ...] = ()


@runtime_checkable
class TellsStates(Protocol):
    """A ``System`` that reports the states of its replicas."""

    async def states(
        self, cluster: Cluster, node: str, *, whole: bool
    ) -> tuple[ReplicaState, ...] | None:
        """Return every replica on ``node``; ``None`` where the node does not answer in time."""
