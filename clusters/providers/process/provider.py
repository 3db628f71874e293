"""Nodes as local processes on loopback: no root, no Docker, every link through a proxy of ours.

A directory stands for a machine; ``Mesh``, in the controller's loop, stands for the network. Nodes
share the machine's clock and disk, so there is no host to lose, and a node that floods its links
loads the controller too.
"""

from __future__ import annotations

import asyncio
import os
import resource
import shutil
import signal
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated

import msgspec
from msgspec import Meta

from clusters.providers.process import ports as port_choice
from clusters.providers.process import procfs
from clusters.providers.process.capability_trials import found_capabilities
from clusters.providers.process.child import Child, run_command, spawn
from clusters.providers.process.cleanup import Ledger, end_marked
from clusters.providers.process.keeper import keep_links
from clusters.providers.process.node_files import (
    Layout,
    argument_vector,
    collect_log,
    data_bytes,
    lacking,
    place,
    read_piece,
    remove_whole_log,
    wipe,
)
from clusters.providers.process.proxy import LOOPBACK, Mesh
from harness.errors import HarnessBug, HarnessError, MissingCapability, UsageError
from harness.plan.plan import options as convert
from harness.protocols.cluster import (
    Address,
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
from harness.tasks import together

# From SIGTERM to SIGKILL: time to flush, not to finish work.
_STOP_LIMIT_S = 10.0
# What a program gets of the controller's environment; the rest would make runs differ by shell.
_INHERITED = ("PATH", "HOME", "LANG", "LC_ALL", "TMPDIR", "JAVA_HOME", "LD_LIBRARY_PATH")
# A listener and a few connections, two sockets each; beside them clients, probes and the history.
_FILES_PER_PROXY = 9
_FILES_BESIDE = 2048
# A plan may be a stranger's, and its commands run with all that this user may do.
_ALLOWED = "FIREDRILL_COMMANDS"
_ROOM_BYTES = 1 << 20  # below this, writes begin to fail


class Options(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The plan's ``[cluster.options]`` for this provider."""

    first_port: Annotated[
        Annotated[int, Meta(ge=1, le=65_535)] | None,
        Meta(
            description=(
                "Nodes listen on this port and the following ones, in place of ports that are "
                "found free."
            )
        ),
    ] = None


def build(run_id: str, options: Mapping[str, object], state_dir: Path) -> ProcessProvider:
    """The provider of run ``run_id``, whose ``undo`` directory is ``state_dir``; nodes live in
    ``nodes/NAME`` beside it. Raises ``PlanError`` for an option that it does not know.
    """
    wanted = convert(Options, options, "cluster.options")
    return ProcessProvider(run_id, wanted, state_dir)


class ProcessProvider:
    """``harness.protocols.cluster.Provider`` over local processes. Used on one loop."""

    name = "process"
    commands_refused = (
        "commands of a plan would run on this machine itself, with all that you may do: "
        f"{_ALLOWED}=1 in the environment allows it"
    )

    def __init__(self, run_id: str, options: Options, state_dir: Path) -> None:
        """Touches nothing yet."""
        self._run_id, self._options = run_id, options
        self._state_dir = state_dir.resolve()
        self._nodes_dir = self._state_dir.parent / "nodes"
        self._ledger = Ledger(run_id, self._state_dir)
        self._cluster: Cluster | None = None
        self._mesh: Mesh | None = None
        self._programs: dict[str, Program] = {}
        self._children: dict[str, Child] = {}
        self._acting: dict[str, asyncio.Lock] = {}
        self._closing = False
        self._claims = port_choice.Claims()

    async def capabilities(self) -> frozenset[Capability]:
        """The capabilities here, tried on a process and on a link that are gone on return.
        Commands of a plan are run where the environment allows it.
        """
        allowed = {Capability.COMMANDS} if os.environ.get(_ALLOWED) == "1" else set()
        return await found_capabilities() | allowed

    async def check(self, nodes: tuple[str, ...], ports: tuple[PortSpec, ...]) -> None:
        """Whether the ports that the plan names are there. Raises ``PlanError``, and
        ``HarnessError`` for one that is taken.
        """
        if self._options.first_port is not None:
            claims = port_choice.Claims()
            try:
                port_choice.given(self._options.first_port, len(nodes) * len(ports), claims)
            finally:
                claims.let_go()

    async def provision(self, nodes: tuple[str, ...], ports: tuple[PortSpec, ...]) -> Cluster:
        """Directories, ports and proxies for ``nodes``. Raises ``HarnessError`` where ports are
        taken.
        """
        if self._cluster is not None:
            raise UsageError(f"run {self._run_id!r} has its nodes already")
        count = len(nodes) * len(ports)
        first = self._options.first_port
        free = (
            port_choice.choose(self._run_id, count, self._claims)
            if first is None
            else port_choice.given(first, count, self._claims)
        )
        numbers = iter(free)
        bind = {
            node: {spec.name: Address(host=LOOPBACK, port=next(numbers)) for spec in ports}
            for node in nodes
        }
        _make_room(len(nodes) * (len(nodes) - 1) * len(ports))
        self._mesh = Mesh(nodes)
        peer = self._mesh.serve([spec.name for spec in ports if spec.between_nodes], bind)
        self._acting = {node: asyncio.Lock() for node in nodes}
        for node in nodes:
            self._layout(node).work.mkdir(parents=True, exist_ok=True)
        self._cluster = Cluster(
            nodes=nodes,
            bind=bind,
            peer=peer,
            client=bind,
            work_dir={node: str(self._layout(node).work) for node in nodes},
        )
        return self._cluster

    async def install(self, node: str, program: Program) -> None:
        """Write the program's files, and link its code. Nothing is installed: its requirements have
        to be there for the interpreter that runs the controller. Raises ``HarnessError`` naming the
        missing ones.
        """
        self._known(node)
        try:
            missing = lacking(Path(program.requirements)) if program.requirements else []
            await asyncio.to_thread(place, self._layout(node), program)
        except OSError as error:
            raise HarnessError(f"{node}: can't install the program: {error}") from error
        if missing:
            raise HarnessError(
                f"{node}: its program needs {', '.join(missing)}, which the Python that runs "
                "firedrill does not have; provider 'process' installs nothing"
            )
        self._programs[node] = program

    async def start(self, node: str) -> NodeStatus:
        """Start the program, unless it runs. Raises ``HarnessError``, also where another process
        took one of the node's ports meanwhile, and once teardown has begun.
        """
        cluster = self._known(node)
        if node not in self._programs:
            raise UsageError(f"{node}: needs a program before it can start (none was installed)")
        async with self._acting[node]:
            # Under the lock, which teardown takes for each node after it has set the flag.
            if self._closing:
                raise HarnessError(f"{node}: can't start, run {self._run_id!r} is torn down")
            before = self._status(node)
            if before.running:
                return before
            for name, address in cluster.bind[node].items():
                if not port_choice.is_free(address.port, reuse=True):
                    raise HarnessError(
                        f"{node}: port {address} ({name}) is taken by another process"
                    )
            program, layout = self._programs[node], self._layout(node)
            self._children[node] = await spawn(
                node,
                argument_vector(program),
                env=_environment(program, layout),
                work=layout.work,
                log=layout.log(program),
                ledger=self._ledger,
            )
            return self._status(node)

    async def stop(self, node: str) -> NodeStatus:
        """SIGTERM, and SIGKILL for processes that don't end by themselves."""
        self._known(node)
        async with self._acting[node]:
            child = self._children.get(node)
            if child is not None:
                child.signal(signal.SIGTERM)
                child.signal(signal.SIGCONT)  # a paused program can't follow
                if not await child.ended(_STOP_LIMIT_S):
                    await child.kill()
            return self._status(node)

    async def kill(self, node: str) -> NodeStatus:
        """SIGKILL the program and its children; return when it is gone."""
        self._known(node)
        async with self._acting[node]:
            if child := self._children.get(node):
                await child.kill()
            return self._status(node)

    async def pause(self, node: str) -> NodeStatus:
        """SIGSTOP; return when it shows."""
        return await self._pause(node, paused=True)

    async def resume(self, node: str) -> NodeStatus:
        """SIGCONT; return when it shows."""
        return await self._pause(node, paused=False)

    async def freeze(self, node: str) -> NodeStatus:
        """Not offered: the machine that would have to stand still is the controller's own."""
        raise MissingCapability(f"freezing {node}", Capability.FREEZE.value)

    async def thaw(self, node: str) -> NodeStatus:
        """Not offered, as nothing can be frozen."""
        raise MissingCapability(f"thawing {node}", Capability.FREEZE.value)

    async def lose(self, node: str) -> NodeStatus:
        """Not offered: the kernel that would have to fall silent is the controller's own."""
        raise MissingCapability(f"losing {node}", Capability.HOST_LOSS.value)

    async def restore(self, node: str) -> NodeStatus:
        """Not offered, as nothing can be lost."""
        raise MissingCapability(f"restoring {node}", Capability.HOST_LOSS.value)

    async def cut(self, grudge: Grudge) -> None:
        """Make ``grudge`` the whole set of cut links, in one step of the loop."""
        self._network().cut(grudge)

    async def shape(self, shapes: tuple[LinkShape, ...]) -> None:
        """Delay the traffic of links, each direction alone. Raises ``MissingCapability`` for loss:
        links carry streams, in which nothing gets lost.
        """
        for shape in shapes:
            if shape.loss:
                source, destination = shape.link
                what = f"losing packets from {source} to {destination}"
                raise MissingCapability(what, Capability.PACKET_LOSS.value)
        self._network().delay({shape.link: shape.delay_s for shape in shapes})

    async def probe(self, node: str) -> NodeStatus:
        """The kernel's view of the program, not a record of our actions. Raises ``HarnessError``
        for one that ended on a full disk: that disk is the run store's, and its state is no fault
        of the node.
        """
        self._known(node)
        status = self._status(node)
        if not status.running and shutil.disk_usage(self._nodes_dir).free < _ROOM_BYTES:
            raise HarnessError(f"{node}: does not run, and the disk below it is full")
        return status

    async def probe_links(self, links: tuple[Link, ...]) -> dict[Link, bool]:
        """Whether bytes pass over each link, by sending some."""
        return await self._network().probe(links)

    async def measure_links(self, links: tuple[Link, ...]) -> dict[Link, LinkQuality]:
        """How long bytes take over each link and back, by sending some."""
        return await self._network().measure(links)

    async def usage(self, node: str) -> NodeUsage | None:
        """See ``harness.protocols.resource_usage.TellsUsage``."""
        child = self._children.get(node)
        return None if child is None else procfs.usage(child.identity)

    async def run_command(self, node: str, command: str, limit_s: float) -> CommandResult:
        """See ``harness.protocols.cluster.RunsCommands``: here, as this user."""
        self._known(node)
        if os.environ.get(_ALLOWED) != "1":
            raise MissingCapability(f"a command on {node}", Capability.COMMANDS.value)
        status, layout = self._status(node), self._layout(node)
        inherited = {name: os.environ[name] for name in _INHERITED if name in os.environ}
        told = {
            "FIREDRILL_NODE": node,
            "FIREDRILL_WORK_DIR": str(layout.work),
            "FIREDRILL_PID": str(status.pid) if status.running else "",
            "FIREDRILL_CONTROLLER": str(os.getpid()),
            procfs.MARK: self._ledger.mark(),
        }
        return await asyncio.to_thread(
            run_command, node, command, inherited | told, layout.work, limit_s
        )

    async def collect(self, node: str, into: Path) -> dict[str, int]:
        """Put the node's log into ``into``; see ``node_files.collect_log``."""
        self._known(node)
        program = self._programs.get(node)
        if program is None:
            return {}
        log = self._layout(node).log(program)
        left_out = await asyncio.to_thread(collect_log, log, into)
        return {log.name: left_out} if left_out else {}

    async def wipe(self, node: str) -> None:
        """See ``harness.protocols.hardware.Wipes``."""
        self._known(node)
        async with self._acting[node]:
            if self._status(node).running:
                raise HarnessError(f"{node}: runs, so its data can't be wiped")
            try:
                await asyncio.to_thread(wipe, self._layout(node), self._programs[node])
            except OSError as error:
                raise HarnessError(f"{node}: can't wipe its data: {error}") from error

    async def data_bytes(self, node: str) -> int:
        """See ``harness.protocols.hardware.Wipes``."""
        self._known(node)
        return await asyncio.to_thread(data_bytes, self._layout(node), self._programs[node])

    async def read_log(self, node: str, offset: int, limit_bytes: int) -> LogPiece:
        """See ``harness.protocols.cluster.ReadsLogs``."""
        self._known(node)
        program = self._programs.get(node)
        if program is None:
            raise HarnessError(f"{node}: its log can't be read now")
        path = self._layout(node).log(program)
        return await asyncio.to_thread(read_piece, path, offset, limit_bytes)

    async def teardown(self) -> None:
        """End every process and link; data and collected logs stay. Idempotent. Raises
        ``HarnessError`` for a process that does not end; the list for ``cleanup`` is then kept.
        """
        self._closing = True
        try:
            await together(self._end(node) for node in self._acting)
        finally:
            if self._mesh:
                self._mesh.close()
            self._claims.let_go()
        if self._children:  # what a program started may have outlived it
            await asyncio.to_thread(end_marked, self._ledger.mark())
        # After the last process has ended: up to there ``cleanup`` needs the list.
        await self._ledger.close()
        for node, program in self._programs.items():
            await asyncio.to_thread(remove_whole_log, self._layout(node).log(program))

    async def leave(self) -> None:
        """Let everything run on when this process ends: the links go to a process of their own.

        ``cleanup`` ends it all. Raises ``HarnessError``.
        """
        mesh = self._network()
        self._closing = True
        # The listeners are inherited before ours close: in between no dial is refused.
        await keep_links(mesh, self._state_dir, self._ledger)
        await self._ledger.keep()
        mesh.close()

    async def _end(self, node: str) -> None:
        """End the program on ``node``: at once, so that a call that acts on it ends too, and once
        more under its lock, for a program that was being started.
        """
        if child := self._children.get(node):
            child.signal(signal.SIGKILL)
        async with self._acting[node]:
            if child := self._children.get(node):
                await child.kill()

    async def _pause(self, node: str, *, paused: bool) -> NodeStatus:
        self._known(node)
        async with self._acting[node]:
            child = self._children.get(node)
            if child is None:
                raise HarnessError(f"{node}: was never started, so it can't be paused or resumed")
            await child.pause(paused)
            return self._status(node)

    def _status(self, node: str) -> NodeStatus:
        child = self._children.get(node)
        if child is None:
            return NodeStatus(node=node, running=False, exit_text="never started")
        seen = procfs.find(child.identity)
        return NodeStatus(
            node=node,
            running=seen is not None,
            paused=seen is not None and seen.paused,
            pid=child.identity.pid if seen else None,
            boot=str(child.identity),
            exit_text="" if seen else child.exit_text or "ended",
        )

    def _known(self, node: str) -> Cluster:
        cluster = self._cluster
        if cluster is None or node not in cluster.nodes:
            known = ", ".join(cluster.nodes) if cluster else "none yet"
            raise UsageError(f"node {node!r}: needs to be one of this run ({known})")
        return cluster

    def _network(self) -> Mesh:
        if self._mesh is None:
            raise HarnessBug("links were asked for before the nodes were provisioned")
        return self._mesh

    def _layout(self, node: str) -> Layout:
        return Layout(root=self._nodes_dir / node)


def _environment(program: Program, layout: Layout) -> dict[str, str]:
    """The program's environment: little of ours, its own variables, and the path of its code."""
    inherited = {name: os.environ[name] for name in _INHERITED if name in os.environ}
    ours = {"PYTHONPATH": str(layout.python), "PYTHONUNBUFFERED": "1"}
    return inherited | ours | program.env


def _make_room(proxies: int) -> None:
    """Let this process open the sockets that ``proxies`` need, as far as the machine allows."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = _FILES_BESIDE + proxies * _FILES_PER_PROXY
    room = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
    if soft != resource.RLIM_INFINITY and soft < room:
        resource.setrlimit(resource.RLIMIT_NOFILE, (room, hard))
