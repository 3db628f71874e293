"""The /24 of the benchmarking range 198.18.0.0/15 for a run's network, and the nodes' addresses."""

from __future__ import annotations

import hashlib
import socket
from collections.abc import Callable, Iterable, Iterator, Mapping
from ipaddress import IPv4Network
from pathlib import Path

import msgspec

from harness.protocols.cluster import Address, Cluster, PortSpec

RANGE = IPv4Network("198.18.0.0/15")
PREFIX_LENGTH = 24
FIRST_NODE = 10  # .1 is the bridge, the controller's own address on the network
NODES_MAX = 200
FIRST_PORT = 7400


def candidates(run_id: str, taken: Iterable[IPv4Network]) -> Iterator[IPv4Network]:
    """Every free /24 of the range once, starting where ``run_id`` points: runs rarely clash."""
    busy = tuple(taken)
    every = tuple(RANGE.subnets(new_prefix=PREFIX_LENGTH))
    first = int.from_bytes(hashlib.sha256(run_id.encode()).digest()[:4], "big") % len(every)
    for subnet in every[first:] + every[:first]:
        if not any(subnet.overlaps(other) for other in busy):
            yield subnet


def routed(table: Path = Path("/proc/net/route")) -> tuple[IPv4Network, ...]:
    """The networks that this host has a route to, the default route aside."""
    try:
        rows = [line.split() for line in table.read_text().splitlines()[1:]]
    except OSError:
        return ()
    found = []
    for row in rows:
        if len(row) > 7 and row[7] != "00000000":
            # The kernel prints both in its own byte order, the reverse of the network's here.
            address, mask = (bytes.fromhex(row[i])[::-1] for i in (1, 7))
            length = int.from_bytes(mask, "big").bit_count()
            found.append(IPv4Network((int.from_bytes(address, "big"), length), strict=False))
    return tuple(found)


def addresses(subnet: IPv4Network, nodes: tuple[str, ...]) -> dict[str, str]:
    """A fixed address in ``subnet`` for each of ``nodes``, in their order."""
    return {node: str(subnet[FIRST_NODE + i]) for i, node in enumerate(nodes)}


def source_in(subnet: IPv4Network, owned: Callable[[str], bool]) -> str:
    """The address to dial the nodes of ``subnet`` from: the bridge's, where it is ``owned`` by this
    machine. Empty where the daemon runs on another machine or in another network: then any will do.
    """
    bridge = str(subnet[1])
    return bridge if owned(bridge) else ""


def is_own(address: str) -> bool:
    """Whether ``address`` is one of this machine's."""
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as trial:
        try:
            trial.bind((address, 0))
        except OSError:
            return False
    return True


def cluster_at(
    addresses: Mapping[str, str], ports: tuple[PortSpec, ...], work_dir: str, source: str = ""
) -> Cluster:
    """A cluster whose nodes have one address each, for all dialers; the controller dials from
    ``source``.
    """
    bind = {
        node: {spec.name: Address(host=at, port=FIRST_PORT + i) for i, spec in enumerate(ports)}
        for node, at in addresses.items()
    }
    between = tuple(spec.name for spec in ports if spec.between_nodes)
    return Cluster(
        nodes=tuple(addresses),
        bind=bind,
        peer={
            (source, destination): {name: bind[destination][name] for name in between}
            for source in bind
            for destination in bind
            if source != destination
        },
        client={
            node: {name: msgspec.structs.replace(at, source=source) for name, at in listens.items()}
            for node, listens in bind.items()
        },
        work_dir=dict.fromkeys(addresses, work_dir),
    )
