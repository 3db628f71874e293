"""Who this node is: its name, and the incarnation of its directory.

A voter is (name, incarnation). A node whose directory was wiped is a new incarnation and may have
forgotten its votes: its peers, which remember the one they met first, don't talk to it.
"""

from __future__ import annotations

import asyncio
import random

import msgspec

from clusters.reference.node.runtime import Disk, DiskError

FILE = "identity.json"


class Identity(msgspec.Struct, frozen=True, kw_only=True):
    """``known`` maps each peer met so far to the incarnation it had."""

    node: str
    incarnation: str
    known: dict[str, str] = {}


async def load(disk: Disk, node: str, rng: random.Random) -> Identity:
    """The identity in the directory, made at the first start. Raises ``DiskError`` if it is another
    node's or unreadable.
    """
    data = await disk.read(FILE)
    if not data:
        identity = Identity(node=node, incarnation=f"{rng.getrandbits(64):016x}")
        await disk.replace(FILE, msgspec.json.encode(identity))
        return identity
    try:
        identity = msgspec.json.decode(data, type=Identity)
    except msgspec.DecodeError as error:
        raise DiskError(f"{FILE}: not an identity: {error}") from error
    if identity.node != node:
        raise DiskError(f"{FILE}: the directory is of node {identity.node!r}, not of {node!r}")
    return identity


class Acquaintances:
    """The peers' incarnations, remembered durably before they are relied on."""

    def __init__(self, disk: Disk, identity: Identity) -> None:
        self._disk = disk
        self.identity = identity
        self._meeting = asyncio.Lock()

    async def accept(self, peer: str, incarnation: str) -> bool:
        """Whether ``peer`` is who it was when first met. Raises ``DiskError``."""
        # A peer dials while it is dialed: the second of two calls must not be told of an
        # acquaintance that the first is still writing down.
        async with self._meeting:
            known = self.identity.known.get(peer)
            if known is None:
                identity = msgspec.structs.replace(
                    self.identity, known={**self.identity.known, peer: incarnation}
                )
                await self._disk.replace(FILE, msgspec.json.encode(identity))
                self.identity = identity
                return True
            return known == incarnation
