"""Nodes as values, and the two protocols behind them: who provides them, and what runs on them.

Order of calls in a run::

    provider.check(names, system.ports)                          (nothing is made yet)
    provider.provision(names, system.ports)  -> Cluster         (machines are up, no store yet)
    provider.install(node, system.program(node, cluster))        for every node
    system.set_up(cluster, provider)                             (it starts the nodes)
    ... drive and break ...
    provider.collect(node, directory); provider.teardown()      (or provider.leave())

The nemesis decides with values; the provider acts. Every call has a deadline of its own inside.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping
from pathlib import Path
from typing import Protocol, runtime_checkable

import attrs
import msgspec

from harness.clock import RunClock
from harness.history.records import StoreEvent
from harness.protocols.client import Client, ErrorMeaning
from harness.protocols.promise import Declaration

Link = tuple[str, str]
Grudge = tuple[Link, ...]
"""Directed links (source, destination) whose packets are dropped: sorted, without repetition."""


class LinkShape(msgspec.Struct, frozen=True, kw_only=True):
    """What befalls packets on a directed link: a share ``loss`` of them is dropped at random, the
    rest is held back for ``delay_s`` seconds.
    """

    link: Link
    loss: float = 0.0
    delay_s: float = 0.0


class LinkQuality(msgspec.Struct, frozen=True, kw_only=True):
    """What was measured on a directed link: the share of packets that did not arrive, and the
    shortest way there and back in seconds, ``None`` where nothing came back.
    """

    loss: float
    round_trip_s: float | None


class Address(msgspec.Struct, frozen=True, kw_only=True):
    """Where something listens. ``source``: the address of this machine on its network, which is
    dialled from. Where the network vanishes so does that address, and a dial is refused here
    instead of taking the default route to a stranger; empty where any address will do.
    """

    host: str
    port: int
    source: str = ""

    def __str__(self) -> str:
        return f"{self.host}:{self.port}"


class PortSpec(msgspec.Struct, frozen=True, kw_only=True):
    """A port that a system's node opens. ``between_nodes``: nodes dial it, so cuts apply to it."""

    name: str
    between_nodes: bool


@attrs.frozen(kw_only=True)
class Cluster:
    """The nodes of a run and how each is reached, from where.

    ``bind[node][port]`` where the node listens; ``peer[(source, destination)][port]`` how one node
    dials another (a proxy of its own per link under some providers); ``client[node][port]`` how the
    controller dials it; ``work_dir[node]`` a directory in the node's own file system for its data.
    """

    nodes: tuple[str, ...]
    bind: Mapping[str, Mapping[str, Address]]
    peer: Mapping[Link, Mapping[str, Address]]
    client: Mapping[str, Mapping[str, Address]]
    work_dir: Mapping[str, str]


class PythonTree(msgspec.Struct, frozen=True, kw_only=True):
    """Python code that a node needs: ``source`` on the controller, importable as ``package`` on the
    node.
    """

    source: str
    package: str


class Program(msgspec.Struct, frozen=True, kw_only=True):
    """What to run on a node, independent of where.

    ``argv[0]`` may be ``"python3"``: the provider puts the interpreter it has there. ``files`` are
    written into the work directory before the first start (relative path -> bytes).
    ``python`` trees are made importable; so are ``requirements`` (a hashed lock file's path on the
    controller), or they are refused where the provider installs nothing and they are not there.
    """

    argv: tuple[str, ...]
    env: dict[str, str] = {}
    files: dict[str, bytes] = {}
    python: tuple[PythonTree, ...] = ()
    requirements: str | None = None
    log: str = "node.log"


class NodeStatus(msgspec.Struct, frozen=True, kw_only=True):
    """What an independent look at a node shows now. ``boot`` changes with every start of the
    program, and stays when it ends; ``paused`` is the program's state, ``frozen`` the whole
    machine's. ``exit_text`` is how a program ended as far as the provider saw it; ``last_words``
    the last line of its log, which may have nothing to do with that.
    """

    node: str
    running: bool
    paused: bool = False
    frozen: bool = False
    pid: int | None = None
    boot: str | None = None
    exit_text: str = ""
    last_words: str = ""

    @property
    def end(self) -> str:
        """How it ended and what its log said last, for one who looks for the reason."""
        said = f"its log's last line: {self.last_words!r}" if self.last_words else ""
        return "; ".join(filter(None, (self.exit_text, said)))


class Provider(Protocol):
    """Where nodes come from and who acts on them. ``name`` is its entry point's name."""

    name: str

    async def capabilities(self) -> frozenset[Capability]:
        """What this provider can do on this machine, found by trying."""

    async def check(self, nodes: tuple[str, ...], ports: tuple[PortSpec, ...]) -> None:
        """Refuse what ``provision`` would refuse, as far as that can be known before anything is
        made. Raises ``PlanError`` and ``HarnessError``.
        """

    async def provision(self, nodes: tuple[str, ...], ports: tuple[PortSpec, ...]) -> Cluster:
        """Bring up machines for ``nodes``; nothing of the system runs on them yet."""

    async def install(self, node: str, program: Program) -> None:
        """Put the program's code and files on the node."""

    async def start(self, node: str) -> NodeStatus:
        """Start the installed program (again)."""

    async def stop(self, node: str) -> NodeStatus:
        """SIGTERM, wait, and SIGKILL past the limit."""

    async def kill(self, node: str) -> NodeStatus:
        """SIGKILL the program; the machine stays, so peers see resets."""

    async def pause(self, node: str) -> NodeStatus:
        """SIGSTOP the program."""

    async def resume(self, node: str) -> NodeStatus:
        """SIGCONT the program."""

    async def freeze(self, node: str) -> NodeStatus:
        """Stop everything on the machine, the way to control it included. Idempotent."""

    async def thaw(self, node: str) -> NodeStatus:
        """Let a frozen machine go on, with the cuts and shapes that are in force now.
        Idempotent.
        """

    async def lose(self, node: str) -> NodeStatus:
        """Take the machine away: no reset reaches anyone."""

    async def restore(self, node: str) -> NodeStatus:
        """Bring a lost machine back, its disk as it was; the program is not started."""

    async def cut(self, grudge: Grudge) -> None:
        """Make ``grudge`` the whole set of cut links; ``()`` heals all. Idempotent."""

    async def shape(self, shapes: tuple[LinkShape, ...]) -> None:
        """Make ``shapes`` (at most one a link) all that befalls links; ``()`` ends it.
        Idempotent.
        """

    async def probe(self, node: str) -> NodeStatus:
        """Look at the node by another way than the one that acted on it."""

    async def probe_links(self, links: tuple[Link, ...]) -> dict[Link, bool]:
        """For each directed link, whether what the source sends reaches the destination, by
        trying. Links are left out where trying shows nothing: a machine that is lost or frozen
        can't be asked, and silence of a link is an answer only where what no cut takes arrives.
        """

    async def measure_links(self, links: tuple[Link, ...]) -> dict[Link, LinkQuality]:
        """What each directed link does to packets, by sending many; without those whose machines
        can't be asked.
        """

    async def collect(self, node: str, into: Path) -> None:
        """Copy the node's logs into ``into`` (created), size-capped."""

    async def teardown(self) -> None:
        """Remove everything of this run. Idempotent; never waits for a frozen node."""

    async def leave(self) -> None:
        """Instead of ``teardown``: let the cluster serve on after this process, for a person to
        look at, until ``firedrill cleanup`` takes it down by the run's name. Raises
        ``MissingCapability`` where nodes can't outlive this process.
        """


class Roles(msgspec.Struct, frozen=True, kw_only=True):
    """Who holds which role now: leader, primary, voters and learners per partition; who leads the
    metastorage, and who the group that manages the cluster, where the store has one.

    A partition without a known leader is absent from ``leaders``. ``primaries`` are the replicas
    that may acknowledge, under a lease or whatever the store calls it; ``None`` of a store where
    that always is the leader. ``others`` answered and hold none of these roles.
    """

    leaders: dict[int, str] = {}
    primaries: dict[int, str] | None = None
    voters: dict[int, tuple[str, ...]] = {}
    learners: dict[int, tuple[str, ...]] = {}
    metastorage_leader: str | None = None
    management_leader: str | None = None
    others: tuple[str, ...] = ()


class System(Protocol):
    """A store under test. Built by its entry point from the plan's ``[system]`` table and the
    seed.
    """

    name: str
    ports: tuple[PortSpec, ...]
    errors: dict[str, ErrorMeaning]

    @property
    def declaration(self) -> Declaration:
        """What the store promises, as data."""

    def versions(self) -> dict[str, str]:
        """What exactly is under test: versions and content hashes, for the manifest."""

    def program(self, node: str, cluster: Cluster) -> Program:
        """What runs on ``node``."""

    async def set_up(self, cluster: Cluster, provider: Provider, deadline_s: float) -> None:
        """Start the installed nodes in the order the store likes, and return when every partition
        serves; raise ``HarnessError`` naming what is missing at loop time ``deadline_s``.
        """

    async def connect(self, cluster: Cluster, node: str, process: int) -> Client:
        """A connection of logical process ``process`` to ``node``. Raises ``StoreError``."""

    async def roles(self, cluster: Cluster) -> Roles:
        """Who leads what, as the nodes tell; partial where nodes don't answer."""

    async def recover(self, cluster: Cluster, provider: Provider, deadline_s: float) -> None:
        """After all faults are healed: do what an operator would, until the cluster is whole and
        quiet.
        """

    async def events(self, cluster: Cluster, clock: RunClock) -> list[StoreEvent]:
        """New events since the last call, mapped to the run's axis. Nodes that don't answer are
        skipped.
        """

    def partition_of(self, key: int) -> int | None:
        """The partition of ``key``, or ``None`` where the store does not tell."""

    @property
    def partitions(self) -> int | None:
        """How many partitions there are, where the store tells."""


@runtime_checkable
class LogsEvents(Protocol):
    """A ``System`` whose nodes write their events into their logs, too: what a node did just before
    it was killed nobody could ask it for.
    """

    async def logged_events(self, node: str, logs: Path) -> list[StoreEvent]:
        """Events of ``node`` that ``events`` never told, from what was collected into the directory
        ``logs``, mapped to the run's axis. Called after the last ``events``.
        """


@runtime_checkable
class TellsVersions(Protocol):
    """A ``Provider`` that knows what its machines are made of."""

    def versions(self) -> dict[str, str]:
        """Names and content hashes, for the manifest. Called after ``capabilities``."""


@runtime_checkable
class LeasesFaults(Protocol):
    """A ``Provider`` whose machines end their faults by themselves once the controller is not heard
    of any more.
    """

    def lapsed(self) -> tuple[str, ...]:
        """Leases that ran out though the controller lives, a sentence each: what was broken then
        healed before its time, and the run is inconclusive.
        """


@runtime_checkable
class Readmits(Protocol):
    """A ``System`` that does not take a node back by itself once it was thrown out: mending what
    broke is then only half of the healing.
    """

    async def readmit(
        self, cluster: Cluster, provider: Provider, nodes: tuple[str, ...]
    ) -> tuple[str, ...]:
        """Do what an operator would for those of ``nodes`` that run and were thrown out, and say
        which they were. Called after each heal, before its proof.
        """


@runtime_checkable
class WalksAround(Protocol):
    """A ``System`` whose nodes don't feel all that a provider can do to them."""

    def unfelt(self, provider: str) -> frozenset[Capability]:
        """What the provider of that name can do and these nodes walk around: links that they don't
        take, say. A plan that needs it is refused.
        """


@runtime_checkable
class NeedsMade(Protocol):
    """A ``System`` that needs what somebody has to make or install on this machine first."""

    def require_made(self, provider: str) -> None:
        """Raises ``UsageError`` for what nodes of the provider of that name, or their clients, lack
        on this machine, with how to get it. Quick, and asked before anything of a run is made.
        """


def require_made(system: System, provider: Provider) -> None:
    """Raises ``UsageError`` where something has to be made on this machine first."""
    if isinstance(system, NeedsMade):
        system.require_made(provider.name)


def felt(able: frozenset[Capability], system: System, provider: Provider) -> frozenset[Capability]:
    """What of ``able`` the system's nodes feel."""
    return able - system.unfelt(provider.name) if isinstance(system, WalksAround) else able


class Capability(enum.StrEnum):
    """One ability of a provider on this machine. A plan that needs an absent one is refused."""

    KILL = "kill"
    PAUSE = "pause"
    FREEZE = "freeze"
    HOST_LOSS = "host-loss"
    PARTITION = "partition"
    ONE_WAY_PARTITION = "one-way-partition"
    PACKET_LOSS = "packet-loss"
    DELAY = "delay"
    THROTTLE = "throttle"
    CLOCK = "clock"
    DISK = "disk"


class LogPiece(msgspec.Struct, frozen=True, kw_only=True):
    """What a log holds from some byte on, and the node's wall clock when it was read."""

    content: bytes
    wall_ns: int


@runtime_checkable
class ReadsLogs(Protocol):
    """A ``Provider`` that can read a program's log without ending anything."""

    async def read_log(self, node: str, offset: int, limit_bytes: int) -> LogPiece:
        """Up to ``limit_bytes`` of the log of ``node`` from byte ``offset`` on. Raises
        ``HarnessError`` where the machine can't be asked now.
        """
