"""A machine as the daemon sees it: a container of these limits that runs sshd and nothing else."""

from __future__ import annotations

import re
from typing import Any

import attrs
import docker
import msgspec
from docker.types import LogConfig

from clusters.providers.remote import program
from clusters.providers.remote.fault_lease import Lease
from clusters.providers.remote.node_threads import Lane
from clusters.providers.remote.ssh_session import Session

CONTAINER_LOG_SIZE = "8m"  # of sshd and init; the program writes to a file of its own
CONTROL_PORT = 22
# What sshd needs to let root in, what rules and signals need, and nothing else (measured).
CAPABILITIES = (
    "AUDIT_WRITE",
    "CHOWN",
    "DAC_OVERRIDE",
    "FOWNER",
    "KILL",
    "NET_ADMIN",
    "SETGID",
    "SETUID",
    "SYS_CHROOT",
)
KEY_DIRECTORY = "/etc/firedrill"
_SSHD_OPTIONS = {
    "AuthorizedKeysFile": f"{KEY_DIRECTORY}/authorized_keys",
    "HostKey": f"{KEY_DIRECTORY}/host_key",
    "KbdInteractiveAuthentication": "no",
    # Each command is a channel of the one session, and sshd allows 10 by default.
    "MaxSessions": "64",
    "PasswordAuthentication": "no",
    "PermitRootLogin": "prohibit-password",
    "Port": str(CONTROL_PORT),
    "UseDNS": "no",
    "UsePAM": "no",
}
COMMAND = (
    # tini reaps programs that are orphaned, as all of ours are; -e logs where Docker reads.
    *("tini", "--", "/usr/sbin/sshd", "-D", "-e"),
    *(word for name, value in _SSHD_OPTIONS.items() for word in ("-o", f"{name}={value}")),
)


class Limits(msgspec.Struct, frozen=True, kw_only=True):
    """The resource limits of one container."""

    memory_mib: int = 1024
    processes: int = 512


def docker_name(*parts: str) -> str:
    """``parts`` joined into a name that Docker accepts."""
    return re.sub(r"[^a-zA-Z0-9_.-]", "-", "-".join(("firedrill", *parts)))


def host_config(client: docker.APIClient, limits: Limits, network: str) -> Any:  # noqa: ANN401 (a dict of the SDK's)
    """How the daemon is to run a container of ``limits`` on ``network``."""
    memory_bytes = limits.memory_mib << 20
    return client.create_host_config(
        cap_drop=["ALL"],
        cap_add=list(CAPABILITIES),
        security_opt=["no-new-privileges"],
        network_mode=network,
        mem_limit=memory_bytes,
        memswap_limit=memory_bytes,  # equal: no swap, which would stretch every pause
        pids_limit=limits.processes,
        log_config=LogConfig(
            type="json-file", config={"max-size": CONTAINER_LOG_SIZE, "max-file": "1"}
        ),
    )


@attrs.define(kw_only=True)
class Node:
    """One machine and what was done on it.

    ``actions`` is one thread: actions on the program take effect in order, also those whose caller
    stopped waiting. A kill that outlasts its caller must not land after the start that heals it.
    ``power`` is one as well, for what the daemon does to the whole machine (freeze, thaw, lose,
    restore): it must not wait behind a command that hangs on a machine which is frozen.
    """

    name: str
    address: str
    lane: Lane
    actions: Lane
    power: Lane
    wiring: Lane
    session: Session
    lease: Lease = attrs.field(
        default=attrs.Factory(lambda self: Lease(self.session, lambda: self.reachable), True)
    )
    launch: program.Launch | None = None
    process: program.Process | None = None
    lost: bool = False
    frozen: bool = False
    delayed: bool = False

    @property
    def reachable(self) -> bool:
        """Whether a command can reach the machine."""
        return not (self.lost or self.frozen)
