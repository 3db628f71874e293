"""What a machine does at the moment of a measurement: only with it can figures be read beside those
of another machine, or of the same one when it was busier.
"""

from __future__ import annotations

import hashlib
import os
import statistics
import tempfile
import time
from pathlib import Path

import attrs

HASHES, ROUNDS, SYNCS = 10_000, 5, 20  # some 50 ms, and as long as a disk takes for the syncs
BLOCK = b"x" * 512
S_TO_MS, S_TO_US = 1e3, 1e6


@attrs.frozen(kw_only=True)
class Calibration:
    """``cpu_ms``: milliseconds for ``HASHES`` hashes in a row, of the fastest of some rounds;
    ``fsync_us``: microseconds for a synced append of a block, the median of some.
    """

    cpu_ms: float
    fsync_us: float

    def __str__(self) -> str:
        return f"calibrator: cpu {self.cpu_ms:.2f} ms, fsync {self.fsync_us:.0f} us"


def calibrate(directory: Path | None = None, *, rounds: int = ROUNDS) -> Calibration:
    """Measure this machine, now; the disk is that of ``directory``, or of temporary files. Raises
    ``OSError`` where that can't be written.
    """
    # The fastest: what else runs makes a round slower, and never faster.
    cpu_s = min(_hashed_s() for _ in range(rounds))
    # Unbuffered, or most syncs would find nothing to write.
    with tempfile.TemporaryFile(buffering=0, dir=directory) as file:
        synced_s = [_synced_s(file.fileno()) for _ in range(SYNCS)]
    return Calibration(
        cpu_ms=round(cpu_s * S_TO_MS, 3),
        fsync_us=round(statistics.median(synced_s) * S_TO_US, 1),
    )


def _hashed_s() -> float:
    begun_s = time.perf_counter()
    digest = b""
    for _ in range(HASHES):
        digest = hashlib.sha256(digest).digest()
    return time.perf_counter() - begun_s


def _synced_s(handle: int) -> float:
    begun_s = time.perf_counter()
    os.write(handle, BLOCK)
    os.fdatasync(handle)
    return time.perf_counter() - begun_s
