"""The bounds of a transaction: its size, since its commit has to fit into a log entry and its
answer into a frame; its deadline; and every wait on its way.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable

from clusters.reference.node.markers import reached
from clusters.reference.node.wire import error_table as codes
from clusters.reference.node.wire.messages import Failed, Lock, PrimaryBody, ReadAt, TxnId

MAX_KEY_BYTES = 1024
MAX_VALUE_BYTES = 1024 * 1024
MAX_TX_BYTES = 4 * 1024 * 1024  # of all writes and keys; a quarter of a frame
MAX_READ_BYTES = 8 * 1024 * 1024  # of all values that its gets answer; half a frame
MAX_TX_KEYS = 10_000

# Waits. A caller's timeout exceeds the callee's, so that a refusal arrives before the caller gives
# the peer up.
LOCK_TIMEOUT_S = 1.0  # for one lock; a transaction that holds others must not wait for ever
RECOVER_AFTER_S = 1.0  # prepared, and no lock is waited for: an outcome is due in milliseconds
OUTCOME_TIMEOUT_S = 1.5  # of a read for a transaction in doubt: longer than most recoveries take
NETWORK_ALLOWANCE_S = 0.4  # for a request and its answer to travel, on machines that are busy
RPC_TIMEOUT_S = 1.0  # for one answer that may be asked for again; a slower peer is likely cut off
INTERNAL_TIMEOUT_S = 5.0  # for commands without a client; then they are proposed again
ROUTING_TIMEOUT_S = 2.0  # for a partition to get a primary; beyond it the client is told

Step = tuple[bytes, bytes | None]
Row = tuple[int, bytes]  # a partition's flat number, and a key in it


class TxError(Exception):
    """A step failed; the transaction is over."""

    def __init__(self, failed: Failed) -> None:
        super().__init__(f"{failed.code}: {failed.message}")
        self.failed = failed


class Limits:
    """The deadline of a transaction, and the limits of its contents."""

    def __init__(self, txn: TxnId, limit_s: float) -> None:
        """``limit_s`` from now on it is given up."""
        self.txn = txn
        self._now_s = asyncio.get_running_loop().time
        self._deadline_s = self._now_s() + limit_s
        self._keys: dict[Row, int] = {}
        self._bytes = 0
        self._read_bytes = 0

    def left_s(self) -> float:
        """Seconds left. Raises ``TxError`` where there are none."""
        left_s = self._deadline_s - self._now_s()
        if left_s <= 0:
            reached("transaction past its deadline")
            raise error(codes.EXPIRED, f"{self.txn} is over its deadline")
        return left_s

    def left_ms(self) -> int:
        """The same in milliseconds, at least one."""
        return max(1, int(self.left_s() * 1000))

    def count_key(self, row: Row, value: bytes | None = None) -> None:
        """Count a key, and the bytes written to it. Raises ``TxError`` over a limit."""
        key = row[1]
        # Every step counts its key, so no step begins past the deadline.
        self.left_s()
        if not 0 < len(key) <= MAX_KEY_BYTES:
            raise error(codes.TOO_LARGE, f"key: 1 to {MAX_KEY_BYTES} bytes (got {len(key)})")
        if value is not None and len(value) > MAX_VALUE_BYTES:
            raise error(codes.TOO_LARGE, f"at most {MAX_VALUE_BYTES} bytes a value")
        # A read of a key that was written must not take back the size of the write.
        if value is not None or row not in self._keys:
            size = len(key) + len(value or b"")
            # A second write of a key replaces the first: only the last one travels.
            self._bytes += size - self._keys.get(row, 0)
            self._keys[row] = size
        if len(self._keys) > MAX_TX_KEYS:
            raise error(codes.TOO_LARGE, f"at most {MAX_TX_KEYS} keys a transaction")
        if self._bytes > MAX_TX_BYTES:
            raise error(codes.TOO_LARGE, f"at most {MAX_TX_BYTES} bytes a transaction")

    def read(self, value: bytes | None) -> None:
        """Count a value that the transaction keeps to see it again. Raises ``TxError``."""
        self._read_bytes += len(value or b"")
        if self._read_bytes > MAX_READ_BYTES:
            raise TxError(_read_too_much(self._read_bytes))


def check_steps(steps: tuple[Step, ...]) -> None:
    """A one-shot travels with all its steps, those on the same key too. Raises ``TxError``."""
    if len(steps) > MAX_TX_KEYS:
        raise error(
            codes.TOO_LARGE, f"at most {MAX_TX_KEYS} steps a transaction (got {len(steps)})"
        )
    size = sum(len(key) + len(value or b"") for key, value in steps)
    if size > MAX_TX_BYTES:
        raise error(codes.TOO_LARGE, f"at most {MAX_TX_BYTES} bytes a transaction (got {size})")


def answer_too_large(values: Iterable[bytes | None]) -> Failed | None:
    """Why the ``values`` of a one-shot's gets can't be answered together. To be asked before
    anything is proposed, while refusing is still certain.
    """
    size = sum(len(value or b"") for value in values)
    return _read_too_much(size) if size > MAX_READ_BYTES else None


def error(code: str, message: str) -> TxError:
    """A failed step."""
    return TxError(Failed(code, message))


def _read_too_much(size: int) -> Failed:
    text = f"at most {MAX_READ_BYTES} bytes read by a transaction (got {size})"
    return Failed(codes.TOO_LARGE, text)


def answer_timeout_s(body: PrimaryBody) -> float:
    """How long one answer to ``body``, which may be asked again, is waited for."""
    if isinstance(body, Lock):
        return LOCK_TIMEOUT_S + NETWORK_ALLOWANCE_S
    if isinstance(body, ReadAt):
        return OUTCOME_TIMEOUT_S + NETWORK_ALLOWANCE_S
    return RPC_TIMEOUT_S
