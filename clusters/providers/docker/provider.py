"""The ``docker`` provider: containers as machines, SSH to act, the daemon to observe.

Actions go over SSH, as on any host; the daemon makes and removes machines, takes them away and
brings them back, and observes the effects of the actions. Keys live in this process only.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated

import msgspec
from msgspec import Meta

from clusters.providers.docker import daemon_tasks, image_contents, images, labels, subnets
from clusters.providers.docker.cleanup import Requests
from clusters.providers.docker.container import CONTROL_PORT, Limits, Node, docker_name
from clusters.providers.docker.daemon import connect
from clusters.providers.docker.docker_links import Wires
from clusters.providers.docker.machines import Machines
from clusters.providers.remote import fault_lease, install, program, requirements, ssh_session
from clusters.providers.remote.node_threads import Lane, together
from clusters.providers.remote.ssh_session import Endpoint, Session
from harness.errors import HarnessBug, HarnessError, PlanError, UsageError
from harness.history.run_directory import directory_mark
from harness.plan.plan import options as convert
from harness.protocols.cluster import (
    Capability,
    Cluster,
    CommandResult,
    Grudge,
    Link,
    LinkQuality,
    LinkShape,
    LogPiece,
    NodeStatus,
    PortSpec,
    Program,
)
from harness.protocols.resource_usage import NodeUsage

NAME = "docker"
PLACES = install.Places(
    code="/opt/firedrill", work="/var/lib/firedrill", pid_file="/run/firedrill/program.pid"
)

# Limits of what one awaited call may take. Acting ends earlier by itself; these are the backstop.
IMAGE_LIMIT_S = 2.0 * images.WAIT_LIMIT_S
CREATE_LIMIT_S = 45.0
CONNECT_LIMIT_S = 20.0
INSTALL_LIMIT_S = 60.0
ACT_LIMIT_S = program.ACT_LIMIT_S + 10.0
LOOK_LIMIT_S = 20.0
COLLECT_LIMIT_S = 25.0
USAGE_LIMIT_S = 3.0  # the daemon itself waits up to a second for its next sample
MEASURED_AT_ONCE = 16
# Teardown takes at most the sum of these, half a minute, in any state of the machines.
SETTLE_LIMIT_S = 4.0  # a call that still makes something then removes it itself
LIST_LIMIT_S = 4.0
REMOVE_LIMIT_S = 12.0
NETWORK_LIMIT_S = 6.0
MAX_MEMORY_MIB = 1 << 24  # 16 TiB
MAX_PROCESSES = 1 << 22  # the largest pid of Linux
CLOSE_LIMIT_S = 4.0


class Options(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The plan's ``[cluster.options]`` for this provider."""

    image: Annotated[
        str | None,
        Meta(description="The image of the nodes, in place of the base image of our own."),
    ] = None
    memory_mib: Annotated[
        # Docker itself takes no less.
        int, Meta(ge=6, le=MAX_MEMORY_MIB, description="The memory of a container.")
    ] = Limits().memory_mib
    processes: Annotated[
        int,
        Meta(
            ge=1,
            le=MAX_PROCESSES,
            description="Processes and threads in a container, at most.",
        ),
    ] = Limits().processes


def build(run_id: str, options: Mapping[str, object], state_dir: Path) -> DockerProvider:
    """The entry point. Touches nothing yet; raises ``PlanError`` for an option that is not known.

    ``state_dir`` holds what is being made at a moment: the leftovers of a killed run are found by
    label, and its keys die with it.
    """
    wanted = convert(Options, options, "cluster.options")
    if not state_dir.is_dir():
        return DockerProvider(run_id, wanted)
    return DockerProvider(run_id, wanted, directory_mark(state_dir.parent), Requests(state_dir))


class DockerProvider:
    """Nodes as containers of one run. See ``Provider`` for the contract."""

    name = NAME
    commands_refused = "the containers here run no commands over SSH"

    def __init__(
        self,
        run_id: str,
        options: Options,
        directory: str = "",
        requests: Requests | None = None,
    ) -> None:
        """As ``Machines``."""
        self._run_id, self._options, self._directory = run_id, options, directory
        self._requests = requests
        self._daemon = Lane("docker daemon")
        # Of its own, so that a look at what nodes use never holds up a verb or a probe.
        self._measuring = Lane("docker daemon, measuring", threads=MEASURED_AT_ONCE)
        self._machines: Machines | None = None
        self._contents: image_contents.Contents | None = None
        self._nodes: dict[str, Node] = {}
        self._wires = Wires(run_id, self._nodes)

    async def capabilities(self) -> frozenset[Capability]:
        """The capabilities of containers here, tried in one of them. Makes the base image if need
        be.

        Raises ``NoDaemon`` and ``NoBaseImage``.
        """
        machines = await self._ready()
        return await self._daemon.call(
            "trying faults", CREATE_LIMIT_S, daemon_tasks.try_capabilities, machines
        )

    def versions(self) -> dict[str, str]:
        """See ``TellsVersions``: the image that the nodes' machines are made of."""
        return self._contents.versions() if self._contents else {}

    async def check(self, nodes: tuple[str, ...], ports: tuple[PortSpec, ...]) -> None:
        """Raises ``PlanError`` for more nodes than a network has addresses."""
        if len(nodes) > subnets.NODES_MAX:
            limit = f"provider {NAME}: at most {subnets.NODES_MAX}"
            raise PlanError("cluster.nodes", f"{limit} (got {len(nodes)})")

    async def provision(self, nodes: tuple[str, ...], ports: tuple[PortSpec, ...]) -> Cluster:
        """Containers of ``nodes``, each with sshd, at fixed addresses of a network of their own."""
        machines = await self._ready()
        subnet = await self._daemon.call("making the network", LOOK_LIMIT_S, machines.make_network)
        source = subnets.source_in(subnet, subnets.is_own)
        key = ssh_session.generate_key()
        host_keys = {node: ssh_session.generate_key() for node in nodes}
        for node, address in subnets.addresses(subnet, nodes).items():
            endpoint = Endpoint(
                host=address,
                port=CONTROL_PORT,
                source=source,
                user="root",
                key=key,
                host_key_line=host_keys[node].public_line,
            )
            self._nodes[node] = Node(
                name=node,
                address=address,
                lane=Lane(node),
                actions=Lane(node, threads=1),
                power=Lane(node, threads=1),
                wiring=Lane(node, threads=1),
                session=Session(node, endpoint),
            )
        await together(
            self._bring_up(machines, node, key, host_keys[node.name]) for node in self._every
        )
        addresses = {node.name: node.address for node in self._every}
        return subnets.cluster_at(addresses, ports, PLACES.work, source)

    async def _bring_up(
        self, machines: Machines, node: Node, key: ssh_session.Key, host_key: ssh_session.Key
    ) -> None:
        files = {
            "authorized_keys": key.public_line.encode("ascii"),
            "host_key": host_key.private_text.encode("ascii"),
        }
        await node.lane.call(
            "making its container",
            CREATE_LIMIT_S,
            lambda: machines.create(node.name, node.address, files),
        )
        await self._connect(node)

    async def _connect(self, node: Node) -> None:
        await node.lane.call(
            "opening its session",
            CONNECT_LIMIT_S + 5,
            node.session.connect,
            CONNECT_LIMIT_S,
        )
        # Before the first fault: its end must not depend on this process.
        limit_s = 2 * fault_lease.OPEN_LIMIT_S + 5
        await node.lane.call("starting its watchdog", limit_s, node.lease.take)

    async def install(self, node: str, program: Program) -> None:
        """Unpack the program's code and files, and remember how to start it."""
        at = self._node(node)
        at.launch = await at.lane.call(
            "installing the program",
            INSTALL_LIMIT_S + requirements.FETCH_LIMIT_S,
            install.install,
            at.session,
            program,
            PLACES,
        )

    async def start(self, node: str) -> NodeStatus:
        """Start the program; a program that runs already stays as it is."""
        at = self._node(node)
        if at.launch is None:
            raise HarnessBug(f"{node}: start before install")
        await at.actions.call("starting the program", ACT_LIMIT_S, self._start, at, at.launch)
        return await self.probe(node)

    def _start(self, at: Node, launch: program.Launch) -> None:
        if not daemon_tasks.look(self._ours, at.name, at.process, launch, at.lost).running:
            at.process = program.start(at.session, launch)

    async def stop(self, node: str) -> NodeStatus:
        """SIGTERM, and SIGKILL after ``STOP_GRACE_S``."""
        return await self._act(node, "stop")

    async def kill(self, node: str) -> NodeStatus:
        """SIGKILL for the program and its children."""
        return await self._act(node, "kill")

    async def pause(self, node: str) -> NodeStatus:
        """SIGSTOP for the program and its children."""
        return await self._act(node, "pause")

    async def resume(self, node: str) -> NodeStatus:
        """SIGCONT for the program and its children."""
        return await self._act(node, "resume")

    async def _act(self, node: str, action: str) -> NodeStatus:
        at = self._node(node)
        stat = ""
        if at.process is not None and not at.lost:
            stat = await at.actions.call(
                action, ACT_LIMIT_S, program.act, at.session, at.process, action
            )
        return program.status(node, at.process, stat, exit_text=f"not running after {action}")

    async def freeze(self, node: str) -> NodeStatus:
        """Stop every process of the container, sshd included."""
        at = self._node(node)
        async with self._wires.changing:  # rules on their way there would hang
            # Before the daemon acts: from here on cuts and probes of links leave this machine out.
            at.frozen = True
            await at.power.call("freezing the machine", ACT_LIMIT_S, self._ours.freeze, node)
        return await self.probe(node)

    async def thaw(self, node: str) -> NodeStatus:
        """Let the container go on, with the cut and the shapes that are in force now."""
        at = self._node(node)
        await at.power.call("thawing the machine", CREATE_LIMIT_S, self._ours.thaw, node)
        async with self._wires.changing:
            if at.frozen:
                await self._wires.apply(at)
                # Last: a machine counts as reachable only with the rules in force on it.
                at.frozen = False
        return await self.probe(node)

    async def lose(self, node: str) -> NodeStatus:
        """Take the container off the network and kill it: its peers see no reset."""
        at = self._node(node)
        async with self._wires.changing:  # rules on their way there would fail
            at.lost = True
            await at.power.call("losing the machine", ACT_LIMIT_S, self._ours.lose, node)
        # Its connection would look alive until the keepalives give up.
        await at.lane.call("dropping its session", CLOSE_LIMIT_S, at.session.drop)
        return NodeStatus(node=node, running=False, exit_text="machine lost")

    async def restore(self, node: str) -> NodeStatus:
        """Bring the container back at its address, with the cut that is in force now."""
        at = self._node(node)
        await at.power.call(
            "bringing the machine back", CREATE_LIMIT_S, self._ours.restore, node, at.address
        )
        async with self._wires.changing:
            if at.lost:
                await self._connect(at)
                at.delayed = False  # its interface is a new one
                await self._wires.apply(at)
                at.lost = False
        return await self.probe(node)

    async def cut(self, grudge: Grudge) -> None:
        """Give every machine its rules. Machines that are lost or frozen get theirs when they come
        back.

        Raises ``HarnessError`` naming the machines that could not be reached; the others are done.
        """
        self._check_links(grudge)
        await self._wires.cut(grudge)

    async def shape(self, shapes: tuple[LinkShape, ...]) -> None:
        """As ``cut``, for loss and delay."""
        self._check_links(tuple(shape.link for shape in shapes))
        await self._wires.shape(shapes)

    def _check_links(self, wanted: tuple[Link, ...]) -> None:
        for source, destination in wanted:
            self._node(source)
            self._node(destination)

    async def probe(self, node: str) -> NodeStatus:
        """Observe through the daemon, which took no part in starting, stopping or pausing."""
        at = self._node(node)
        return await at.lane.call(
            "looking at it",
            LOOK_LIMIT_S,
            daemon_tasks.look,
            self._ours,
            node,
            at.process,
            at.launch,
            at.lost,
        )

    async def usage(self, node: str) -> NodeUsage | None:
        """See ``harness.protocols.resource_usage.TellsUsage``: as the daemon reads its control
        groups.
        """
        return await self._measuring.call(
            f"measuring {node}", USAGE_LIMIT_S, self._ours.usage, node
        )

    async def probe_links(self, wanted: tuple[Link, ...]) -> dict[Link, bool]:
        """Whether datagrams sent over each of ``wanted`` arrive; links without a working control
        are left out.
        """
        return await self._wires.probe(wanted)

    async def measure_links(self, wanted: tuple[Link, ...]) -> dict[Link, LinkQuality]:
        """Send many datagrams over each of ``wanted``; count and time them."""
        return await self._wires.measure(wanted)

    async def collect(self, node: str, into: Path) -> dict[str, int]:
        """The program's log and the container's, through the daemon: also from a lost machine."""
        at = self._node(node)
        return await at.lane.call(
            "collecting logs",
            COLLECT_LIMIT_S,
            daemon_tasks.collect,
            self._ours,
            node,
            at.launch,
            into,
            at.lost,
        )

    async def wipe(self, node: str) -> None:
        """See ``harness.protocols.hardware.Wipes``."""
        at = self._node(node)
        if at.launch is None:
            raise HarnessBug(f"{node}: wipe before install")
        await at.actions.call("wiping its data", ACT_LIMIT_S, program.wipe, at.session, at.launch)

    async def data_bytes(self, node: str) -> int:
        """See ``harness.protocols.hardware.Wipes``."""
        at = self._node(node)
        if at.launch is None:
            raise HarnessBug(f"{node}: its data before install")
        return await at.lane.call(
            "measuring its data",
            LOOK_LIMIT_S,
            daemon_tasks.data_bytes,
            self._ours,
            node,
            at.launch,
        )

    async def run_command(self, node: str, command: str, limit_s: float) -> CommandResult:
        """See ``harness.protocols.cluster.RunsCommands``: in the container, over SSH."""
        at = self._node(node)
        if at.launch is None or not at.reachable:
            raise HarnessError(f"{node}: no command can be run there now")
        running = (await self.probe(node)).running
        told = {
            "FIREDRILL_NODE": node,
            "FIREDRILL_WORK_DIR": at.launch.work_dir,
            "FIREDRILL_PID": str(at.process.pid) if at.process and running else "",
            "FIREDRILL_LEASE_HELD": fault_lease.LEASE_HELD,
        }
        return await at.lane.call(
            "a command of the plan",
            limit_s + LOOK_LIMIT_S,
            program.run_command,
            at.session,
            at.launch.work_dir,
            told,
            command,
            limit_s,
        )

    async def read_log(self, node: str, offset: int, limit_bytes: int) -> LogPiece:
        """See ``harness.protocols.cluster.ReadsLogs``."""
        at = self._node(node)
        if at.launch is None or not at.reachable:
            raise HarnessError(f"{node}: its log can't be read now")
        return await at.lane.call(
            "reading its log",
            program.READ_LIMIT_S + LOOK_LIMIT_S,
            program.read_log,
            at.session,
            at.launch,
            offset,
            limit_bytes,
        )

    async def teardown(self) -> None:
        """Remove containers, then the network; needs no answer from any machine."""
        machines = self._machines
        if machines is None:
            return
        machines.close()
        await self._daemon.call("settling", SETTLE_LIMIT_S + 1, machines.settle, SETTLE_LIMIT_S)
        # Lanes of their own: a node's may be full of calls that wait for it.
        left = await self._daemon.call("listing containers", LIST_LIMIT_S, machines.owned)
        await together(
            Lane(name).call("removing the container", REMOVE_LIMIT_S, machines.remove, name)
            for name in left
        )
        # After its containers: the daemon refuses to remove a network in use.
        await self._daemon.call("removing the network", NETWORK_LIMIT_S, machines.remove_network)
        await self._let_go()

    async def leave(self) -> None:
        """Mark the run as kept, and close the sessions: their keys end with this process, the
        daemon is the way in from now on.
        """
        await self._daemon.call("marking the run as kept", LOOK_LIMIT_S, self._ours.mark_kept)
        self._ours.close()
        await self._let_go()

    async def lapsed(self) -> tuple[str, ...]:
        """See ``harness.protocols.cluster.LeasesFaults``."""
        limit_s = fault_lease.ASK_LIMIT_S + 5
        told = await together(
            node.lane.call("asking its watchdog", limit_s, node.lease.lapses)
            for node in self._every
        )
        return tuple(text for lapses in told for text in lapses)

    async def _let_go(self) -> None:
        """Close the sessions of all machines."""
        self._measuring.close()
        # Before the sessions close, over which the watchdogs are told.
        await together(
            Lane(node.name).call("letting its watchdog go", CLOSE_LIMIT_S, node.lease.let_go)
            for node in self._every
        )
        await together(
            Lane(node.name).call("dropping its session", CLOSE_LIMIT_S, node.session.close)
            for node in self._every
        )
        for node in self._every:
            node.lane.close()
            node.actions.close()
            node.power.close()
            node.wiring.close()
        self._nodes.clear()
        self._machines = None

    @property
    def _every(self) -> tuple[Node, ...]:
        return tuple(self._nodes.values())

    @property
    def _ours(self) -> Machines:
        if self._machines is None:
            raise HarnessBug("the docker provider was used before provisioning")
        return self._machines

    def _node(self, node: str) -> Node:
        try:
            return self._nodes[node]
        except KeyError:
            known = ", ".join(self._nodes) or "none"
            raise UsageError(f"no node {node!r} in this run (there are: {known})") from None

    async def _ready(self) -> Machines:
        """The daemon's client, with the image in place."""
        if self._machines is None:
            client = await self._daemon.call("answering", LOOK_LIMIT_S, connect)
            image = self._options.image
            if image is None:
                image = await self._daemon.call(
                    "making the base image", IMAGE_LIMIT_S, images.ensure_base, client
                )
            elif not await self._daemon.call(
                "looking for the image", LOOK_LIMIT_S, images.present, client, image
            ):
                raise PlanError("cluster.options.image", f"the daemon has no image {image!r}")
            self._contents = await self._daemon.call(
                "looking at the image",
                LOOK_LIMIT_S,
                image_contents.contents,
                client,
                image,
                image_contents.Probe(
                    name=docker_name(self._run_id, "packages"),
                    labels=labels.myself().labels(self._run_id, self._directory),
                    requests=self._requests or Requests(None),
                ),
            )
            limits = Limits(memory_mib=self._options.memory_mib, processes=self._options.processes)
            # By its id, which is what is recorded: the name may lead elsewhere a moment from now.
            self._machines = Machines(
                client,
                self._run_id,
                self._contents.identity,
                limits,
                self._directory,
                self._requests,
            )
        return self._machines
