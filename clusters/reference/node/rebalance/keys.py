"""What metastorage holds about the rebalance of a partition ("New metastore keys" of the seed).

Values are encoded one way, since conditions compare bytes: sets of nodes are sorted, numbers are
big-endian and of one length, so that ``value<`` compares them as numbers.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Protocol

import msgspec

from clusters.reference.node.metastorage.metastorage import Versioned

STABLE = "partition.assignments.stable/"
PENDING = "partition.assignments.pending/"
PLANNED = "partition.assignments.planned/"
LOCK = "partition.assignments.pending.lock/"
TRIGGER = "partition.change.trigger.revision/"
# The configuration that stable was switched to last. The seed has no such key: with it a leader
# whose report of a configuration comes late can't put it in place of a later one.
APPLIED = "partition.assignments.applied/"
# The members that a partition's raft group begins with, in the lives of their directories of that
# moment: a founder that starts late begins with the same configuration as the others did.
FOUNDERS = "partition.founders/"
# The number of the partition's generation: how many forced resets there were (IEP-131).
GENERATION = "partition.generation/"
# The stable assignments since the last graceful change, a link each; in a zone that is highly
# available alone (``availability.chain``).
CHAIN = "partition.assignments.chain/"
PREFIXES = (STABLE, PENDING, PLANNED, LOCK, TRIGGER, APPLIED, FOUNDERS, GENERATION, CHAIN)
NUMBER_BYTES = 8


class View(Protocol):
    """What is read of metastorage: one state of it."""

    def get(self, key: str) -> Versioned | None:
        """The value of ``key``."""


class PartitionId(msgspec.Struct, frozen=True, order=True):
    """A partition of a table: the table's id and the partition's number."""

    table: int
    number: int

    def key(self, prefix: str) -> str:
        """Its key under ``prefix``."""
        return f"{prefix}{self.table}/{self.number}"


class Assignments(msgspec.Struct, frozen=True, array_like=True):
    """A set of nodes, sorted. ``force``: the configuration is forced on the nodes left;
    ``from_reset``: it follows one that was (both of IEP-131; a rebalance sets neither).
    ``survivors``, of a forced one: the nodes whose copies it was chosen from; ``manual``: an
    operator has asked for it; ``member``: the copy that was chosen, and no later one in its place
    (empty: there was none).
    """

    nodes: tuple[str, ...]
    force: bool = False
    from_reset: bool = False
    survivors: tuple[str, ...] = ()
    manual: bool = False
    member: str = ""


class Lock(msgspec.Struct, frozen=True, array_like=True):
    """The leader of ``term`` goes on to ``nodes``: pending must not change until it is through."""

    nodes: tuple[str, ...]
    term: int


class Link(msgspec.Struct, frozen=True, array_like=True):
    """Stable assignments, and where their configuration stands in the group's log."""

    nodes: tuple[str, ...]
    generation: int = 0
    index: int = 0
    term: int = 0


class Chain(msgspec.Struct, frozen=True, array_like=True):
    """``AssignmentsChain`` of IEP-131: the first link is of the last graceful change, each further
    one of a forced reset since then.
    """

    links: tuple[Link, ...]

    def last_link(self, node: str) -> int | None:
        """The place of the last link that has ``node``."""
        return max((at for at, link in enumerate(self.links) if node in link.nodes), default=None)

    def replace_last(self, link: Link) -> Chain:
        """The chain with ``link`` in place of its last one."""
        return Chain((*self.links[:-1], link))

    def add_last(self, link: Link) -> Chain:
        """The chain with ``link`` behind its last one."""
        return Chain((*self.links, link))


class Position(msgspec.Struct, frozen=True, array_like=True, order=True):
    """Where in a partition's log a configuration stands: its generation (a forced reset begins
    another) and its index.
    """

    generation: int
    index: int

    def encode(self) -> bytes:
        """Bytes that compare as positions do."""
        return encode_number(self.generation) + encode_number(self.index)


class PartitionState(msgspec.Struct, frozen=True, kw_only=True):
    """What metastorage holds about one partition, and the revisions of the keys that a transition
    replaces: a value may come back, a revision does not. ``pending_revision`` is the sequence token
    of the change of peers that pending asks for, too. A key that is absent has the revision 0.
    """

    partition: PartitionId
    stable: Assignments | None = None
    pending: Assignments | None = None
    planned: Assignments | None = None
    lock: Lock | None = None
    trigger: int | None = None
    applied: Position | None = None
    generation: int = 0
    chain: Chain | None = None
    stable_revision: int = 0
    chain_revision: int = 0
    pending_revision: int = 0
    planned_revision: int = 0
    lock_revision: int = 0


_encode = msgspec.msgpack.Encoder().encode
_assignments = msgspec.msgpack.Decoder(Assignments).decode
decode_lock = msgspec.msgpack.Decoder(Lock).decode
decode_chain = msgspec.msgpack.Decoder(Chain).decode
_members = msgspec.msgpack.Decoder(tuple[str, ...]).decode


def assignments(nodes: Iterable[str]) -> Assignments:
    """The set of ``nodes``."""
    return Assignments(tuple(sorted(set(nodes))))


def encode(value: Assignments | Lock | Chain) -> bytes:
    """The stored form of ``value``."""
    return _encode(value)


def decode(value: bytes) -> Assignments:
    """The set of nodes in its stored form."""
    return _assignments(value)


def encode_founders(members: tuple[str, ...]) -> bytes:
    """The stored form of the founders of a partition's group."""
    return _encode(members)


def decode_founders(value: bytes) -> tuple[str, ...]:
    """The founders of a partition's group in their stored form."""
    return _members(value)


def founders(view: View, partition: PartitionId) -> tuple[str, ...]:
    """The members that the group of ``partition`` began with."""
    held = view.get(partition.key(FOUNDERS))
    return () if held is None else _members(held.value)


def encode_number(number: int) -> bytes:
    """The stored form of a revision, a generation or an index."""
    return number.to_bytes(NUMBER_BYTES, "big")


def read(view: View, partition: PartitionId) -> PartitionState:
    """The state of ``partition``."""
    held = {prefix: view.get(partition.key(prefix)) for prefix in PREFIXES}
    return PartitionState(
        partition=partition,
        stable=_decoded(held, STABLE),
        pending=_decoded(held, PENDING),
        planned=_decoded(held, PLANNED),
        lock=None if (lock := held[LOCK]) is None else decode_lock(lock.value),
        trigger=None
        if (trigger := held[TRIGGER]) is None
        else int.from_bytes(trigger.value, "big"),
        applied=None if (applied := held[APPLIED]) is None else _position(applied.value),
        generation=0 if (begun := held[GENERATION]) is None else int.from_bytes(begun.value, "big"),
        chain=None if (chain := held[CHAIN]) is None else decode_chain(chain.value),
        stable_revision=_revision(held[STABLE]),
        chain_revision=_revision(held[CHAIN]),
        pending_revision=_revision(held[PENDING]),
        planned_revision=_revision(held[PLANNED]),
        lock_revision=_revision(held[LOCK]),
    )


def _revision(held: Versioned | None) -> int:
    return 0 if held is None else held.revision


def _decoded(held: Mapping[str, Versioned | None], prefix: str) -> Assignments | None:
    found = held[prefix]
    return None if found is None else _assignments(found.value)


def _position(value: bytes) -> Position:
    return Position(
        int.from_bytes(value[:NUMBER_BYTES], "big"), int.from_bytes(value[NUMBER_BYTES:], "big")
    )
