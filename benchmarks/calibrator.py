"""What a machine does at the moment of a measurement: only with it can figures be read beside those
of another machine, or of the same one when it was busier.
"""

from __future__ import annotations

import hashlib
import multiprocessing
import os
import statistics
import tempfile
import time
from concurrent.futures import ProcessPoolExecutor

import attrs
import numpy as np

HASHES, SYNCS = 200_000, 200
NUMBERS, SWEEPS, ROUNDS = 2_000_000, 4, 5
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
    _hash()
    hashed_s = time.perf_counter()
    # Unbuffered, or most syncs would find nothing to write.
    with tempfile.TemporaryFile(buffering=0) as file:
        for _ in range(SYNCS):
            file.write(BLOCK)
            os.fdatasync(file.fileno())
    synced_s = time.perf_counter()
    return Calibration(cpu_s=hashed_s - begun_s, fsync_us=(synced_s - hashed_s) / SYNCS * 1e6)


def worth_of_two() -> float:
    """How much more two processes at once do on this machine than one alone, 2 at best: cores may
    share what they compute with, or be a busy host's. The median of ``ROUNDS``.
    """
    with ProcessPoolExecutor(2, mp_context=multiprocessing.get_context("spawn")) as pool:
        list(pool.map(_sweep, range(2)))  # both are up
        found = []
        for _ in range(ROUNDS):
            begun_s = time.perf_counter()
            list(pool.map(_sweep, range(1)))
            alone_s = time.perf_counter()
            list(pool.map(_sweep, range(2)))
            found.append(2 * (alone_s - begun_s) / (time.perf_counter() - alone_s))
    return statistics.median(found)


def _hash() -> None:
    digest = b""
    for _ in range(HASHES):
        digest = hashlib.sha256(digest).digest()


def _sweep(seed: int) -> None:
    """What judging does most: sort numbers, and follow them through memory."""
    drawn = np.random.default_rng(seed).integers(0, NUMBERS, NUMBERS)
    for _ in range(SWEEPS):
        order = np.argsort(drawn, kind="stable")
        drawn = drawn[order[::-1]]
