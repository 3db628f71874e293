"""Processes as the kernel shows them: which process has a process id now."""

from __future__ import annotations

import contextlib
import os
import select
import signal
from pathlib import Path
from typing import Annotated

import attrs
import msgspec
from msgspec import Meta

from harness.history.run_directory import same_directory
from harness.protocols.resource_usage import NodeUsage

# What Linux gives out at most; 0 and below mean groups, 1 is nobody's to end.
MAX_PID = 1 << 22

# In the environment of every process of a run: the mark of the directory it was started for.
MARK = "FIREDRILL_DIRECTORY"
_ENVIRON_MAX_BYTES = 4 << 20  # an environment that is larger is none of ours
_STOPPED = ("T", "t")
_GONE = ("Z", "X", "x")


class Identity(msgspec.Struct, frozen=True, kw_only=True):
    """The identity of a process: more than its id, which the kernel gives to another one some day.

    ``start_ticks`` is when it started, in clock ticks since the machine booted.
    """

    pid: Annotated[int, Meta(gt=1, le=MAX_PID)]
    start_ticks: Annotated[int, Meta(ge=0)]

    def __str__(self) -> str:
        return f"{self.pid}.{self.start_ticks}"


@attrs.frozen(kw_only=True)
class Look:
    """The kernel's view of a process that has not ended."""

    identity: Identity
    paused: bool


def look(pid: int) -> Look | None:
    """The process with ``pid`` now; ``None`` where there is none or only a zombie is left."""
    try:
        # A process may give itself a name of any bytes.
        text = Path(f"/proc/{pid}/stat").read_text(errors="replace")
    # The second: it ended between the open and the read.
    except (FileNotFoundError, ProcessLookupError):
        return None
    # The name, in parentheses, may hold anything; 19 fields after the state stands the start.
    fields = text.rpartition(")")[2].split()
    state, start_ticks = fields[0], int(fields[19])
    if state in _GONE:
        return None
    return Look(identity=Identity(pid=pid, start_ticks=start_ticks), paused=state in _STOPPED)


def find(identity: Identity) -> Look | None:
    """``identity`` as it is now; ``None`` where it has ended, even if another process has its
    id.
    """
    found = look(identity.pid)
    return found if found and found.identity == identity else None


def usage(identity: Identity) -> NodeUsage | None:
    """What the process has used; ``None`` where it has ended. Its network is not its own here."""
    if find(identity) is None:
        return None
    here = Path(f"/proc/{identity.pid}")
    try:
        ticks = here.joinpath("stat").read_text(errors="replace").rpartition(")")[2].split()
        pages = here.joinpath("statm").read_text().split()[1]
        told = dict(line.split(": ") for line in here.joinpath("io").read_text().splitlines())
    # It ended meanwhile, or another user's rules keep its figures.
    except OSError:
        return None
    return NodeUsage(
        cpu_s=(int(ticks[11]) + int(ticks[12])) / os.sysconf("SC_CLK_TCK"),
        memory_bytes=int(pages) * os.sysconf("SC_PAGE_SIZE"),
        read_bytes=int(told["read_bytes"]),
        written_bytes=int(told["write_bytes"]),
    )


def machine_boot() -> str:
    """An identifier of this boot of the machine; start times of another one mean nothing here."""
    return Path("/proc/sys/kernel/random/boot_id").read_text().strip()


def marked(ours: str) -> list[Identity]:
    """Every living process that was started for the run whose mark is ``ours``, or by such a
    process.

    A run directory can claim any process, so the evidence is not in it: it is the environment that
    the process was started with (its directory may have been moved since, or made anew in its
    place), or, where a program has overwritten that, its output, which goes to a log of the run.
    """
    found = (look(int(entry)) for entry in os.listdir("/proc") if entry.isdigit())
    # Never this process, should one of a run have started it.
    every = [one.identity for one in found if one is not None and one.identity.pid != os.getpid()]
    return sorted((one for one in every if is_marked(one, ours)), key=lambda one: one.pid)


def is_marked(identity: Identity, ours: str) -> bool:
    """Whether the process that has this id now carries ``ours``, a ``directory_mark``."""
    proc = Path("/proc") / str(identity.pid)
    try:
        with (proc / "environ").open("rb") as environ:
            said = environ.read(_ENVIRON_MAX_BYTES)
    # It is gone, or another user's: in both cases not ours to end.
    except OSError:
        return False
    for entry in said.split(b"\0"):
        name, _, value = os.fsdecode(entry).partition("=")
        if name == MARK and same_directory(value, ours):
            return True
    nodes = f"{ours.split(':', 2)[2]}/nodes/"
    return any(_leads(proc / "fd" / number).startswith(nodes) for number in ("1", "2"))


def _leads(link: Path) -> str:
    try:
        return os.readlink(link)
    except OSError:
        return ""


def signal_group(identity: Identity, number: signal.Signals) -> bool:
    """Send ``number`` to the process and all in its group; whether it was still there to get it."""
    if find(identity) is None:
        return False
    try:
        os.killpg(identity.pid, number)
    except ProcessLookupError:
        return False
    return True


def kill_and_wait(identity: Identity, ours: str, limit_s: float) -> bool:
    """SIGKILL the process, if it carries ``ours``, and wait; whether it was there. Blocks up to
    ``limit_s``.

    Raises ``TimeoutError`` where it does not end: the kernel holds it in an uninterruptible call.
    """
    try:
        handle = os.pidfd_open(identity.pid)
    except ProcessLookupError:
        return False
    try:
        # The handle is of one process for good, so it is looked at only after it was opened.
        if find(identity) is None or not is_marked(identity, ours):
            return False
        with contextlib.suppress(ProcessLookupError):
            signal.pidfd_send_signal(handle, signal.SIGKILL)
        ended = select.poll()
        ended.register(handle, select.POLLIN)
        # Asked once more: it may have ended just behind the deadline of the poll.
        if not ended.poll(limit_s * 1000) and find(identity):
            raise TimeoutError(f"process {identity.pid} did not end within {limit_s:g} s")
        return True
    finally:
        with contextlib.suppress(OSError):
            os.close(handle)
