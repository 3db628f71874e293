"""Whose a container or network is, and whether that controller still lives.

Every object of a run is born with these labels, so that what a killed controller leaves behind is
found by label alone, and nothing without them is ever touched.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Mapping
from pathlib import Path

import attrs

RUN = "firedrill.run"
NODE = "firedrill.node"
KEPT = "firedrill.kept"
"""Carried by a container of a run that was left up on purpose; it never runs."""
_HOST, _BOOT = "firedrill.owner-host", "firedrill.host-boot"
_PIDS, _PID, _TICKS = (
    "firedrill.owner-pid-namespace",
    "firedrill.owner-pid",
    "firedrill.owner-start",
)


@attrs.frozen(kw_only=True)
class Owner:
    """A controller process: where it runs, and what tells it from a later process of its pid."""

    host: str
    host_boot: str
    pid_namespace: str
    pid: int
    start_ticks: int

    def labels(self, run_id: str) -> dict[str, str]:
        """The labels of what this process makes for ``run_id``."""
        return {
            RUN: run_id,
            _HOST: self.host,
            _BOOT: self.host_boot,
            _PIDS: self.pid_namespace,
            _PID: str(self.pid),
            _TICKS: str(self.start_ticks),
        }

    def is_dead(self, here: Owner, proc: Path = Path("/proc")) -> bool:
        """Whether ``here``, the asking process, is sure that this one is gone.

        A process of another host, or of another pid namespace of this one, can't be seen: it counts
        as alive.
        """
        if self.host != here.host:
            return False
        if self.host_boot != here.host_boot:
            return True
        if self.pid_namespace != here.pid_namespace:
            return False
        return _start_ticks(self.pid, proc) != self.start_ticks


def owner_of(labels: Mapping[str, str]) -> Owner | None:
    """The owner that ``labels`` name; ``None`` if they don't say."""
    try:
        return Owner(
            host=labels[_HOST],
            host_boot=labels[_BOOT],
            pid_namespace=labels[_PIDS],
            pid=int(labels[_PID]),
            start_ticks=int(labels[_TICKS]),
        )
    except (KeyError, ValueError):
        return None


def myself(proc: Path = Path("/proc")) -> Owner:
    """This process as an owner."""
    pid = os.getpid()
    return Owner(
        host=socket.gethostname(),
        host_boot=(proc / "sys/kernel/random/boot_id").read_text().strip(),
        pid_namespace=os.readlink(proc / "self/ns/pid"),
        pid=pid,
        start_ticks=_start_ticks(pid, proc) or 0,
    )


def _start_ticks(pid: int, proc: Path) -> int | None:
    """Start time of a live process in kernel ticks; ``None`` if there is none with this pid."""
    try:
        stat = (proc / str(pid) / "stat").read_text()
    except OSError:
        return None
    fields = stat.rpartition(") ")[2].split()
    return None if fields[0] in ("Z", "X") else int(fields[19])
