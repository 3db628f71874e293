"""Nodes as values, and the protocols of the provider that runs them and of the system on them.

Order of calls in a run::

    provider.check(names, system.ports)                          (nothing is made yet)
    provider.provision(names, system.ports)  -> Cluster         (machines are up, no store yet)
    provider.install(node, system.program(node, cluster))        for every node
    system.set_up(cluster, provider)                             (it starts the nodes)
    ... drive and break ...
    provider.collect(node, directory); provider.teardown()      (or provider.leave())

The nemesis decides with values; the provider acts. Every call enforces a deadline of its own.
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
from harness.protocols.client import Client
from harness.protocols.fail_or_info import ErrorMeaning
from harness.protocols.promise import Declaration

# Of one log of a node: its end, where the story of a failure is. As much is collected, sealed and
# searched; at the start of a longer one lines may be lost, which the manifest then names.
NODE_LOG_BYTES = 64 << 20

Link = tuple[str, str]
Grudge = tuple[Link, ...]
"""Directed links (source, destination) whose packets are dropped: sorted, without repetition."""


class LinkShape(msgspec.Struct, frozen=True, kw_only=True):
    """The packet loss and delay of a directed link: a share ``loss`` of the packets is dropped at
    random, the rest is delayed by ``delay_s`` seconds.
    """

    link: Link
    loss: float = 0.0
    delay_s: float = 0.0


class LinkQuality(msgspec.Struct, frozen=True, kw_only=True):
    """The measured quality of a directed link: the share of packets that did not arrive, and the
    shortest round trip in seconds, ``None`` where no packet came back.
    """

    loss: float
    round_trip_s: float | None


class Address(msgspec.Struct, frozen=True, kw_only=True):
    """A listening address. ``source`` is this machine's address on the same network, from which it
    dials; empty where any address will do. When that network vanishes the source address vanishes
    too, so a dial is refused here instead of following the default route to an unrelated host.
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
    """The nodes of a run, its ``spares``, and the addresses that reach each of them.

    ``nodes`` are the cluster's members; ``spares`` are provisioned like them and no members.

    ``bind[node][port]`` is where the node listens; ``peer[(source, destination)][port]`` how one
    node dials another (a proxy of its own per link under some providers); ``client[node][port]``
    how the controller dials it; ``work_dir[node]`` a directory in the node's own file system for
    its data.
    """

    nodes: tuple[str, ...]
    bind: Mapping[str, Mapping[str, Address]]
    peer: Mapping[Link, Mapping[str, Address]]
    client: Mapping[str, Mapping[str, Address]]
    work_dir: Mapping[str, str]
    spares: tuple[str, ...] = ()

    @property
    def machines(self) -> tuple[str, ...]:
        """All that was provisioned: members, then spares, each in the order of the plan."""
        return (*self.nodes, *self.spares)


class PythonTree(msgspec.Struct, frozen=True, kw_only=True):
    """Python code that a node needs: ``source`` on the controller, importable as ``package`` on the
    node.
    """

    source: str
    package: str


class Program(msgspec.Struct, frozen=True, kw_only=True):
    """The program of a node, independent of the machine that runs it.

    ``argv[0]`` may be ``"python3"``: the provider substitutes its own interpreter. ``files`` are
    written into the work directory before the first start (relative path -> bytes). ``python``
    trees are made importable; so are ``requirements`` (the path of a hashed lock file on the
    controller). A provider that installs nothing refuses requirements that are not installed.
    """

    argv: tuple[str, ...]
    env: dict[str, str] = {}
    files: dict[str, bytes] = {}
    python: tuple[PythonTree, ...] = ()
    requirements: str | None = None
    log: str = "node.log"


class NodeStatus(msgspec.Struct, frozen=True, kw_only=True):
    """The state of a node as a probe shows it, independent of the verbs that acted on the node.

    ``boot`` changes with every start of the program, and stays when the program ends; ``paused`` is
    the program's state, ``frozen`` the whole machine's. ``exit_text`` describes how the program
    ended, as far as the provider saw it; ``last_words`` is the last line of its log, which may be
    unrelated to the exit.
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
        """How the program ended and the last line of its log, for a message that gives the
        reason.
        """
        said = f"its log's last line: {self.last_words!r}" if self.last_words else ""
        return "; ".join(filter(None, (self.exit_text, said)))


class Provider(Protocol):
    """The source of the nodes, and all actions on them. ``name`` is the name of its entry point."""

    name: str

    async def capabilities(self) -> frozenset[Capability]:
        """Return what this provider can do on this machine, found by trying."""

    async def check(self, nodes: tuple[str, ...], ports: tuple[PortSpec, ...]) -> None:
        """Refuse what ``provision`` would refuse, as far as that can be known before anything is
        made. Raises ``PlanError`` and ``HarnessError``.
        """

    async def provision(self, nodes: tuple[str, ...], ports: tuple[PortSpec, ...]) -> Cluster:
        """Bring up machines for ``nodes``; no program of the system runs on them yet."""

    async def install(self, node: str, program: Program) -> None:
        """Put the program's code and files on the node."""

    async def start(self, node: str) -> NodeStatus:
        """Start the installed program (again)."""

    async def stop(self, node: str) -> NodeStatus:
        """Send SIGTERM, wait, and send SIGKILL past the limit."""

    async def kill(self, node: str) -> NodeStatus:
        """SIGKILL the program; the machine stays up, so peers see connection resets."""

    async def pause(self, node: str) -> NodeStatus:
        """SIGSTOP the program."""

    async def resume(self, node: str) -> NodeStatus:
        """SIGCONT the program."""

    async def freeze(self, node: str) -> NodeStatus:
        """Stop every process of the machine, its control channel included. Idempotent."""

    async def thaw(self, node: str) -> NodeStatus:
        """Resume a frozen machine, with the cuts and shapes that are in force now. Idempotent."""

    async def lose(self, node: str) -> NodeStatus:
        """Take the machine away: no peer receives a reset."""

    async def restore(self, node: str) -> NodeStatus:
        """Bring a lost machine back with its disk unchanged; the program is not started."""

    async def cut(self, grudge: Grudge) -> None:
        """Make ``grudge`` the whole set of cut links; ``()`` heals all. Idempotent."""

    async def shape(self, shapes: tuple[LinkShape, ...]) -> None:
        """Make ``shapes`` (at most one per link) the whole set of shaped links; ``()`` removes all
        shapes. Idempotent.
        """

    async def probe(self, node: str) -> NodeStatus:
        """Return the state of the node, found by another way than the verbs use."""

    async def probe_links(self, links: tuple[Link, ...]) -> dict[Link, bool]:
        """Return for each directed link whether packets from the source reach the destination, by
        sending some. A link without evidence is absent: a machine that is lost or frozen can't be
        asked, and a silent link counts as cut only where traffic that no cut affects arrives.
        """

    async def measure_links(self, links: tuple[Link, ...]) -> dict[Link, LinkQuality]:
        """Measure each directed link by sending many packets; links whose machines can't be asked
        are absent.
        """

    async def collect(self, node: str, into: Path) -> Mapping[str, int]:
        """Copy the node's logs into ``into`` (created), of each no more than its last
        ``NODE_LOG_BYTES``. Return the number of bytes left out before them by the file's name; logs
        that are whole have no entry. A collected file is sealed afterwards: it may grow, and no
        byte of it changes. Raises ``HarnessError``.
        """

    async def teardown(self) -> None:
        """Remove everything of this run. Idempotent; never waits for a frozen node."""

    async def leave(self) -> None:
        """Instead of ``teardown``: leave the cluster up after this process, for inspection, until
        ``firedrill cleanup`` removes it by the run's name. Raises ``MissingCapability`` where nodes
        can't outlive this process.
        """


class Roles(msgspec.Struct, frozen=True, kw_only=True):
    """The nodes that hold each role now: leader, primary, voters and learners per partition, the
    leader of the metastorage, and the leader of the cluster management group, where the store has
    one. ``metastorage_voters`` are empty where the store does not tell them.

    A partition without a known leader is absent from ``leaders``. ``primaries`` are the replicas
    that may acknowledge writes, under a lease or the store's equivalent; ``None`` for a store whose
    leader always is the primary. ``others`` answered and hold none of these roles.
    """

    leaders: dict[int, str] = {}
    primaries: dict[int, str] | None = None
    voters: dict[int, tuple[str, ...]] = {}
    learners: dict[int, tuple[str, ...]] = {}
    metastorage_leader: str | None = None
    metastorage_voters: tuple[str, ...] = ()
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
        """The store's promises, as data."""

    def versions(self) -> dict[str, str]:
        """Return the versions and content hashes of the store under test, for the manifest."""

    def program(self, node: str, cluster: Cluster) -> Program:
        """Return the program of ``node``."""

    async def set_up(self, cluster: Cluster, provider: Provider, deadline_s: float) -> None:
        """Start the installed nodes in the order that the store needs, and return when every
        partition serves. Raises ``HarnessError`` naming what is missing at loop time
        ``deadline_s``.
        """

    async def connect(self, cluster: Cluster, node: str, process: int) -> Client:
        """Connect logical process ``process`` to ``node``. Raises ``StoreError``."""

    async def roles(self, cluster: Cluster) -> Roles:
        """Return the roles that the nodes report; partial where nodes don't answer."""

    async def recover(self, cluster: Cluster, provider: Provider, deadline_s: float) -> None:
        """Called after all faults are healed: do what an operator would, until the cluster is whole
        and quiet. Raises ``HarnessError`` where it is not at loop time ``deadline_s``.
        """

    async def events(self, cluster: Cluster, clock: RunClock) -> list[StoreEvent]:
        """Return the events since the last call, mapped to the run's axis. Nodes that don't answer
        are skipped.
        """

    def partition_of(self, key: int) -> int | None:
        """Return the partition of ``key``, or ``None`` where the store does not report it."""

    @property
    def partitions(self) -> int | None:
        """The number of partitions, or ``None`` where the store does not report it."""


@runtime_checkable
class LogsEvents(Protocol):
    """A ``System`` whose nodes also write their events into their logs, so that the last events
    before a kill are not lost: a killed node can't be asked for them.
    """

    async def logged_events(self, node: str, logs: Path) -> list[StoreEvent]:
        """Return the events of ``node`` that ``events`` never returned, from the files collected
        into the directory ``logs``, mapped to the run's axis. Called after the last ``events``.
        """


@runtime_checkable
class TellsVersions(Protocol):
    """A ``Provider`` that knows the versions of its machines' images and tools."""

    def versions(self) -> dict[str, str]:
        """Return names and content hashes, for the manifest. Called after ``capabilities``."""


@runtime_checkable
class LeasesFaults(Protocol):
    """A ``Provider`` whose machines end their faults by themselves once they stop hearing from the
    controller.
    """

    async def lapsed(self) -> tuple[str, ...]:
        """Ask the machines for the leases that expired up to now although the controller lives;
        return a sentence each. Such a fault healed before its time, and the run is inconclusive.
        Raises ``HarnessError`` where a machine that can be reached does not tell.
        """


@runtime_checkable
class Readmits(Protocol):
    """A ``System`` that does not readmit an evicted node by itself: undoing the fault is then only
    half of the healing.
    """

    async def readmit(
        self, cluster: Cluster, provider: Provider, nodes: tuple[str, ...]
    ) -> tuple[str, ...]:
        """Do what an operator would for each of ``nodes`` that runs and was evicted, and return
        those nodes. Called after each heal, before its proof.
        """


@runtime_checkable
class WalksAround(Protocol):
    """A ``System`` whose nodes escape some of the faults that a provider can inject."""

    def unfelt(self, provider: str) -> frozenset[Capability]:
        """Return the capabilities of the provider of that name that have no effect on these nodes,
        such as cuts of links that they do not use. A plan that needs one of them is refused.
        """


@runtime_checkable
class NeedsMade(Protocol):
    """A ``System`` that needs files or tools which have to be made or installed on this machine
    first.
    """

    def require_made(self, provider: str) -> None:
        """Raises ``UsageError`` for what nodes of the provider of that name, or their clients, lack
        on this machine, with how to get it. Quick, and called before anything of a run is made.
        """


@runtime_checkable
class TellsVoters(Protocol):
    """A ``System`` that can tell before a run how many voters its partitions have."""

    @property
    def voters(self) -> int | None:
        """The number of voters of every partition, ``None`` where they differ or change."""


@runtime_checkable
class TellsLearners(Protocol):
    """A ``System`` that can tell before a run how many replicas of a partition do not vote."""

    @property
    def learners(self) -> int | None:
        """The number of learners of every partition while no data moves, ``None`` where they
        differ.
        """


@runtime_checkable
class TellsMetastorage(Protocol):
    """A ``System`` with a group of its own for what it knows of its partitions."""

    @property
    def metastorage(self) -> tuple[str, ...]:
        """The nodes that vote in that group at first."""


@runtime_checkable
class TellsManagement(Protocol):
    """A ``System`` that can tell before a run whether a group manages its cluster."""

    @property
    def management(self) -> tuple[str, ...]:
        """The nodes that vote in that group at first; none where the store has no such group."""


@runtime_checkable
class PlantsBugs(Protocol):
    """A ``System`` that has planted bugs, which its option ``bugs`` switches on by name."""

    planted_bugs: Mapping[str, str]
    """A sentence for each, by name."""


def require_made(system: System, provider: Provider) -> None:
    """Raises ``UsageError`` where files or tools have to be made on this machine first."""
    if isinstance(system, NeedsMade):
        system.require_made(provider.name)


def felt(able: frozenset[Capability], system: System, provider: Provider) -> frozenset[Capability]:
    """Return those of ``able`` that have an effect on the system's nodes."""
    return able - system.unfelt(provider.name) if isinstance(system, WalksAround) else able


class Capability(enum.StrEnum):
    """One ability of a provider on this machine, or of a system (``OF_SYSTEMS``). A plan that needs
    an absent one is refused.
    """

    KILL = "kill"
    PAUSE = "pause"
    FREEZE = "freeze"
    HOST_LOSS = "host-loss"
    PARTITION = "partition"
    ONE_WAY_PARTITION = "one-way-partition"
    PACKET_LOSS = "packet-loss"
    DELAY = "delay"
    CLOCK = "clock"
    DISK = "disk"
    CRASH_POINTS = "crash-points"
    MESSAGES = "messages"  # are chosen one by one
    WIPE = "wipe"  # of the data of one node
    COMMANDS = "commands"  # of the plan's own, run where the node runs
    STATEMENTS = "statements"  # move data: an ability of the system, under every provider
    MEMBERS = "members"  # join and leave while it serves: of the system as well


OF_SYSTEMS = frozenset({Capability.STATEMENTS, Capability.MEMBERS})


class LogPiece(msgspec.Struct, frozen=True, kw_only=True):
    """The content of a log from some byte on, and the node's wall clock when it was read."""

    content: bytes
    wall_ns: int


@runtime_checkable
class ReadsLogs(Protocol):
    """A ``Provider`` that can read a program's log without stopping the program."""

    async def read_log(self, node: str, offset: int, limit_bytes: int) -> LogPiece:
        """Return up to ``limit_bytes`` of the log of ``node`` from byte ``offset`` on. Raises
        ``HarnessError`` where the machine can't be asked now.
        """


class CommandResult(msgspec.Struct, frozen=True, kw_only=True):
    """How a command on a node's machine ended: its exit status, and the end of what it said."""

    status: int
    output: str


@runtime_checkable
class RunsCommands(Protocol):
    """A ``Provider`` that can run a plan's own shell commands where a node runs. It has
    ``Capability.COMMANDS`` where it also may.
    """

    commands_refused: str
    """Why it may not, where it can't; a sentence with what allows it."""

    async def run_command(self, node: str, command: str, limit_s: float) -> CommandResult:
        """Run ``command`` by ``sh`` in the work directory of ``node``; what it leaves running does
        not hold it up. ``FIREDRILL_NODE`` and ``FIREDRILL_WORK_DIR`` name the node and its
        directory, ``FIREDRILL_PID`` the process of its program (empty where none runs);
        ``FIREDRILL_CONTROLLER`` the controller's, where that runs on the same machine, else
        ``FIREDRILL_LEASE_HELD`` a file that is gone once the controller renews no lease. Raises
        ``HarnessError`` where it can't be run, ``DeadlineExceeded`` past ``limit_s``.
        """


class Requirement(msgspec.Struct, frozen=True, kw_only=True):
    """One checked requirement: ``found`` describes its present state, ``remedy`` how to satisfy it.

    ``remedy`` is empty where ``ok`` is true or there is no remedy.
    """

    name: str
    ok: bool
    found: str
    remedy: str = ""
