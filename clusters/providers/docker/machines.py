"""Containers as machines: made, lost, brought back and removed through the Docker API.

Everything here blocks, up to the client's own limit a call; the provider awaits it on lanes.
"""

from __future__ import annotations

import io
import tarfile
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from ipaddress import IPv4Network
from typing import Any, BinaryIO

import attrs
import docker
from docker.errors import APIError, NotFound
from docker.types import EndpointConfig, IPAMConfig, IPAMPool

from clusters.providers.docker import labels, subnets
from clusters.providers.docker.cleanup import Requests, remove_container, remove_network
from clusters.providers.docker.container import (
    COMMAND,
    KEY_DIRECTORY,
    Limits,
    docker_name,
    host_config,
)
from clusters.providers.docker.daemon import DaemonError, doing
from clusters.providers.remote import install
from harness.clock import NS_PER_S
from harness.errors import HarnessError
from harness.protocols.resource_usage import NodeUsage

SUBNET_TRIES = 32
STREAMED_MAX_BYTES = (
    1 << 30
)  # the daemon hands out whole files, holes too: some hundred MB a second
FREEZE_TRIES = 5
OUTPUT_LIMIT_BYTES = 1 << 20
_BLOCK_BYTES = 1 << 20
EXEC_LIMIT_S = 60.0  # between blocks the client has a limit of its own


class _Chunks(io.RawIOBase):
    """An iterator of chunks as a readable stream."""

    def __init__(self, chunks: Iterator[bytes]) -> None:
        self._chunks, self._rest = chunks, b""

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:  # noqa: ANN401 (any writable buffer)
        if not self._rest:
            self._rest = next(self._chunks, b"")
        taken = min(len(buffer), len(self._rest))
        buffer[:taken], self._rest = self._rest[:taken], self._rest[taken:]
        return taken


def copy_tail(chunks: Iterator[bytes], limit_bytes: int, target: BinaryIO) -> int:
    """Append the last ``limit_bytes`` of the first regular file in a tar that arrives in ``chunks``
    to ``target``, without the zeros that a hole before them leaves. Returns the number of bytes
    left out. Raises ``OSError``.
    """
    with tarfile.open(fileobj=io.BufferedReader(_Chunks(chunks)), mode="r|") as tar:
        for entry in tar:
            content = tar.extractfile(entry) if entry.isfile() else None
            if content is None:
                continue
            left_out = left = max(0, entry.size - limit_bytes)
            # A stream can't be sought in: what lies before the tail is read and dropped.
            while left > 0 and (dropped := len(content.read(min(left, _BLOCK_BYTES)))):
                left -= dropped
            blocks = iter(partial(content.read, _BLOCK_BYTES), b"")
            return left_out + copy_without_hole(blocks, target)
    return 0


def copy_without_hole(blocks: Iterable[bytes], target: BinaryIO) -> int:
    """Append ``blocks`` to ``target`` from the first byte on that is no zero; returns the number of
    zeros before it. Raises ``OSError``.
    """
    zeros, within = 0, False
    for block in blocks:
        kept = block if within else block.lstrip(b"\0")
        zeros += len(block) - len(kept)
        within = within or bool(kept)
        target.write(kept)
    return zeros


@attrs.frozen(kw_only=True)
class MachineState:
    """The daemon's view of a container. ``no_memory``: the kernel ended it for lack of memory."""

    exists: bool
    running: bool = False
    frozen: bool = False
    no_memory: bool = False
    text: str = ""


def usage_of(stats: dict[str, Any]) -> NodeUsage | None:
    """What the daemon's ``stats`` of a container tell; ``None`` where it does not run."""
    used = stats.get("cpu_stats", {}).get("cpu_usage", {}).get("total_usage")
    if not used:
        return None
    # Empty where the kernel counts no container's disk, whatever it has written.
    disk = stats.get("blkio_stats", {}).get("io_service_bytes_recursive")
    links = (stats.get("networks") or {}).values()
    memory = stats.get("memory_stats", {})
    # What could be given back at once is no use of the program's.
    cache = memory.get("stats", {}).get("inactive_file", 0)

    def moved(way: str) -> int | None:
        return sum(row["value"] for row in disk if row["op"].lower() == way) if disk else None

    return NodeUsage(
        cpu_s=used / NS_PER_S,
        memory_bytes=max(0, memory.get("usage", 0) - cache),
        read_bytes=moved("read"),
        written_bytes=moved("write"),
        received_bytes=sum(link["rx_bytes"] for link in links),
        sent_bytes=sum(link["tx_bytes"] for link in links),
    )


class Machines:
    """The containers and the network of one run."""

    def __init__(
        self,
        client: docker.APIClient,
        run_id: str,
        image: str,
        limits: Limits,
        directory: str = "",
        requests: Requests | None = None,
    ) -> None:
        """``directory``: the mark of the run's directory, where it has one; ``requests``: where
        what is being made is announced.
        """
        self._client, self._run_id, self._image, self._limits = client, run_id, image, limits
        self._requests = requests or Requests(None)
        self._labels = labels.myself().labels(run_id, directory)
        self._network = docker_name(run_id)
        self._closed = threading.Event()
        self._making = 0
        self._made = threading.Condition()

    def close(self) -> None:
        """Make nothing more. A call that is making something at this moment removes it again."""
        self._closed.set()

    def usage(self, node: str) -> NodeUsage | None:
        """What the container has used, in one look of the daemon; ``None`` where it does not run.
        Raises ``HarnessError``.
        """
        with doing(f"measuring {node}"):
            told = self._client.stats(self.name(node), stream=False, one_shot=True)
        return usage_of(told)

    def settle(self, limit_s: float) -> bool:
        """Wait until nothing is being made any more; whether that came within ``limit_s``. To be
        called after ``close``: a call whose caller stopped waiting goes on all the same.
        """
        with self._made:
            return self._made.wait_for(lambda: self._making == 0, limit_s)

    @contextmanager
    def _making_one(self, name: str, what: str) -> Iterator[None]:
        """Object ``name`` is being made; refused once the run has ended."""
        # Checked and counted in one step: ``settle`` misses no call that came before ``close``.
        with self._made:
            self._refuse_closed()
            self._making += 1
        try:
            with self._requests.announced(name), doing(what):
                yield
        finally:
            with self._made:
                self._making -= 1
                self._made.notify_all()

    def _refuse_closed(self) -> None:
        if self._closed.is_set():
            raise HarnessError(f"run {self._run_id} was torn down meanwhile")

    def _still_wanted(self, undo: Callable[[], None]) -> None:
        """Called after something was made: take it back if the run ended meanwhile."""
        if self._closed.is_set():
            undo()
        self._refuse_closed()

    def owned(self) -> tuple[str, ...]:
        """Names of all containers of this run."""
        with doing("listing the run's containers"):
            found = self._client.containers(
                # By label, not by name: also what a later version may name otherwise.
                all=True,
                filters={"label": f"{labels.RUN}={self._run_id}"},
            )
        return tuple(sorted(container["Names"][0].lstrip("/") for container in found))

    def name(self, node: str) -> str:
        """The container of ``node``."""
        return docker_name(self._run_id, node)

    def make_network(self) -> IPv4Network:
        """The run's network, on a free /24; another run that takes it first makes it try the next.

        Internal: nothing in it reaches beyond the host.
        """
        with self._making_one(self._network, "making the run's network"):
            return self._make_network()

    def _make_network(self) -> IPv4Network:
        taken = [*subnets.routed(), *_subnets_of(self._client.networks())]
        clash = "every /24 is taken"
        tries = subnets.candidates(self._run_id, taken)
        for subnet, _ in zip(tries, range(SUBNET_TRIES), strict=False):
            # Asked for by number: the daemon's own choice may collide with routes of the host.
            pool = IPAMPool(subnet=str(subnet), gateway=str(subnet[1]))
            try:
                self._client.create_network(
                    self._network,
                    driver="bridge",
                    ipam=IPAMConfig(pool_configs=[pool]),
                    internal=True,
                    # Old daemons would make a second network of the same name.
                    check_duplicate=True,
                    labels=self._labels,
                )
            except APIError as error:
                clash = error.explanation or str(error)
                # Another run took it between the look and the request: the daemon alone knows.
                if "overlap" not in clash.lower():
                    raise DaemonError("making the run's network", clash) from error
            else:
                self._still_wanted(self.remove_network)
                return subnet
        raise DaemonError(f"finding a free /24 of {subnets.RANGE} for the run", clash)

    def create(self, node: str, address: str, keys: Mapping[str, bytes]) -> None:
        """Make and start the machine of ``node`` at ``address``; ``keys`` are files for sshd."""
        with self._making_one(self.name(node), f"making the container of {node}"):
            self._client.create_container(
                self._image,
                command=list(COMMAND),
                hostname=node,
                name=self.name(node),
                labels=self._labels | {labels.NODE: node},
                host_config=host_config(self._client, self._limits, self._network),
                networking_config={
                    "EndpointsConfig": {
                        self._network: EndpointConfig(
                            self._client.api_version, ipv4_address=address, aliases=[node]
                        )
                    }
                },
            )
            self._still_wanted(lambda: self.remove(self.name(node)))
            self._client.put_archive(
                self.name(node),
                KEY_DIRECTORY,
                # Before the start: sshd reads its keys when it starts.
                install.archive({name: (content, 0o600) for name, content in keys.items()}),
            )
            self._client.start(self.name(node))

    def create_trial(self, node: str) -> None:
        """A container without a network that only sleeps: to try the capabilities of containers."""
        with self._making_one(self.name(node), "making a container to try things in"):
            self._client.create_container(
                self._image,
                # It ends by itself where a controller dies while it tries.
                command=["tini", "--", "sleep", "60"],
                name=self.name(node),
                labels=self._labels | {labels.NODE: node},
                host_config=host_config(self._client, self._limits, "none"),
            )
            self._still_wanted(lambda: self.remove(self.name(node)))
            self._client.start(self.name(node))

    def mark_kept(self) -> None:
        """Mark this run as left up on purpose: labels can't be added to a container later, so one
        that is made for the purpose, and never started, carries the mark.
        """
        with self._making_one(self.name("kept"), "marking the run as kept"):
            self._client.create_container(
                self._image,
                command=["true"],
                name=self.name("kept"),
                labels=self._labels | {labels.KEPT: "yes"},
                host_config=host_config(self._client, self._limits, "none"),
            )

    def freeze(self, node: str) -> None:
        """Stop every process of the machine through the freezer of its cgroup. Idempotent.

        The runtime gives up ("unable to freeze") where a process takes long to stand still, as on a
        crowded host; the next try finds it standing.
        """
        for left in reversed(range(FREEZE_TRIES)):
            if self.state(node).frozen:
                return
            try:
                with doing(f"freezing the container of {node}"):
                    self._client.pause(self.name(node))
                return
            except DaemonError:
                if not left:
                    raise

    def thaw(self, node: str) -> None:
        """Let the processes of the machine go on. Idempotent."""
        if self.state(node).frozen:
            with doing(f"thawing the container of {node}"):
                self._client.unpause(self.name(node))

    def lose(self, node: str) -> None:
        """Take the machine away so that its peers see silence, and no reset.

        First its interface goes, so that the resets and FINs of dying sockets have no way out; then
        everything on it is killed. Its disk stays. Idempotent.
        """
        with doing(f"disconnecting {node}"):
            try:
                self._client.disconnect_container_from_network(
                    self.name(node), self._network, force=True
                )
            except APIError as error:
                # A second call finds it disconnected already: that is what it wanted.
                if "is not connected" not in (error.explanation or ""):
                    raise
        # The daemon refuses to kill what does not run: a second call finds it down.
        if self.state(node).running:
            with doing(f"killing the container of {node}"):
                self._client.kill(self.name(node))

    def restore(self, node: str, address: str) -> None:
        """Bring a lost machine back at its address. Idempotent."""
        if self.state(node).running:
            return
        with doing(f"bringing back the container of {node}"):
            try:
                self._client.connect_container_to_network(
                    self.name(node), self._network, ipv4_address=address, aliases=[node]
                )
            except APIError as error:
                # A call whose answer was late may have connected it.
                if "already exists" not in (error.explanation or ""):
                    raise
            self._client.start(self.name(node))

    def state(self, node: str) -> MachineState:
        """Whether the container is there and runs."""
        with doing(f"inspecting the container of {node}"):
            try:
                found = self._client.inspect_container(self.name(node))["State"]
            except NotFound:
                return MachineState(exists=False, text="no such container")
        text = f"container {found['Status']}" + (", out of memory" if found["OOMKilled"] else "")
        if not found["Running"]:
            text += f" with code {found['ExitCode']}"
        return MachineState(
            exists=True,
            running=bool(found["Running"]),
            frozen=bool(found["Paused"]),
            no_memory=bool(found["OOMKilled"]),
            text=text,
        )

    def execute(
        self, node: str, argv: list[str], limit_bytes: int = OUTPUT_LIMIT_BYTES
    ) -> tuple[int, bytes]:
        """Exit status and output of a short command, through the daemon and not through sshd.
        Raises ``HarnessError`` where it writes more than ``limit_bytes``, or for longer than a
        command may take: the output comes from the store, and may be of any length.
        """
        with doing(f"running {argv[0]} in the container of {node}"):
            made = self._client.exec_create(self.name(node), argv)
            stream = self._client.exec_start(made["Id"], stream=True)
            try:
                output = _bounded(stream, limit_bytes, f"{node}: {argv[0]}")
            finally:
                stream.close()
            code = self._client.exec_inspect(made["Id"])["ExitCode"]
        # A crowded host may give no status: -1 is one that no command returns.
        return int(code if code is not None else -1), output

    def container_log(self, node: str, tail_lines: int) -> bytes:
        """The last output of sshd and init."""
        with doing(f"reading the log of {node}", missing_is_fine=True):
            return bytes(self._client.logs(self.name(node), tail=tail_lines, timestamps=True))
        # Reached where ``doing`` lets a missing container pass.
        return b""

    def file_tail(self, node: str, path: str, limit_bytes: int, target: BinaryIO) -> int:
        """Append the last ``limit_bytes`` of a file to ``target``, whether the machine runs or not;
        nothing if it is missing. Returns the number of bytes left out before them. Raises
        ``OSError`` where ``target`` refuses, and ``DaemonError``.
        """
        with doing(f"reading {path} of {node}", missing_is_fine=True):
            stream, about = self._client.get_archive(self.name(node), path)
            if about["size"] > STREAMED_MAX_BYTES and self.state(node).running:
                argv = ["tail", f"--bytes={limit_bytes}", "--", path]
                end = self.execute(node, argv, limit_bytes)[1]
                left_out = max(0, int(about["size"]) - len(end))
                return left_out + copy_without_hole((end,), target)
            return copy_tail(stream, limit_bytes, target)
        return 0

    def remove(self, container: str) -> None:
        """Remove one of ``owned``, in any state. Idempotent."""
        if remove_container(self._client, container):
            self._requests.settle(container)

    def remove_network(self) -> None:
        """Remove the run's network. Idempotent."""
        if remove_network(self._client, self._network):
            self._requests.settle(self._network)


def _bounded(stream: Iterable[bytes], limit_bytes: int, what: str) -> bytes:
    """All of ``stream``. Raises ``HarnessError`` past the limit, or past ``EXEC_LIMIT_S``."""
    output, ends = bytearray(), time.monotonic() + EXEC_LIMIT_S
    for block in stream:
        output += block
        if len(output) > limit_bytes:
            raise HarnessError(f"{what} wrote more than {limit_bytes} bytes (the limit)")
        if time.monotonic() > ends:
            raise HarnessError(f"{what} wrote for longer than {EXEC_LIMIT_S:g} s (the limit)")
    return bytes(output)


def _subnets_of(networks: list[dict[str, Any]]) -> Iterator[IPv4Network]:
    for network in networks:
        for pool in (network.get("IPAM") or {}).get("Config") or ():
            # Ours is an IPv4 range: no IPv6 network overlaps with it, nor one without a subnet.
            if ":" not in pool.get("Subnet", ":"):
                yield IPv4Network(pool["Subnet"], strict=False)
