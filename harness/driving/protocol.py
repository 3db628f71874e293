"""The messages between a run and its driver processes: one line of JSON each.

A driver process starts without arguments of the run; its first line is an ``Enlist``. It answers
every order, and ``Dismiss`` by exiting. The end of its input is a dismissal too: without its run it
drives nothing.
"""

from __future__ import annotations

import msgspec

from harness.history.records import OpType
from harness.protocols.cluster import Address, Cluster
from harness.run.controller_health import LoopStats

# A million keys fit, which is more than a run's final reads get through.
MAX_LINE_BYTES = 64 << 20

Places = dict[str, dict[str, Address]]


class ClusterMap(msgspec.Struct, frozen=True, kw_only=True):
    """A ``Cluster`` in JSON, where a pair can't be a key."""

    nodes: tuple[str, ...]
    bind: Places
    peer: tuple[tuple[str, str, dict[str, Address]], ...]
    client: Places
    work_dir: dict[str, str]

    @staticmethod
    def of(cluster: Cluster) -> ClusterMap:
        """The wire form of ``cluster``."""
        return ClusterMap(
            nodes=cluster.nodes,
            bind={node: dict(ports) for node, ports in cluster.bind.items()},
            peer=tuple((a, b, dict(ports)) for (a, b), ports in cluster.peer.items()),
            client={node: dict(ports) for node, ports in cluster.client.items()},
            work_dir=dict(cluster.work_dir),
        )

    def cluster(self) -> Cluster:
        """The ``Cluster`` that this was made of."""
        return Cluster(
            nodes=self.nodes,
            bind=self.bind,
            peer={(source, destination): ports for source, destination, ports in self.peer},
            client=self.client,
            work_dir=self.work_dir,
        )


class Enlist(msgspec.Struct, frozen=True, kw_only=True, tag="enlist"):
    """Make a driver: ``number`` of ``of``, whose records go to the stream ``number`` + 1 of
    ``run_id``.

    ``origin_s`` is the time on CLOCK_MONOTONIC at which the run's axis begins. All processes of a
    host share that clock, so all their records are on one axis.
    """

    plan: str
    cluster: ClusterMap
    chunks: str
    number: int
    of: int
    origin_s: float
    run_id: str = ""


class First(msgspec.Struct, frozen=True, kw_only=True, tag="first"):
    """Run the operations of ``Workload.first``."""

    until_ns: int


class Main(msgspec.Struct, frozen=True, kw_only=True, tag="main"):
    """Run this process's share of the workload."""

    until_ns: int


class Read(msgspec.Struct, frozen=True, kw_only=True, tag="read"):
    """Read ``keys``, ascending, for the last time."""

    keys: tuple[int, ...]
    until_ns: int


class Members(msgspec.Struct, frozen=True, kw_only=True, tag="members"):
    """Make new connections to ``nodes`` alone from now on. Not answered, and ends no order."""

    nodes: tuple[str, ...]


class Halt(msgspec.Struct, frozen=True, kw_only=True, tag="halt"):
    """End the current order; open operations end as uncertain. Not answered: the ended order is."""


class Dismiss(msgspec.Struct, frozen=True, kw_only=True, tag="dismiss"):
    """Close all connections, end the stream of records, and exit."""


Order = Enlist | First | Main | Read | Members | Halt | Dismiss


class Ready(msgspec.Struct, frozen=True, kw_only=True, tag="ready"):
    """The driver is made."""


class PhaseResult(msgspec.Struct, frozen=True, kw_only=True, tag="ended"):
    """The order ended: whether all of it was done, and every key touched until now, ascending."""

    done: bool
    touched: tuple[int, ...]


class Tally(msgspec.Struct, frozen=True, kw_only=True, tag="tally"):
    """Operations that ended since the last tally: how, with which error, how many; and the loop
    statistics of the process since then.
    """

    counts: tuple[tuple[OpType, str | None, int], ...]
    stats: LoopStats = LoopStats()


class DriverFailure(msgspec.Struct, frozen=True, kw_only=True, tag="broken"):
    """The process can't go on, and exits."""

    text: str


Word = Ready | PhaseResult | Tally | DriverFailure

ORDERS: msgspec.json.Decoder[Order] = msgspec.json.Decoder(Order)
WORDS: msgspec.json.Decoder[Word] = msgspec.json.Decoder(Word)
_ENCODER = msgspec.json.Encoder()


def line(message: Order | Word) -> bytes:
    """``message`` in its wire form."""
    return _ENCODER.encode(message) + b"\n"
