"""What a system promises, as data: checkers judge against it and know no system."""

from __future__ import annotations

import msgspec


class Promise(msgspec.Struct, frozen=True, kw_only=True):
    """What transactions of ``kind`` may expect.

    ``model`` is a name of the consistency lattice (``strict-serializable`` ...);
    ``staleness_s`` says that reads see a snapshot at most that old, and then no real time order.
    """

    kind: str
    model: str = "strict-serializable"
    staleness_s: float | None = None


class LogPattern(msgspec.Struct, frozen=True, kw_only=True):
    """Lines of a node's log that somebody must see.

    ``regex`` is searched in each line's bytes, in RE2's syntax: no look-around, no references
    back. ``breaks`` says that such a line is a broken promise of its own: a panic. Others are told,
    and decide nothing.
    """

    name: str
    regex: str
    breaks: bool = False


class Declaration(msgspec.Struct, frozen=True, kw_only=True):
    """A system's promises in the mode that a run used. Stored in the manifest, so a run stands
    alone.

    ``transaction_scope`` bounds the keys of one transaction: ``partition`` or ``cluster``.
    ``liveness_s``: once every fault is healed, each partition commits again within that time.
    ``forgets_without``: once so many nodes that vote in one partition are out at the same time, the
    store may go on without what they had acknowledged; ``keepers`` are the nodes that can vote in
    any, where not all do.
    ``conflicts``: the error codes of a transaction that met another one and gave way to it.
    ``logs`` are what to look for in the nodes' logs; a system that declares any promises that its
    nodes stay up, unless a fault ends them.
    """

    system: str
    mode: str
    promises: tuple[Promise, ...]
    transaction_scope: str = "cluster"
    durable: bool = True
    # Not ``()``: what is unset is not written, so that the digests of older manifests hold.
    logs: tuple[LogPattern, ...] | msgspec.UnsetType = msgspec.UNSET
    liveness_s: float | msgspec.UnsetType = msgspec.UNSET
    conflicts: tuple[str, ...] | msgspec.UnsetType = msgspec.UNSET
    forgets_without: int | msgspec.UnsetType = msgspec.UNSET
    keepers: tuple[str, ...] | msgspec.UnsetType = msgspec.UNSET
