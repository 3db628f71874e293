"""The addresses of a run's nodes, kept while they are up, for commands beside the run."""

from __future__ import annotations

import contextlib

import msgspec

from harness.errors import MalformedHistory, UsageError
from harness.history.files import read_small, write_atomically
from harness.protocols.cluster import Address, Cluster
from harness.run.directory import RunDirectory

LIMIT_BYTES = 1 << 20  # the most nodes that a plan may have take some kilobytes

Clients = dict[str, dict[str, Address]]


def write_addresses(run: RunDirectory, cluster: Cluster) -> None:
    """Keep the addresses by which this machine dials the nodes. Raises ``HarnessError``."""
    clients: Clients = {node: dict(cluster.client[node]) for node in cluster.machines}
    write_atomically(run.addresses, msgspec.json.encode(clients))


def forget_addresses(run: RunDirectory) -> None:
    """Remove them: the nodes are gone. A disk that refuses leaves what leads nowhere."""
    with contextlib.suppress(OSError):
        run.addresses.unlink(missing_ok=True)


def read_addresses(run: RunDirectory) -> Cluster:
    """The nodes with their clients' addresses, and nothing else of a cluster. Raises
    ``UsageError`` where there are none: the run never came up, or left no cluster.
    """
    if not run.addresses.exists():
        raise UsageError(f"run {run.root.name}: the addresses of its nodes are not known")
    try:
        clients = msgspec.json.decode(read_small(run.addresses, LIMIT_BYTES), type=Clients)
    except (OSError, msgspec.DecodeError) as error:
        raise MalformedHistory(str(run.addresses), "", f"no addresses: {error}") from error
    return Cluster(nodes=tuple(clients), bind={}, peer={}, client=clients, work_dir={})
