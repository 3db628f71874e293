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


class Declaration(msgspec.Struct, frozen=True, kw_only=True):
    """A system's promises in the mode that a run used. Stored in the manifest, so a run stands
    alone.

    ``transaction_scope`` bounds the keys of one transaction: ``partition`` or ``cluster``.
    """

    system: str
    mode: str
    promises: tuple[Promise, ...]
    transaction_scope: str = "cluster"
    durable: bool = True
