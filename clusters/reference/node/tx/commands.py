"""The commands in a partition's log. Every command names the epoch of the primary that proposed
it.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping

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


class CommandClass(enum.StrEnum):
    """What an entry of a partition's log is for (IEP-131, "types of commands")."""

    IN_RAFT = "in-raft"  # raft's own: configurations, and a leader's first entry
    META = "meta"  # the store's own: it changes nothing that a client has asked for
    USER = "user"  # a client's: what it wrote, and how its transaction ended


CLASSES: Mapping[type[Command], CommandClass] = {
    Takeover: CommandClass.META,
    Forget: CommandClass.META,
    Commit: CommandClass.USER,
    Prepare: CommandClass.USER,
    # An outcome that others may have acted on, though it writes nothing.
    Abort: CommandClass.USER,
    Finish: CommandClass.USER,
}

encode = msgspec.msgpack.Encoder().encode
decode = msgspec.msgpack.Decoder(Command).decode


def class_of(data: bytes, *, config: bool) -> CommandClass:
    """The class of an entry: its ``data``, and whether it holds a configuration."""
    if config or not data:
        return CommandClass.IN_RAFT
    return CLASSES[type(decode(data))]
