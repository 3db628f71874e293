"""A partition's state machine, and what its leader does for transactions.

Strict serializability comes from the log alone: a commit carries the versions it read, and every
member validates them when it applies the command, in the same order, with the same outcome. What
the leader knows beforehand (``admit``) only spares the log commands that would abort.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import msgspec

from clusters.reference.node import codes
from clusters.reference.node.raft.types import Entry
from clusters.reference.node.wire.messages import Committed, CommitTx, Failed, Read


class TxCommand(msgspec.Struct, frozen=True, array_like=True):
    """The log's form of a commit."""

    reads: tuple[tuple[bytes, int], ...]
    writes: tuple[tuple[bytes, bytes], ...]


_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(TxCommand)
_rows_encoder = msgspec.msgpack.Encoder()
_rows_decoder = msgspec.msgpack.Decoder(tuple[tuple[bytes, Read], ...])
SNAPSHOT_BYTES = 256 * 1024  # of one chunk, or a single larger row
_ABSENT = Read(None, 0)


class Partition:
    """Key to (value, version); a version is the log index of the command that wrote it."""

    def __init__(self) -> None:
        self._rows: dict[bytes, Read] = {}
        self._in_flight: dict[bytes, int] = {}  # key -> index of its last proposed write

    def __len__(self) -> int:
        return len(self._rows)

    def read(self, key: bytes) -> Read:
        """The applied value and its version."""
        return self._rows.get(key, _ABSENT)

    def apply(self, entry: Entry) -> Committed | Failed:
        """Validate and install one command."""
        command = _decoder.decode(entry.data)
        for key, _ in command.writes:
            if self._in_flight.get(key) == entry.index:
                del self._in_flight[key]
        stale = self._stale(command.reads)
        if stale is not None:
            return stale
        for key, value in command.writes:
            self._rows[key] = Read(value, entry.index)
        return Committed(entry.index)

    def snapshot(self) -> Iterator[bytes]:
        """The state of this moment, in chunks; they may be taken while commands are applied."""
        return _chunks(list(self._rows.items()))

    def restore(self, chunks: Iterable[bytes]) -> None:
        """Become what ``snapshot`` saw."""
        self._rows = {key: row for chunk in chunks for key, row in _rows_decoder.decode(chunk)}
        self._in_flight.clear()

    def foresee(self, entry: Entry) -> Committed | None:
        """Admitted commands commit as long as the leader stays."""
        return Committed(entry.index) if entry.data else None

    def lead_lost(self) -> None:
        """Proposed writes may never come."""
        self._in_flight.clear()

    def admit(self, request: CommitTx) -> Failed | None:
        """Why ``request`` would abort, or ``None``: refusing needs no quorum."""
        for key, _ in request.reads:
            if key in self._in_flight:
                return Failed(codes.CONFLICT, f"key {key.hex()} is being written")
        return self._stale(request.reads)

    def proposed(self, request: CommitTx, index: int) -> None:
        """``request`` is in the leader's log at ``index``."""
        for key, _ in request.writes:
            self._in_flight[key] = index

    def _stale(self, reads: tuple[tuple[bytes, int], ...]) -> Failed | None:
        for key, version in reads:
            if (current := self.read(key).version) != version:
                return Failed(
                    codes.CONFLICT, f"key {key.hex()} was read at {version}, is at {current}"
                )
        return None


def encode_command(request: CommitTx) -> bytes:
    """The log's form of ``request``."""
    return _encoder.encode(TxCommand(request.reads, request.writes))


def _chunks(rows: list[tuple[bytes, Read]]) -> Iterator[bytes]:
    part: list[tuple[bytes, Read]] = []
    size = 0
    for key, row in rows:
        part.append((key, row))
        size += len(key) + len(row.value or b"") + 16
        if size >= SNAPSHOT_BYTES:
            yield _rows_encoder.encode(part)
            part, size = [], 0
    if part:
        yield _rows_encoder.encode(part)
