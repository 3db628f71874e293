"""The commands in a partition's log. Every command names the epoch of the primary that proposed
it.
"""

from __future__ import annotations

import msgspec

from clusters.reference.node.wire.messages import TxnId

Writes = tuple[tuple[bytes, bytes], ...]


class Takeover(msgspec.Struct, frozen=True, array_like=True, tag="takeover"):
    """A new primary: commands of older epochs have no effect from here on, and every later version
    is above ``floor``, the highest timestamp that an earlier primary may have promised about.
    """

    epoch: int
    floor: int


class Commit(msgspec.Struct, frozen=True, array_like=True, tag="commit"):
    """``txn`` commits at ``ts``. With ``participants`` this is its outcome, kept until all of them
    have finished; without, the transaction is of this partition alone.
    """

    epoch: int
    txn: TxnId
    ts: int
    writes: Writes
    participants: tuple[int, ...]


class Prepare(msgspec.Struct, frozen=True, array_like=True, tag="prepare"):
    """The keys that ``txn`` has read and writes here stay locked until its outcome at ``home`` is
    known; it can't commit below ``ts``.
    """

    epoch: int
    txn: TxnId
    ts: int
    reads: tuple[bytes, ...]
    writes: Writes
    home: int


class Abort(msgspec.Struct, frozen=True, array_like=True, tag="abort"):
    """``txn``, whose commit partition this is, is aborted unless it has an outcome."""

    epoch: int
    txn: TxnId


class Finish(msgspec.Struct, frozen=True, array_like=True, tag="finish"):
    """The prepared ``txn`` has committed at ``ts``; 0: it is aborted."""

    epoch: int
    txn: TxnId
    ts: int


class Forget(msgspec.Struct, frozen=True, array_like=True, tag="forget"):
    """These committed transactions are finished everywhere; and no transaction that began before
    ``horizon`` and has no outcome here will ever have one.
    """

    epoch: int
    txns: tuple[TxnId, ...]
    horizon: int


Command = Takeover | Commit | Prepare | Abort | Finish | Forget

encode = msgspec.msgpack.Encoder().encode
decode = msgspec.msgpack.Decoder(Command).decode
