"""The owner of a container or network, and whether that controller still lives.

Every object of a run is created with these labels, so that the leftovers of a killed controller are
found by label alone, and no object without them is ever touched.
"""

from __future__ import annotations

import contextlib
import os
import socket
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from pathlib import Path

import attrs

RUN = "firedrill.run"
NODE = "firedrill.node"
# Carried by a container of a run that was left up on purpose; it never runs.
KEPT = "firedrill.kept"
# The mark of the run directory: a copy, or a manifest that names this run, is another one.
DIRECTORY = "firedrill.directory"
# UTC time (RFC 3339) after which the object belongs to no run any more, whoever made it.
EXPIRES = "firedrill.expires"
EXPIRES_AFTER = timedelta(days=8)  # the longest drive that a plan may ask for, and a day
_HOST, _BOOT, _MACHINE = (
    "firedrill.owner-host",
    "firedrill.host-boot",
    "firedrill.owner-machine",
)
MACHINE_ID_FILES = ("/etc/machine-id", "/var/lib/dbus/machine-id")
_PIDS, _PID, _TICKS = (
    "firedrill.owner-pid-namespace",
    "firedrill.owner-pid",
    "firedrill.owner-start",
)


@attrs.frozen(kw_only=True)
class Owner:
    """A controller process: where it runs, and the start time that tells it from a later process of
    its pid.

    ``machine``: the installation's own identifier; empty where there is none. Host names are no
    identity: machines made from one image all have the same name.
    """

    host: str
    host_boot: str
    machine: str
    pid_namespace: str
    pid: int
    start_ticks: int

    def labels(self, run_id: str, directory: str = "") -> dict[str, str]:
        """The labels of all objects that this process makes for ``run_id``, whose directory has
        that mark.
        """
        return {
            RUN: run_id,
            DIRECTORY: directory,
            _HOST: self.host,
            _BOOT: self.host_boot,
            _MACHINE: self.machine,
            _PIDS: self.pid_namespace,
            _PID: str(self.pid),
            _TICKS: str(self.start_ticks),
            EXPIRES: _rfc3339(datetime.now(UTC) + EXPIRES_AFTER),
        }

    def __str__(self) -> str:
        return f"process {self.pid} on {self.host}"

    def is_dead(self, here: Owner, proc: Path = Path("/proc")) -> bool:
        """Whether ``here``, the asking process, is sure that this one is gone.

        A process of another machine, or of another pid namespace of this one, can't be seen: it
        counts as alive. So does one of another boot, unless the installation is known to be this
        one: two machines may share a host name, and a daemon.
        """
        if self.host_boot != here.host_boot:
            return bool(self.machine) and (self.machine, self.host) == (here.machine, here.host)
        if self.pid_namespace != here.pid_namespace:
            return False
        return _start_ticks(self.pid, proc) != self.start_ticks


def owner_of(labels: Mapping[str, str]) -> Owner | None:
    """The owner that ``labels`` name; ``None`` if they don't say."""
    try:
        return Owner(
            host=labels[_HOST],
            host_boot=labels[_BOOT],
            machine=labels.get(_MACHINE, ""),
            pid_namespace=labels[_PIDS],
            pid=int(labels[_PID]),
            start_ticks=int(labels[_TICKS]),
        )
    except (KeyError, ValueError):
        return None


def expired(labels: Mapping[str, str], now: datetime) -> bool:
    """Whether ``labels`` say that the time of their object is over by ``now`` (with a time
    zone).
    """
    try:
        return datetime.fromisoformat(labels[EXPIRES]) <= now
    except (KeyError, ValueError, TypeError):
        return False


def myself(proc: Path = Path("/proc")) -> Owner:
    """This process as an owner."""
    pid = os.getpid()
    return Owner(
        host=socket.gethostname(),
        host_boot=(proc / "sys/kernel/random/boot_id").read_text().strip(),
        machine=_machine(),
        pid_namespace=os.readlink(proc / "self/ns/pid"),
        pid=pid,
        start_ticks=_start_ticks(pid, proc) or 0,
    )


def _machine(files: tuple[str, ...] = MACHINE_ID_FILES) -> str:
    """The identifier of this installation; empty where none of ``files`` tells it."""
    for file in files:
        with contextlib.suppress(OSError):
            if found := Path(file).read_text(errors="replace").strip():
                return found
    return ""


def _rfc3339(moment: datetime) -> str:
    return moment.isoformat(timespec="seconds")


def _start_ticks(pid: int, proc: Path) -> int | None:
    """Start time of a live process in kernel ticks; ``None`` if there is none with this pid."""
    try:
        stat = (proc / str(pid) / "stat").read_text()
    except OSError:
        return None
    fields = stat.rpartition(") ")[2].split()
    return None if fields[0] in ("Z", "X") else int(fields[19])
