"""The partition of a key: a fixed hash, equal everywhere.

The hash is BLAKE2b cut to 8 bytes and read big-endian, so that any language can repeat it.
"""

from __future__ import annotations

from hashlib import blake2b


def hash64(data: bytes) -> int:
    """The first 64 bits of the keyless BLAKE2b-64 digest of ``data``."""
    return int.from_bytes(blake2b(data, digest_size=8).digest(), "big")


def partition_of(key: bytes, partitions: int) -> int:
    """The partition of ``key``, 0 up to ``partitions`` - 1."""
    return hash64(key) % partitions
