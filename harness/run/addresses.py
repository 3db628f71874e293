"""The addresses of a run's nodes, kept while they are up, for commands beside the run."""

from __future__ import annotations

import contextlib

import msgspec

from harness.errors import MalformedHistory, UsageError
from harness.history.durable_files import write_atomically
from harness.history.regular_files import read_small
from harness.history.run_directory import RunDirectory, directory_mark
from harness.protocols.cluster import Address, Cluster

LIMIT_BYTES = 1 << 20  # the most nodes that a plan may have take some kilobytes


class _Addresses(msgspec.Struct, frozen=True, kw_only=True):
    """``directory`` is the mark of the run directory that they were written into: in a copy of it
    they are another run's.
    """

    directory: str
    clients: dict[str, dict[str, Address]]


def write_addresses(run: RunDirectory, cluster: Cluster) -> None:
    """Keep the addresses by which this machine dials the nodes. Raises ``HarnessError``."""
    clients = {node: dict(cluster.client[node]) for node in cluster.machines}
    kept = _Addresses(directory=directory_mark(run.root), clients=clients)
    write_atomically(run.addresses, msgspec.json.encode(kept))


def forget_addresses(run: RunDirectory) -> None:
    """Remove them: the nodes are gone. A disk that refuses leaves what leads nowhere."""
    with contextlib.suppress(OSError):
        run.addresses.unlink(missing_ok=True)


def read_addresses(run: RunDirectory) -> Cluster:
    """The nodes with their clients' addresses, and nothing else of a cluster. Raises
    ``UsageError`` where there are none: the run never came up, left no cluster, or is a copy.
    """
    unknown = f"run {run.root.name}: the addresses of its nodes are not known"
    try:
        kept = msgspec.json.decode(read_small(run.addresses, LIMIT_BYTES), type=_Addresses)
    except FileNotFoundError as error:
        raise UsageError(unknown) from error
    except (OSError, msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise MalformedHistory(str(run.addresses), "", f"no addresses: {error}") from error
    # By device and inode alone: a stranger may guess the path that a run is unpacked to.
    if kept.directory.split(":", 2)[:2] != directory_mark(run.root).split(":", 2)[:2]:
        raise UsageError(f"{unknown}: it is a copy of a run, and has no nodes")
    clients = kept.clients
    return Cluster(nodes=tuple(clients), bind={}, peer={}, client=clients, work_dir={})
