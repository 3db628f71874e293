"""The abilities of this machine for containers, each found by trying it, with the command that adds
a missing one.

The daemon is asked, not the ``docker`` command: a client alone runs no container.
"""

from __future__ import annotations

import os
import platform
import shutil
import subprocess

import docker

from clusters.providers.docker import images
from clusters.providers.docker.daemon import NoDaemon, connect, doing
from clusters.providers.docker.images import MAKE_COMMAND, obstacles, present
from harness.errors import HarnessError
from harness.protocols.cluster import Requirement

ASK_LIMIT_S = 10
NODES_USUAL = 5
MEMORY_PER_NODE_MIB = 256  # a reference node stays well below; five and Spark need about 3 GiB
MEMORY_BESIDE_MIB = 2048

_IN_OWN_NETWORK = ("unshare", "--net", "sh", "-c")
_NETEM = "ip link set lo up && tc qdisc add dev lo root netem delay 1ms"
_STATISTIC = "iptables -A INPUT -m statistic --mode random --probability 0.1 -j DROP"


def diagnose() -> tuple[Requirement, ...]:
    """The findings, the daemon first. Takes at most about half a minute; never raises."""
    findings = [_root(), _debootstrap(), _netem(), _statistic(), _memory(), _kernel()]
    try:
        client = connect(ASK_LIMIT_S)
    except NoDaemon as error:
        return (_no_daemon(error), *findings)
    return (_daemon(client), _base_image(client), *findings)


def _daemon(client: docker.APIClient) -> Requirement:
    try:
        with doing("asking the daemon's version"):
            said = client.version()
    except HarnessError as error:
        return Requirement(name="docker daemon", ok=False, found=str(error))
    found = f"answers, version {said.get('Version')} (API {said.get('ApiVersion')})"
    return Requirement(name="docker daemon", ok=True, found=found)


def _no_daemon(error: NoDaemon) -> Requirement:
    alone = "; only the docker command is there" if shutil.which("docker") else ""
    return Requirement(
        name="docker daemon",
        ok=False,
        found=f"nothing answers at {error.where} ({error.reason}){alone}",
        remedy="scripts/start-docker",
    )


def _base_image(client: docker.APIClient) -> Requirement:
    name, image = "base image", images.tag()
    try:
        if present(client, image):
            return Requirement(name=name, ok=True, found=image)
        if present(client, images.PARENT):
            return Requirement(name=name, ok=True, found=f"can be built on {images.PARENT}")
    except HarnessError as error:
        return Requirement(name=name, ok=False, found=str(error))
    if blocked := obstacles():
        return Requirement(
            name=name,
            ok=False,
            found=f"{image} is missing; " + "; ".join(o.text for o in blocked),
            remedy=" && ".join(o.remedy for o in blocked),
        )
    return Requirement(name=name, ok=True, found="missing; the first run makes it, about a minute")


def _root() -> Requirement:
    if os.geteuid() == 0:
        return Requirement(name="root", ok=True, found="yes")
    return Requirement(
        name="root",
        ok=False,
        found="no: the base image can't be made here, only pulled",
        remedy=MAKE_COMMAND,
    )


def _debootstrap() -> Requirement:
    where = shutil.which("debootstrap")
    if where:
        return Requirement(name="debootstrap", ok=True, found=where)
    return Requirement(
        name="debootstrap",
        ok=False,
        found=f"not installed: the base image needs it where {images.PARENT} can't be pulled",
        remedy="apt-get install debootstrap",
    )


def _tried(script: str) -> str:
    """Why ``script`` fails in a network namespace of its own; empty if it works."""
    try:
        done = subprocess.run(
            [*_IN_OWN_NETWORK, script],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=ASK_LIMIT_S,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return str(error)
    return "" if done.returncode == 0 else (done.stderr.strip() or f"exit {done.returncode}")


def _netem() -> Requirement:
    return _module("delay and loss (tc netem)", _NETEM, "sch_netem")


def _statistic() -> Requirement:
    return _module("random loss (iptables statistic)", _STATISTIC, "xt_statistic")


def _module(name: str, script: str, module: str) -> Requirement:
    """Whether ``script``, which needs the kernel's ``module``, works."""
    if os.geteuid() != 0:
        return Requirement(name=name, ok=False, found="not tried: needs root", remedy="run as root")
    why = _tried(script)
    if not why:
        return Requirement(name=name, ok=True, found="works")
    return Requirement(
        name=name,
        ok=False,
        found=f"{why}; faults that need it are not available",
        remedy=f"modprobe {module}",
    )


def _memory() -> Requirement:
    wanted = NODES_USUAL * MEMORY_PER_NODE_MIB + MEMORY_BESIDE_MIB
    mib = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") >> 20
    found = f"{mib} MiB ({wanted} MiB are enough for {NODES_USUAL} nodes and the analysis)"
    return Requirement(name="memory", ok=mib >= wanted, found=found)


def _kernel() -> Requirement:
    return Requirement(
        name="kernel",
        ok=platform.system() == "Linux",
        found=f"{platform.system()} {platform.release()}",
        remedy="" if platform.system() == "Linux" else "run on Linux, where addresses are routable",
    )
