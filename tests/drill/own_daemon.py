"""A Docker daemon of the test's own, in namespaces of its own: to be killed at will."""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from pathlib import Path

import docker
from capabilities import lacking
from docker.errors import DockerException

from clusters.providers.docker.images import ensure_base

SPACES = {"net": "--net", "mnt": "--mount", "pid": "--pid"}
READY_LIMIT_S = 60
COPY_LIMIT_S = 180
# The first process of the namespaces: what dockerd leaves is adopted, reaped, and ends with it.
ADOPT = """
import os, time
while True:
    try:
        os.wait()
    except ChildProcessError:
        time.sleep(0.05)
"""


class OwnDaemon:
    """``dockerd`` with its own socket, data and network. Commands that should meet its containers
    run in its namespace, with its environment.
    """

    def __init__(self, root: Path, first: int) -> None:
        """``first`` is the first process of the namespaces."""
        self._root, self._first = root, first

    @property
    def environment(self) -> Mapping[str, str]:
        return os.environ | {"DOCKER_HOST": f"unix://{self._root}/sock"}

    def inside(self, *argv: str | Path, kinds: tuple[str, ...] = ("net",)) -> list[str]:
        """``argv`` as a command in the daemon's network."""
        spaces = [f"{SPACES[kind]}=/proc/{self._first}/ns/{kind}" for kind in kinds]
        return ["nsenter", *spaces, *map(str, argv)]

    def start(self) -> None:
        """Start it and wait until it answers."""
        for left in ("pid", "exec/containerd/containerd.pid"):
            (self._root / left).unlink(missing_ok=True)
        command = self.inside(
            *("dockerd", "--bridge", "none", "--pidfile", self._root / "pid"),
            *("--data-root", self._root / "data", "--exec-root", self._root / "exec"),
            *("--host", f"unix://{self._root}/sock"),
            kinds=("net", "mnt", "pid"),
        )

        with (self._root / "log").open("ab") as log:
            process = subprocess.Popen(command, stdout=log, stderr=log)
        ends_s = time.monotonic() + READY_LIMIT_S
        while self.listed() is None:
            said = (self._root / "log").read_text()[-600:]
            assert process.poll() is None, said
            assert time.monotonic() < ends_s, said

    def kill(self) -> None:
        """SIGKILL, as a crash would."""
        pid = (self._root / "pid").read_text().strip()
        command = self.inside("kill", "-KILL", pid, kinds=("pid",))
        subprocess.run(command, check=True, timeout=10)
        ends_s = time.monotonic() + 10
        while self.listed() is not None:
            assert time.monotonic() < ends_s

    def listed(self) -> list[str] | None:
        """Names of all containers and made networks it has; ``None`` where it does not answer."""
        try:
            client = docker.APIClient(base_url=self.environment["DOCKER_HOST"], timeout=10)
            containers = client.containers(all=True)
            networks = client.networks()
        except (DockerException, OSError):
            return None
        made = [n["Name"] for n in networks if n["Name"].startswith("firedrill")]
        return [c["Names"][0] for c in containers] + made

    def take_image(self, client: docker.APIClient) -> None:
        """Copy the base image from the machine's daemon."""
        image = ensure_base(client)
        own = docker.APIClient(base_url=self.environment["DOCKER_HOST"], timeout=COPY_LIMIT_S)
        for _ in own.load_image(client.get_image(image)):
            pass


@contextlib.contextmanager
def own_daemon(root: Path, client: docker.APIClient) -> Iterator[OwnDaemon]:
    """A daemon that has the base image; nothing of it is left after the block."""
    for tool in ("dockerd", "unshare", "nsenter", "ip"):
        if shutil.which(tool) is None:
            lacking(f"{tool} is not installed")
    if os.geteuid() != 0:
        lacking("a second Docker daemon needs root")
    root.mkdir()
    spaces = ("--net", "--mount", "--pid", "--fork", "--kill-child", "--mount-proc")
    holder = subprocess.Popen(["unshare", *spaces, sys.executable, "-c", ADOPT])
    try:
        daemon = OwnDaemon(root, _child(holder))
        up = daemon.inside("ip", "link", "set", "lo", "up")
        subprocess.run(up, check=True, timeout=10)
        daemon.start()
        daemon.take_image(client)
        yield daemon
    finally:
        holder.kill()
        holder.wait(timeout=10)
        shutil.rmtree(root, ignore_errors=True)


def _child(holder: subprocess.Popen[bytes]) -> int:
    """The first process in the namespaces that ``holder`` makes."""
    children = Path(f"/proc/{holder.pid}/task/{holder.pid}/children")
    ends_s = time.monotonic() + 10
    while not (found := children.read_text().split()):
        if holder.poll() is not None or time.monotonic() > ends_s:
            lacking("no namespaces can be made here")
    return int(found[0])
