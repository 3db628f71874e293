"""What a run and its driver processes tell each other: a line of JSON a message.

A driver process is started with nothing; its first line is an ``Enlist``. It answers every order,
``Dismiss`` by ending. The end of its input, too, is a dismissal: without its run it drives nothing.
"""

from __future__ import annotations

import msgspec

from harness.history.records import OpType
from harness.protocols.cluster import Address, Cluster
from harness.run.controller_health import LoopStats

MAX_LINE_BYTES = 64 << 20
"""A million keys fit, which is more than a run's final reads get through."""

Places = dict[str, dict[str, Address]]


class ClusterMap(msgspec.Struct, frozen=True, kw_only=True):
    """A ``Cluster``, whose keys JSON has no names for."""

    nodes: tuple[str, ...]
    bind: Places
    peer: tuple[tuple[str, str, dict[str, Address]], ...]
    client: Places
    work_dir: dict[str, str]

    @staticmethod
    def of(cluster: Cluster) -> ClusterMap:
        """``cluster`` as it travels."""
        return ClusterMap(
            nodes=cluster.nodes,
            bind={node: dict(ports) for node, ports in cluster.bind.items()},
            peer=tuple((a, b, dict(ports)) for (a, b), ports in cluster.peer.items()),
            client={node: dict(ports) for node, ports in cluster.client.items()},
            work_dir=dict(cluster.work_dir),
        )

    def cluster(self) -> Cluster:
        """What it was."""
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

    ``origin_s`` is where the run's axis begins on CLOCK_MONOTONIC, which all processes of a host
    share: that is what makes one axis of all their records.
    """

    plan: str
    cluster: ClusterMap
    chunks: str
    number: int
    of: int
    origin_s: float
    run_id: str = ""


class First(msgspec.Struct, frozen=True, kw_only=True, tag="first"):
    """Run what comes before everything else."""

    until_ns: int


class Main(msgspec.Struct, frozen=True, kw_only=True, tag="main"):
    """Run this process's share of the workload."""

    until_ns: int


class Read(msgspec.Struct, frozen=True, kw_only=True, tag="read"):
    """Read ``keys``, ascending, for the last time."""

    keys: tuple[int, ...]
    until_ns: int


class Halt(msgspec.Struct, frozen=True, kw_only=True, tag="halt"):
    """End what goes on now; what is open is uncertain. Not answered: what it ends is."""


class Dismiss(msgspec.Struct, frozen=True, kw_only=True, tag="dismiss"):
    """Drop all connections, end the stream of records, and leave."""


Order = Enlist | First | Main | Read | Halt | Dismiss


class Ready(msgspec.Struct, frozen=True, kw_only=True, tag="ready"):
    """There is a driver."""


class PhaseResult(msgspec.Struct, frozen=True, kw_only=True, tag="ended"):
    """The order came to its end: whether all of it was done, and every key touched until now,
    ascending.
    """

    done: bool
    touched: tuple[int, ...]


class Tally(msgspec.Struct, frozen=True, kw_only=True, tag="tally"):
    """Operations that ended since the last one: how, with which error, how many; and what the
    process went through meanwhile.
    """

    counts: tuple[tuple[OpType, str | None, int], ...]
    strain: LoopStats = LoopStats()


class DriverFailure(msgspec.Struct, frozen=True, kw_only=True, tag="broken"):
    """The process can't go on, and leaves."""

    text: str


Word = Ready | PhaseResult | Tally | DriverFailure

ORDERS: msgspec.json.Decoder[Order] = msgspec.json.Decoder(Order)
WORDS: msgspec.json.Decoder[Word] = msgspec.json.Decoder(Word)
_ENCODER = msgspec.json.Encoder()


def line(message: Order | Word) -> bytes:
    """``message`` as it is sent."""
    return _ENCODER.encode(message) + b"\n"
