"""The partition that holds a key: the store's own hash, so that losses can be reported by
partition.

A row is placed by the MurmurHash3 (x64, folded to 32 bits) of its key, hashed once more as an
addition to an empty hash. Release 3.1.0.
"""

from __future__ import annotations

from typing import Final

_C1: Final = 0x87C37B91114253D5
_C2: Final = 0x4CF5AD432745937F
_LONG_BYTES, _INT_BYTES = 8, 4
_64 = (1 << 64) - 1
_32 = (1 << 32) - 1


def partition_of(key: int, partitions: int) -> int:
    """The partition of a BIGINT ``key``."""
    return abs(_signed(_hash(0, _INT_BYTES, _hash(key & _64, _LONG_BYTES, 0)))) % partitions


def _hash(value: int, size_bytes: int, seed: int) -> int:
    """MurmurHash3 of an integer of ``size_bytes`` under a 32-bit seed, folded to 32 bits."""
    first = second = _signed(seed) & _64
    mixed = value * _C1 & _64
    mixed = (mixed << 31 | mixed >> 33) & _64
    first ^= mixed * _C2 & _64
    first, second = first ^ size_bytes, second ^ size_bytes
    first = first + second & _64
    second = second + first & _64
    whole = _finished(first) + _finished(second) & _64
    return (whole ^ whole >> 32) & _32


def _finished(part: int) -> int:
    """The last mixing of one half."""
    part ^= part >> 33
    part = part * 0xFF51AFD7ED558CCD & _64
    part ^= part >> 33
    part = part * 0xC4CEB9FE1A85EC53 & _64
    return part ^ part >> 33


def _signed(bits: int) -> int:
    """32 bits as Java's int."""
    return bits - (1 << 32) if bits >= 1 << 31 else bits
