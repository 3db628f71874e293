"""What a machine does at the moment of a measurement: only with it can figures be read beside those
of another machine, or of the same one when it was busier.
"""

from __future__ import annotations

import hashlib
import os
import tempfile
import time

import attrs

HASHES, SYNCS = 200_000, 200
BLOCK = b"x" * 512


@attrs.frozen(kw_only=True)
class Calibration:
    """``cpu_s``: seconds for ``HASHES`` hashes in a row; ``fsync_us``: microseconds for each of
    ``SYNCS`` synced appends, where temporary files lie.
    """

    cpu_s: float
    fsync_us: float

    def __str__(self) -> str:
        return f"calibrator: cpu {self.cpu_s:.3f} s, fsync {self.fsync_us:.0f} us"


def calibrate() -> Calibration:
    """Measure this machine, now."""
    begun_s = time.perf_counter()
    digest = b""
    for _ in range(HASHES):
        digest = hashlib.sha256(digest).digest()
    hashed_s = time.perf_counter()
    # Unbuffered, or most syncs would find nothing to write.
    with tempfile.TemporaryFile(buffering=0) as file:
        for _ in range(SYNCS):
            file.write(BLOCK)
            os.fdatasync(file.fileno())
    synced_s = time.perf_counter()
    return Calibration(cpu_s=hashed_s - begun_s, fsync_us=(synced_s - hashed_s) / SYNCS * 1e6)
