"""A system's promises, as data: checkers judge against it and know no system."""

from __future__ import annotations

import msgspec

STRONG_CONSISTENCY, HIGH_AVAILABILITY = "SC", "HA"
"""The modes by name: nothing is ever lost, and without a majority nothing is served; a partition
that has lost its majority goes on from what survives.
"""


REFUSED = "refused by conflict"
"""How transactions that gave way to another (``harness.protocols.conflicts``) are told of."""


class Promise(msgspec.Struct, frozen=True, kw_only=True):
    """The promise for transactions of ``kind``.

    ``model`` is a name of the consistency lattice (``strict-serializable`` ...), and holds for the
    history as a whole. ``staleness_s``: a read sees a snapshot at most that old, and then has no
    real time order: that it saw a later acknowledged write and missed an earlier one (*causal
    reverse*) breaks nothing. A ``strong-session-`` model keeps the order of each process all the
    same: what the process saw or wrote before is in the snapshot.
    """

    kind: str
    model: str = "strict-serializable"
    staleness_s: float | None = None


# Every line of every log is compared with each of them.
MAX_LOG_PATTERNS = 200
MAX_LOG_PATTERN_CHARS = 1000  # of a name and its expression


class LogPattern(msgspec.Struct, frozen=True, kw_only=True):
    """A pattern of log lines that the report must show.

    ``regex`` is searched in each line's bytes, in RE2's syntax: no look-around, no references back.
    ``breaks``: a matching line is a broken promise of its own, such as a panic. Other matches are
    reported, and decide nothing.
    """

    name: str
    regex: str
    breaks: bool = False


class Affinity(msgspec.Struct, frozen=True, kw_only=True):
    """Which of a zone's data nodes are to hold the partitions of ``table``: those that ``function``
    gives, of all but the ``barred`` ones. Functions are known by name: see
    ``checkers.promises.rebalance_targets``.
    """

    table: str
    function: str
    barred: tuple[str, ...] = ()


class Declaration(msgspec.Struct, frozen=True, kw_only=True):
    """A system's promises in the mode that a run used. The manifest stores it, so that a run
    directory needs no system to be judged.

    ``transaction_scope`` bounds the keys of one transaction: ``partition`` or ``cluster``.
    ``liveness_s``: once every fault is healed, each partition commits again within that time.
    ``mode``: in ``HA`` a forced reset of a partition may cost acknowledged writes, inside the
    envelope that ``checkers.promises.envelope`` defines; in any other mode nothing may be lost, and
    in ``SC`` a forced reset is a broken promise by itself. ``forgets_without``: once that many
    voters of one partition are out at the same time, it has no majority, without which alone it may
    be reset; ``keepers`` are the nodes that can vote in any partition, where not all can.
    ``rebalance`` names the transitions by which its assignments change
    (``checkers.promises.legal_transitions``), ``affinities`` where they lead to.
    ``conflicts``: the error codes of a transaction that aborted because of a conflict with another.
    ``logs`` are the patterns to search for in the nodes' logs; a system that declares any promises
    that its nodes stay up, unless a fault ends them.
    """

    system: str
    mode: str
    promises: tuple[Promise, ...]
    transaction_scope: str = "cluster"
    durable: bool = True
    # Not ``()``: an unset field is not written, so that the digests of older manifests hold.
    logs: tuple[LogPattern, ...] | msgspec.UnsetType = msgspec.UNSET
    liveness_s: float | msgspec.UnsetType = msgspec.UNSET
    conflicts: tuple[str, ...] | msgspec.UnsetType = msgspec.UNSET
    forgets_without: int | msgspec.UnsetType = msgspec.UNSET
    keepers: tuple[str, ...] | msgspec.UnsetType = msgspec.UNSET
    rebalance: str | msgspec.UnsetType = msgspec.UNSET
    affinities: tuple[Affinity, ...] | msgspec.UnsetType = msgspec.UNSET

    @property
    def may_lose(self) -> bool:
        """Whether a forced reset may cost acknowledged writes."""
        return self.mode == HIGH_AVAILABILITY
