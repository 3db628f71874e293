"""Which partition a key is in, and which members hold a partition: fixed hashes, equal everywhere.

Both hashes are BLAKE2b cut to 8 bytes and read big-endian, so that any language can repeat them.
"""

from __future__ import annotations

from collections.abc import Sequence
from hashlib import blake2b


def hash64(data: bytes) -> int:
    """The first 64 bits of the keyless BLAKE2b-64 digest of ``data``."""
    return int.from_bytes(blake2b(data, digest_size=8).digest(), "big")


def partition_of(key: bytes, partitions: int) -> int:
    """The partition of ``key``, 0 up to ``partitions`` - 1."""
    return hash64(key) % partitions


def holders(partition: int, members: Sequence[str], replicas: int) -> tuple[str, ...]:
    """The ``replicas`` members with the highest weight for ``partition`` (all if there are fewer).

    Rendezvous hashing: a member that joins or leaves moves only what it gains or held.
    """

    def weight(member: str) -> tuple[int, str]:
        return hash64(f"{partition}/{member}".encode()), member

    return tuple(sorted(members, key=weight, reverse=True)[:replicas])
