"""The provider ``sim``: the reference node in the controller's own loop, one seed for everything.

It runs on ``SimLoop`` only. The same system, workload, driver and nemesis as anywhere else work
on it, with clients that dial through ``client_network``.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter, deque
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Annotated

import msgspec
from msgspec import Meta

from clusters.providers.sim.adversary import Adversary
from clusters.providers.sim.disk import SimDisk
from clusters.providers.sim.loop import SimLoop, true_loop
from clusters.providers.sim.machine import (
    Body,
    Machine,
    running_process,
    track_tasks,
    wall_ns,
)
from clusters.providers.sim.moment_feed import MomentFeed
from clusters.providers.sim.network import Fabric, HostNetwork
from clusters.providers.sim.oracles.judge import Judge
from clusters.providers.sim.simulated_links import Weather
from clusters.providers.sim.trace import Trace, describe, repeatable
from clusters.reference.claims.claims_reader import ReferenceClaims
from clusters.reference.node.config import loads
from clusters.reference.node.runtime import POINTS, Runtime
from clusters.reference.node.server import Node
from clusters.reference.state_reader import ReferenceStates
from harness.campaigns.marker_counts import MARKERS_FILE, dumps
from harness.campaigns.point_census import POINTS_FILE
from harness.clock import NS_PER_S, substream
from harness.errors import HarnessBug, MissingCapability, UsageError
from harness.history.durable_files import disk_failure
from harness.plan.plan import options as convert
from harness.protocols.claims import ClaimsReader, ClaimsReport
from harness.protocols.cluster import (
    OF_SYSTEMS,
    Address,
    Capability,
    Cluster,
    Grudge,
    Link,
    LinkQuality,
    LinkShape,
    NodeStatus,
    PortSpec,
    Program,
    Roles,
)
from harness.protocols.coverage import CoverageSink
from harness.protocols.crash_points import Choice, ChoiceLook, CrashPoint
from harness.protocols.hardware import ClockLook, ClockTrouble, DiskLook, DiskTrouble
from harness.protocols.moments import Happening, Moment, Observer
from harness.tasks import together

CONTROLLER = "controller"
FIRST_PORT = 7000
PROBE_LIMIT_S = 1.0  # hundreds of times the latency of a link that is whole
LOG_LINES = 20_000  # kept of each node, the newest
CENSUS_MAX_S = 86_400.0
SKEW_MAX_S = 1e8  # three years; what is far beyond has no time on a wire
CLOCK_LOOK_S = 0.1  # between the two looks at a clock


class Options(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The plan's ``[cluster.options]`` for this provider."""

    seed: Annotated[
        int,
        Meta(
            description=(
                "Decides latencies and what crashes leave on disks; the plan's own where it is "
                "not given."
            )
        ),
    ] = 0
    weather: Annotated[Weather, Meta(description="The conditions of all links, all the time.")] = (
        Weather()
    )
    rare: Annotated[
        float,
        Meta(
            ge=0,
            le=1,
            description=(
                "The share of the points of rare legal paths that are open; which ones, the seed "
                "decides."
            ),
        ),
    ] = 0.0
    skew_s: Annotated[
        float,
        Meta(
            ge=0,
            le=SKEW_MAX_S,
            description=(
                "The most by which the wall clocks of two nodes differ from the begin on; by how "
                "much each is wrong, the seed decides."
            ),
        ),
    ] = 0.0
    census_s: Annotated[
        float,
        Meta(
            ge=0,
            le=CENSUS_MAX_S,
            description="For so long from the begin of the drive on each node's crash points are "
            "counted.",
        ),
    ] = 0.0
    oracles: Annotated[bool, Meta(description="Whether what messages promise is judged, too.")] = (
        True
    )


def build(run_id: str, options: Mapping[str, object], state_dir: Path) -> SimProvider:
    """The provider of a run; it leaves nothing outside the process, so it needs no ``state_dir``.

    Raises ``PlanError`` for an option that it does not know.
    """
    chosen = convert(Options, options, "cluster.options")
    return SimProvider(
        seed=chosen.seed,
        weather=chosen.weather,
        rare=chosen.rare,
        skew_s=chosen.skew_s,
        claims=ReferenceClaims() if chosen.oracles else None,
        census_s=chosen.census_s,
    )


async def reference_node(program: Program, runtime: Runtime) -> None:
    """The program ``python3 -m clusters.reference.node --config FILE``, on ``runtime``."""
    name = program.argv[program.argv.index("--config") + 1]
    await Node(loads(program.files[name]), runtime).run()


async def known_node(states: ReferenceStates, program: Program, runtime: Runtime) -> None:
    """The same program, whose states ``states`` reads."""
    name = program.argv[program.argv.index("--config") + 1]
    await states.program(loads(program.files[name]), runtime).run()


class _ToldMarkers(dict[str, int]):
    """Counts of markers that tell each time one is reached."""

    def __init__(self, tell: Callable[[str], None]) -> None:
        super().__init__()
        self._tell = tell

    def __setitem__(self, marker: str, count: int) -> None:
        super().__setitem__(marker, count)
        self._tell(marker)


class SimProvider:
    """``harness.protocols.cluster.Provider`` over simulated machines."""

    name = "sim"

    def __init__(
        self,
        *,
        seed: int,
        weather: Weather | None = None,
        rare: float = 0.0,
        skew_s: float = 0.0,
        body: Body = reference_node,
        claims: ClaimsReader | None = None,
        census_s: float = 0.0,
    ) -> None:
        """``body`` is the main coroutine of an installed program; ``claims`` reads what its
        messages promise: without it they are not judged.
        """
        self._seed, self._body, self._census_s, self._skew_s = seed, body, census_s, skew_s
        self._rare = _open_points(seed, rare)
        self._fabric = Fabric(seed, weather)
        self._fabric.repeatable = repeatable
        self._judge = None if claims is None else Judge(claims)
        self._fabric.watcher = self._judge
        self._resets: asyncio.Task[None] | None = None
        self._machines: dict[str, Machine] = {}
        self._programs: dict[str, Program] = {}
        self._logs = _NodeLogs()
        self._moments = MomentFeed()
        self._adversary = Adversary(seed, self._crash)
        self._fabric.gate = self._adversary
        self._moments.observe(self._adversary.happened)
        self._sink: CoverageSink | None = None
        self.client_network = HostNetwork(self._fabric, CONTROLLER)

    def record(self) -> Trace:
        """Write down every message and disk operation from now on; before ``provision`` only."""
        self._fabric.trace = Trace(describe)
        return self._fabric.trace

    def cover(self, sink: CoverageSink) -> None:
        """See ``harness.protocols.coverage.RecordsCoverage``."""
        states = ReferenceStates()
        self._sink, self._body = sink, partial(known_node, states)
        sink.strike(lambda node: states.state(node, None))

        def arrived(link: Link, payload: bytes) -> None:
            source, node = link
            if source in self._machines and node in self._machines:
                for event, state in states.received(node, payload):
                    sink.came(event, state, node)

        def came(happening: Happening) -> None:
            state = states.state(happening.node, happening.partition)
            sink.came(f"moment {happening.moment.value}", state, happening.node)

        self._fabric.arrivals = arrived
        self._moments.observe(came)

    def claims(self) -> ClaimsReport | None:
        """See ``harness.protocols.claims.JudgesClaims``."""
        return None if self._judge is None else self._judge.report()

    async def capabilities(self) -> frozenset[Capability]:
        """The simulated capabilities."""
        return frozenset(Capability) - OF_SYSTEMS - {Capability.COMMANDS}

    async def check(self, nodes: tuple[str, ...], ports: tuple[PortSpec, ...]) -> None:
        """Nothing of the machine is needed, so nothing of it can be missing."""

    async def provision(self, nodes: tuple[str, ...], ports: tuple[PortSpec, ...]) -> Cluster:
        """Machines named as the nodes. Raises ``HarnessBug`` on a loop that is not virtual."""
        loop = asyncio.get_running_loop()
        if not isinstance(loop, SimLoop):
            raise HarnessBug(f"provider sim: needs a SimLoop (this is a {type(loop).__name__})")
        loop.set_task_factory(track_tasks)
        self._logs.attach()
        self._machines = {
            node: Machine(
                node,
                self._fabric,
                self._seed,
                self._rare,
                self._moments.listener(node),
                self._skew_s,
            )
            for node in nodes
        }
        if self._sink is not None:
            for node, machine in self._machines.items():
                machine.markers = _ToldMarkers(partial(_marker_reached, self._sink, node))
        if self._judge is not None:
            for machine in self._machines.values():
                machine.watcher = machine.platter.watcher = self._judge
                self._judge.inserted(machine.platter)
        for node, machine in self._machines.items():
            machine.platter.gate = partial(self._adversary.operation, node)
        self._resets = loop.create_task(self._fabric.break_connections())
        bind = {
            node: {
                spec.name: Address(host=node, port=FIRST_PORT + number)
                for number, spec in enumerate(ports)
            }
            for node in nodes
        }
        between = [spec.name for spec in ports if spec.between_nodes]
        return Cluster(
            nodes=nodes,
            bind=bind,
            peer={
                (source, node): {name: bind[node][name] for name in between}
                for source in nodes
                for node in nodes
                if source != node
            },
            client=bind,
            work_dir={node: f"/{node}" for node in nodes},
        )

    async def install(self, node: str, program: Program) -> None:
        """Keep ``program``: its code is already here."""
        self._programs[node] = program

    async def start(self, node: str) -> NodeStatus:
        """Start the installed program. Raises ``UsageError`` where none is."""
        if node not in self._programs:
            raise UsageError(f"{node}: needs a program before it can start (none was installed)")
        self._machines[node].start(self._programs[node], self._body)
        return await self.probe(node)

    async def stop(self, node: str) -> NodeStatus:
        """Let the program end in order."""
        await self._machines[node].stop()
        return await self.probe(node)

    async def kill(self, node: str) -> NodeStatus:
        """End the program at once; unsynced writes may be lost, peers see resets."""
        await self._machines[node].kill()
        return await self.probe(node)

    async def pause(self, node: str) -> NodeStatus:
        """Let nothing of the program run."""
        self._machines[node].pause()
        return await self.probe(node)

    async def resume(self, node: str) -> NodeStatus:
        """Let it run again."""
        self._machines[node].resume()
        return await self.probe(node)

    async def freeze(self, node: str) -> NodeStatus:
        """Let the whole machine stand still."""
        self._machines[node].freeze()
        return await self.probe(node)

    async def thaw(self, node: str) -> NodeStatus:
        """Let it go on."""
        self._machines[node].thaw()
        return await self.probe(node)

    async def lose(self, node: str) -> NodeStatus:
        """Take the machine away; peers see silence."""
        await self._machines[node].lose()
        return await self.probe(node)

    async def restore(self, node: str) -> NodeStatus:
        """Bring it back with its disk."""
        self._machines[node].restore()
        return await self.probe(node)

    async def cut(self, grudge: Grudge) -> None:
        """Make ``grudge`` the whole set of cut links."""
        self._fabric.links.cut(grudge)

    async def shape(self, shapes: tuple[LinkShape, ...]) -> None:
        """Make ``shapes`` the whole set of shapes beside the weather."""
        self._fabric.links.shape(shapes)

    async def measure_links(self, links: tuple[Link, ...]) -> dict[Link, LinkQuality]:
        """The loss and delay of each link, by sending many packets."""
        asked = [link for link in links if self._can_be_asked(link)]
        seen = await together(self._fabric.links.measure(link) for link in asked)
        return dict(zip(asked, seen, strict=True))

    async def set_disk(self, node: str, trouble: DiskTrouble) -> None:
        """See ``harness.protocols.hardware.Hardware``."""
        self._machines[node].platter.trouble = trouble

    async def try_disk(self, node: str) -> DiskLook:
        """See ``harness.protocols.hardware.Hardware``."""
        return await SimDisk(self._machines[node].platter).look()

    async def flip(self, node: str, draw: int) -> str:
        """See ``harness.protocols.hardware.Hardware``."""
        return self._machines[node].platter.flip(draw)

    async def wipe(self, node: str) -> None:
        """See ``harness.protocols.hardware.Wipes``."""
        await self._machines[node].wipe()

    async def data_bytes(self, node: str) -> int:
        """See ``harness.protocols.hardware.Wipes``."""
        return (await self.try_disk(node)).size_bytes

    async def set_clock(self, node: str, trouble: ClockTrouble) -> None:
        """See ``harness.protocols.hardware.Hardware``."""
        self._machines[node].clocks.spoil(trouble)

    async def look_at_clock(self, node: str) -> ClockLook:
        """See ``harness.protocols.hardware.Hardware``."""
        clocks, loop = self._machines[node].clocks, true_loop()
        before_s, began_s = clocks.monotonic_s(), loop.true_time()
        await asyncio.sleep(CLOCK_LOOK_S)
        rate = (clocks.monotonic_s() - before_s) / (loop.true_time() - began_s)
        return ClockLook(ahead_s=(clocks.wall_ns() - wall_ns()) / NS_PER_S, rate=rate)

    def _crash(self, node: str) -> None:
        self._machines[node].crash()

    async def crash_at(
        self, nodes: tuple[str, ...], point: CrashPoint, claim: Callable[[str], bool]
    ) -> str:
        """See ``harness.protocols.crash_points.CrashesAtPoints``."""
        return await self._adversary.crash_at(nodes, point, claim)

    async def choose(self, choice: Choice) -> None:
        """See ``harness.protocols.crash_points.ChoosesMessages``."""
        self._adversary.choose(choice)

    async def unchoose(self, choice: Choice) -> None:
        """See ``harness.protocols.crash_points.ChoosesMessages``."""
        self._adversary.unchoose(choice)

    async def try_choice(self, choice: Choice) -> ChoiceLook:
        """See ``harness.protocols.crash_points.ChoosesMessages``."""
        return self._adversary.look(choice)

    def moments(self) -> frozenset[Moment]:
        """Every one: the nodes' code tells them."""
        return frozenset(Moment)

    def watch(self, observer: Observer) -> None:
        """See ``harness.protocols.moments.WatchesMoments``."""
        self._moments.observe(observer)
        if self._census_s:  # a nemesis watches from the begin of the drive on
            self._adversary.begin_census(self._census_s)

    def roles_now(self) -> Roles:
        """See ``harness.protocols.moments.WatchesMoments``."""
        up = [node for node, machine in self._machines.items() if machine.status().running]
        return self._moments.roles(up)

    async def probe(self, node: str) -> NodeStatus:
        """The status of the machine's process."""
        return self._machines[node].status()

    async def probe_links(self, links: tuple[Link, ...]) -> dict[Link, bool]:
        """Whether a packet gets through, by sending one."""
        asked = [link for link in links if self._can_be_asked(link)]
        passed = await together(self._passes(link) for link in asked)
        return dict(zip(asked, passed, strict=True))

    def _can_be_asked(self, link: Link) -> bool:
        return all(self._fabric.links.present(host) for host in link)

    async def _passes(self, link: Link) -> bool:
        try:
            async with asyncio.timeout(PROBE_LIMIT_S):
                await self._fabric.links.pass_over(link)
        except TimeoutError:
            return False
        return True

    async def collect(self, node: str, into: Path) -> dict[str, int]:
        """Write the node's log, and the markers that it reached."""
        log = self._programs[node].log
        _write(into, log, self._logs.text(node))
        _write(into, MARKERS_FILE, dumps(self._machines[node].markers))
        if self._census_s:
            _write(into, POINTS_FILE, dumps(self._adversary.points(node)))
        left_out = self._logs.dropped_bytes(node)
        return {log: left_out} if left_out else {}

    async def teardown(self) -> None:
        """End every program. Idempotent."""
        if self._resets is not None:
            self._resets.cancel()
        for machine in self._machines.values():
            machine.thaw()
            await machine.kill()
        self._logs.detach()

    async def leave(self) -> None:
        """Not offered: simulated nodes end with the simulation."""
        raise MissingCapability("keeping a cluster up", "nodes that outlive the run")


def _open_points(seed: int, share: float) -> frozenset[str]:
    """The rare legal paths that may be taken in this simulation: some, so that others stand out."""
    stream = substream(seed, "sim-rare")
    return frozenset(point for point in sorted(POINTS) if stream.random() < share)


def _marker_reached(sink: CoverageSink, node: str, marker: str) -> None:
    sink.came(f"marker {marker}", "", node)


def _write(into: Path, name: str, text: str) -> None:
    try:
        into.mkdir(parents=True, exist_ok=True)
        (into / name).write_text(text)
    except OSError as error:
        raise disk_failure("write", into / name, error, "it is missing") from error


class _NodeLogs(logging.Handler):
    """Sorts log lines by the process whose code wrote them, with virtual time."""

    def __init__(self) -> None:
        super().__init__()
        self._lines: dict[str, deque[str]] = {}
        self._dropped_bytes: Counter[str] = Counter()
        self._level_before: int | None = None

    def attach(self) -> None:
        """Begin to listen."""
        root = logging.getLogger()
        self._level_before = root.level
        root.setLevel(logging.INFO)
        root.addHandler(self)

    def detach(self) -> None:
        """Stop listening. Idempotent."""
        root = logging.getLogger()
        root.removeHandler(self)
        if self._level_before is not None:
            root.setLevel(self._level_before)
            self._level_before = None

    def emit(self, record: logging.LogRecord) -> None:
        process = running_process()
        if process is None or process.silent:
            return
        now_s = asyncio.get_running_loop().time()
        line = f"{now_s:.6f} {record.levelname} {record.name}: {record.getMessage()}"
        lines = self._lines.setdefault(process.node, deque())
        if len(lines) == LOG_LINES:
            self._dropped_bytes[process.node] += len(lines.popleft().encode("utf-8", "replace")) + 1
        lines.append(line)

    def text(self, node: str) -> str:
        """Every line kept of ``node``."""
        return "".join(f"{line}\n" for line in self._lines.get(node, ()))

    def dropped_bytes(self, node: str) -> int:
        """The size of the lines before them, which were not kept."""
        return self._dropped_bytes[node]
