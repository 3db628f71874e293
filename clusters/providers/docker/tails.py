"""The end of a file that the daemon hands out as a tar, in memory of the end alone."""

from __future__ import annotations

import io
import tarfile
from collections.abc import Iterator
from typing import Any


class _Chunks(io.RawIOBase):
    """An iterator of chunks as a readable stream."""

    def __init__(self, chunks: Iterator[bytes]) -> None:
        self._chunks, self._rest = chunks, b""

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:  # noqa: ANN401 (any writable buffer)
        if not self._rest:
            self._rest = next(self._chunks, b"")
        taken = min(len(buffer), len(self._rest))
        buffer[:taken], self._rest = self._rest[:taken], self._rest[taken:]
        return taken


def tail(chunks: Iterator[bytes], limit_bytes: int) -> bytes:
    """The last ``limit_bytes`` of the first regular file in a tar that arrives in ``chunks``."""
    with tarfile.open(fileobj=io.BufferedReader(_Chunks(chunks)), mode="r|") as tar:
        for entry in tar:
            content = tar.extractfile(entry) if entry.isfile() else None
            if content is None:
                continue
            skipped = max(0, entry.size - limit_bytes)
            while skipped > 0 and (dropped := len(content.read(min(skipped, 1 << 20)))):
                skipped -= dropped
            return content.read()
    return b""
