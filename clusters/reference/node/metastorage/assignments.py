"""The cluster's shape in metastorage: how many partitions and replicas, and who holds which.

``zone`` and one ``assignments/PARTITION`` a partition are written once, by the first leader of
metastorage, as one revision.
"""

from __future__ import annotations

import msgspec

from clusters.reference.node.metastorage.store import Condition, Invoke, Metastorage, Operation
from clusters.reference.node.placement import holders

ZONE = "zone"
ASSIGNMENTS = "assignments/"


class Zone(msgspec.Struct, frozen=True, kw_only=True):
    """What all members must agree on."""

    partitions: int
    replicas: int
    members: tuple[str, ...]


def first_assignments(zone: Zone) -> Invoke:
    """Write the shape and the rendezvous assignments, unless somebody did."""
    operations = [Operation(ZONE, msgspec.json.encode(zone))]
    for partition in range(zone.partitions):
        nodes = holders(partition, zone.members, zone.replicas)
        operations.append(Operation(f"{ASSIGNMENTS}{partition}", msgspec.json.encode(nodes)))
    return Invoke((Condition(ZONE, "absent"),), tuple(operations))


def zone_of(store: Metastorage) -> Zone | None:
    """The cluster's shape, once it is written."""
    held = store.get(ZONE)
    return None if held is None else msgspec.json.decode(held.value, type=Zone)


def assignments(entries: dict[str, bytes | None]) -> dict[int, tuple[str, ...]]:
    """Partition to its holders, from the ``assignments/`` keys among ``entries``."""
    return {
        int(key.removeprefix(ASSIGNMENTS)): msgspec.json.decode(value, type=tuple[str, ...])
        for key, value in entries.items()
        if key.startswith(ASSIGNMENTS) and value is not None
    }
