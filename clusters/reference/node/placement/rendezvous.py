"""The members that hold a partition: a fixed hash, equal everywhere.

``zone`` and one ``assignments/PARTITION`` a partition are first written by the first leader of
metastorage, as one revision. An assignment changes when a node comes back as another member.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec

from clusters.reference.node.metastorage.metastorage import (
    Condition,
    Invoke,
    Metastorage,
    Operation,
)
from clusters.reference.node.placement.partitioning import hash64
from clusters.reference.node.storage.identity import replaced

ZONE = "zone"
ASSIGNMENTS = "assignments/"
encode = msgspec.json.encode


def holders(partition: int, members: Sequence[str], replicas: int) -> tuple[str, ...]:
    """The ``replicas`` members with the highest weight for ``partition`` (all if there are fewer).

    Rendezvous hashing: a member that joins or leaves moves only the partitions that it gains or
    held.
    """

    def weight(member: str) -> tuple[int, str]:
        # The name decides between equal hashes, so that all nodes sort alike.
        return hash64(f"{partition}/{member}".encode()), member

    return tuple(sorted(members, key=weight, reverse=True)[:replicas])


class Zone(msgspec.Struct, frozen=True, kw_only=True):
    """The settings that all members must agree on."""

    partitions: int
    replicas: int
    members: tuple[str, ...]


class Assignment(msgspec.Struct, frozen=True, kw_only=True):
    """The members that are to hold a partition, and those that began with it: ``founders`` never
    change, so that a founder that starts late begins with the same configuration as the others did.
    """

    members: tuple[str, ...]
    founders: tuple[str, ...]


def first_assignments(zone: Zone, members: Mapping[str, str]) -> Invoke:
    """The invoke that writes the shape and the rendezvous assignments, unless they are written.
    ``members``: the nodes' names to their members' names in groups.
    """
    operations = [Operation(ZONE, msgspec.json.encode(zone))]
    for partition in range(zone.partitions):
        nodes = holders(partition, zone.members, zone.replicas)
        held = tuple(members[node] for node in nodes)
        operations.append(_written(partition, Assignment(members=held, founders=held)))
    return Invoke((Condition(ZONE, "absent"),), tuple(operations))


def zone_of(store: Metastorage) -> Zone | None:
    """The cluster's shape, once it is written."""
    held = store.get(ZONE)
    return None if held is None else msgspec.json.decode(held.value, type=Zone)


def reassigned(current: Mapping[int, Assignment], lives: dict[str, str]) -> Invoke | None:
    """The invoke that puts the present ``lives`` (name to member) in place of former ones; ``None``
    where all are present ones.
    """
    conditions: list[Condition] = []
    operations: list[Operation] = []
    for partition in sorted(current):
        assignment = current[partition]
        members = replaced(assignment.members, lives)
        if members != assignment.members:
            before = _written(partition, assignment)
            # By value: an assignment that was written since must not be undone.
            conditions.append(Condition(before.key, "value", value=before.value or b""))
            after = msgspec.structs.replace(assignment, members=members)
            operations.append(_written(partition, after))
    return Invoke(tuple(conditions), tuple(operations)) if operations else None


def assignments(entries: Mapping[str, bytes | None]) -> dict[int, Assignment]:
    """Partition to its assignment, from the ``assignments/`` keys among ``entries``."""
    return {
        int(key.removeprefix(ASSIGNMENTS)): msgspec.json.decode(value, type=Assignment)
        for key, value in entries.items()
        if key.startswith(ASSIGNMENTS) and value is not None
    }


def _written(partition: int, assignment: Assignment) -> Operation:
    return Operation(f"{ASSIGNMENTS}{partition}", encode(assignment))
