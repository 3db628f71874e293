"""A partition: a state machine of commands over two protocols. ``Replication`` proposes commands to
all replicas; ``PartitionStorage`` keeps the versions that they write. The state machine holds the
prepared transactions, and the ``Outcomes`` of the transactions whose commit partition this is.

Every member applies the same commands in the same order with the same result. The primary decides
all that needs a lock or a clock before it proposes; the log decides which came first: epoch against
epoch, commit against abort.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from itertools import chain
from typing import Protocol

import msgspec

from clusters.reference.node.bugs import planted
from clusters.reference.node.markers import reached
from clusters.reference.node.raft.settings import InvariantBroken
from clusters.reference.node.raft.types import Entry
from clusters.reference.node.runtime.hybrid_clock import span
from clusters.reference.node.storage.memory_storage import MemoryStorage
from clusters.reference.node.tx import commands
from clusters.reference.node.tx.commands import Abort, Commit, Finish, Forget, Prepare, Takeover
from clusters.reference.node.tx.durable_outcomes import Outcome, Outcomes
from clusters.reference.node.wire import error_table as codes
from clusters.reference.node.wire.messages import (
    Ack,
    CommitReply,
    Failed,
    PrepareReply,
    ResolveReply,
    TxnId,
    Version,
)

SNAPSHOT_S = 15.0  # how far back versions are kept; half as long may a snapshot be open
CHUNK_BYTES = 256 * 1024  # of keys in one part of a snapshot, or a single larger one
VERSION_BYTES = 16  # of a version beside its value, roughly

Result = CommitReply | PrepareReply | ResolveReply | Ack | Failed


class Replication(Protocol):
    """The way of commands to all replicas of a partition."""

    @property
    def serving(self) -> bool:
        """Whether this replica leads, and has applied every command of earlier leaders."""

    @property
    def generation(self) -> int:
        """The generation of the partition: how many forced resets there were."""

    async def propose(self, command: commands.Command, limit_s: float) -> object:
        """The result of ``Partition.apply`` for ``command`` here, or ``Failed``, whose code says
        whether it may still be applied. A caller that stops waiting undoes nothing.
        """


class PartitionStorage(Protocol):
    """The versions of a partition's keys, which its commands write."""

    def __len__(self) -> int:
        """How many keys there are."""

    @property
    def older(self) -> int:
        """How many versions are kept for read-only transactions alone."""

    def newest(self, key: bytes) -> Version:
        """The last committed version; (``None``, 0) where there is none."""

    def at(self, key: bytes, ts: int) -> Version:
        """The version that was the newest at ``ts``; right unless it was collected."""

    def all_of(self, key: bytes) -> tuple[Version, ...]:
        """Every version that is kept, the newest first."""

    def install(self, key: bytes, value: bytes, ts: int) -> None:
        """Add a version above all others of ``key``."""

    def collect(self, horizon: int) -> None:
        """Drop every version that no read at ``horizon`` or later can see."""

    def dump(self) -> Iterator[tuple[bytes, tuple[Version, ...]]]:
        """Every key with its versions at the call, ascending, while later ones are installed."""

    def load(self, key: bytes, versions: tuple[Version, ...]) -> None:
        """Take in a key of a dump, into a storage that is empty otherwise."""

    def loaded(self) -> None:
        """The dump is complete."""


class _Head(msgspec.Struct, frozen=True, array_like=True):
    """The first part of a snapshot."""

    epoch: int
    max_ts: int
    written_ts: int
    horizon: int
    prepared: list[Prepare]
    outcomes: list[tuple[TxnId, Outcome]]
    last_user_index: int = 0


_encode = msgspec.msgpack.Encoder().encode
_decode_head = msgspec.msgpack.Decoder(_Head).decode
_decode_rows = msgspec.msgpack.Decoder(list[tuple[bytes, tuple[Version, ...]]]).decode


class Partition:
    """The state of one replica. ``committed`` and ``aborted`` count since the start."""

    def __init__(
        self,
        new_storage: Callable[[], PartitionStorage] = MemoryStorage,
        *,
        retention_s: float | None = None,
        chunk_bytes: int | None = None,
    ) -> None:
        """``new_storage`` makes an empty storage: one at the start, one for each restore. By
        default versions are kept for ``SNAPSHOT_S``, and a snapshot has parts of ``CHUNK_BYTES``.
        """
        self._new_storage = new_storage
        self._retention = span(retention_s or SNAPSHOT_S)
        self._chunk_bytes = chunk_bytes or CHUNK_BYTES
        self.versions: PartitionStorage = new_storage()
        self.prepared: dict[TxnId, Prepare] = {}
        self.outcomes = Outcomes()
        self.epoch = 0
        self.max_ts = self.written_ts = 0
        self.committed = self.aborted = 0
        self.last_user_index = 0  # of the last entry that a client has asked for
        # That of the snapshot read last, before it is restored: a copy that waits for the decision
        # about its start is asked for it.
        self.read_user_index = 0
        self._ended: list[TxnId] = []

    @property
    def readable_from(self) -> int:
        """Snapshots below it may lack versions."""
        return max(0, self.max_ts - self._retention)

    def apply(self, entry: Entry) -> Result:
        """Do one command. Raises ``InvariantBroken`` on one that no primary can have proposed."""
        command = commands.decode(entry.data)
        if commands.CLASSES[type(command)] is commands.CommandClass.USER:
            self.last_user_index = entry.index
        if isinstance(command, Takeover):
            return self._take_over(command)
        # A primary that was superseded may have proposals under way: the log fences them off here.
        if command.epoch != self.epoch:
            reached("command of a past epoch")
            if isinstance(command, Commit | Prepare):
                self._ended.append(command.txn)
            return Failed(codes.NOT_PRIMARY, f"epoch {command.epoch} ended, it is {self.epoch}")
        match command:
            case Commit():
                return self._commit(command)
            case Prepare():
                self.prepared[command.txn] = command
                return PrepareReply(command.ts)
            case Abort():
                return self._abort(command.txn)
            case Finish():
                return self._finish(command)
            case Forget():
                self.outcomes.forget(command.txns, command.horizon)
                return Ack()
        raise InvariantBroken(f"a command that no primary proposes: {command}")

    def predict(self, entry: Entry) -> Result | None:
        """The result of ``apply`` unless another primary takes over."""
        # A leader's first entry is empty (Raft 8).
        command = commands.decode(entry.data) if entry.data else None
        if isinstance(command, Commit):
            return CommitReply(command.ts)
        return None

    def content(self) -> Iterable[object]:
        """Newest versions, prepared transactions, outcomes. Older versions are left out: after a
        restored snapshot a member may drop them at another time.
        """
        written = self.written_ts, self.last_user_index
        head = (self.epoch, self.max_ts, self.outcomes.horizon, *written)
        rows = ((key, versions[-1]) for key, versions in self.versions.dump())
        outcomes = list(self.outcomes.rows.items())
        return chain((head,), list(self.prepared.values()), outcomes, rows)

    def take_ended(self) -> list[TxnId]:
        """The transactions that hold nothing here any more since the last call, in order."""
        if not self._ended:
            return self._ended
        # Mostly empty, and asked for after every entry: no new list then.
        ended, self._ended = self._ended, []
        return ended

    def snapshot(self) -> Iterator[bytes]:
        """The state now, in parts; later commands don't touch it."""
        # Copied now: ``_parts`` encodes it later, when more commands may have been applied.
        head = _Head(
            self.epoch,
            self.max_ts,
            self.written_ts,
            self.outcomes.horizon,
            [] if planted("prepared-not-saved") else list(self.prepared.values()),
            list(self.outcomes.rows.items()),
            self.last_user_index,
        )
        return _parts(head, self.versions.dump(), self._chunk_bytes)

    def empty_storage(self) -> PartitionStorage:
        """A storage like that of this partition, for a restore."""
        return self._new_storage()

    def restoring(self) -> SnapshotRestore:
        """A restore to the state that ``snapshot`` captured."""
        return SnapshotRestore(self)

    def _take_over(self, command: Takeover) -> Ack | Failed:
        # A takeover that was proposed twice, or one that a later one overtook in the log.
        if command.epoch <= self.epoch:
            reached("takeover of a past epoch")
            return Failed(codes.NOT_PRIMARY, f"epoch {command.epoch}, it is {self.epoch} already")
        self.epoch = command.epoch
        if planted("prepared-forgotten"):
            self.prepared.clear()
        # The floor is above the predecessor's ceiling, and so
        # above all that it promised to readers.
        self.max_ts = max(self.max_ts, command.floor)
        return Ack()

    def _commit(self, command: Commit) -> CommitReply | Failed:
        txn = command.txn
        decided = self.outcomes.decided(txn)
        if decided is None:
            self._install(command.writes, command.ts)
            self.outcomes.commit(txn, command.ts, command.participants)
        # Committed or too late: either way it is over, and its locks go with this entry.
        self._ended.append(txn)
        if decided is not None and not decided.ts:
            reached("commit after its abort")
            return Failed(
                codes.ABORTED, f"{txn}: coordinator lease expired; aborted by a participant"
            )
        self.committed += 1
        return CommitReply(command.ts)

    def _abort(self, txn: TxnId) -> ResolveReply:
        decided = self.outcomes.decided(txn)
        if decided is None:
            reached("abort recorded as an outcome")
            self.outcomes.abort(txn)
            self._ended.append(txn)
            decided = ResolveReply(0)
            self.aborted += 1
        return decided

    def _finish(self, command: Finish) -> Ack:
        # Sent until answered, so it may come twice: the second finds nothing to do.
        prepared = self.prepared.pop(command.txn, None)
        if prepared is None:
            reached("finished a second time")
        else:
            if command.ts:
                own_time = planted("finished-at-own-time")
                self._install(prepared.writes, self.max_ts + 1 if own_time else command.ts)
                self.committed += 1
            else:
                self.aborted += 1
            self._ended.append(command.txn)
        return Ack()

    def _install(self, writes: commands.Writes, ts: int) -> None:
        for key, value in writes:
            # Locks and the floor of each takeover see to it; a mistake there must not reorder
            # history.
            if (before := self.versions.newest(key).ts) >= ts:
                raise InvariantBroken(f"key {key.hex()}: version {ts} after version {before}")
            self.versions.install(key, value, ts)
        # Apart from ``max_ts``, which takeovers raise as well: staleness is judged by real writes.
        self.written_ts = max(self.written_ts, ts)
        self.max_ts = max(self.max_ts, ts)
        # With a command, not by a timer: replicas agree about the log, and not about the time.
        early = planted("versions-collected-early")
        self.versions.collect(self.max_ts if early else self.readable_from)


class SnapshotRestore:
    """A snapshot of a partition being read, a chunk at a time; it is invisible until ``done``."""

    def __init__(self, partition: Partition) -> None:
        self._partition = partition
        self._head: _Head | None = None
        self._versions = partition.empty_storage()

    def feed(self, chunk: bytes) -> None:
        """Take the next chunk. Raises ``msgspec.DecodeError``."""
        if self._head is None:
            self._head = _decode_head(chunk)
            self._partition.read_user_index = self._head.last_user_index
            return
        for key, row in _decode_rows(chunk):
            # Beside the live storage: a transfer that breaks off leaves the old state whole.
            self._versions.load(key, row[:1] if planted("snapshot-applied-partly") else row)

    def done(self) -> None:
        """The ``partition`` takes over the state in the chunks."""
        partition, head = self._partition, self._head
        if head is None:
            raise InvariantBroken("a snapshot without any chunk")
        self._versions.loaded()
        partition.versions = self._versions
        partition.epoch, partition.last_user_index = head.epoch, head.last_user_index
        partition.max_ts, partition.written_ts = head.max_ts, head.written_ts
        partition.prepared = {command.txn: command for command in head.prepared}
        partition.outcomes = Outcomes(head.outcomes, head.horizon)
        if head.prepared:
            reached("snapshot brings a prepared transaction")
        if head.outcomes:
            reached("snapshot brings an outcome")


def _parts(
    head: _Head, rows: Iterator[tuple[bytes, tuple[Version, ...]]], chunk_bytes: int
) -> Iterator[bytes]:
    yield _encode(head)
    part: list[tuple[bytes, tuple[Version, ...]]] = []
    size = 0
    for key, versions in rows:
        part.append((key, versions))
        size += len(key) + sum(VERSION_BYTES + len(v.value or b"") for v in versions)
        if size >= chunk_bytes:
            reached("snapshot of a partition in several chunks")
            yield _encode(part)
            part, size = [], 0
    if part:
        yield _encode(part)
