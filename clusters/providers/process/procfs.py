"""Processes as the kernel shows them: who it really is that has a process id now."""

from __future__ import annotations

import contextlib
import os
import select
import signal
from pathlib import Path

import attrs
import msgspec

_STOPPED = ("T", "t")
_GONE = ("Z", "X", "x")


class Identity(msgspec.Struct, frozen=True, kw_only=True):
    """A process, not only its id, which the kernel gives to another one some day.

    ``start_ticks`` is when it started, in clock ticks since the machine booted.
    """

    pid: int
    start_ticks: int

    def __str__(self) -> str:
        return f"{self.pid}.{self.start_ticks}"


@attrs.frozen(kw_only=True)
class Look:
    """What the kernel shows of a process that has not ended."""

    identity: Identity
    paused: bool


def look(pid: int) -> Look | None:
    """The process with ``pid`` now; ``None`` where there is none or only a zombie is left."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text(errors="replace")
    except (FileNotFoundError, ProcessLookupError):
        return None
    # The name, in parentheses, may hold anything; 19 fields after the state stands the start.
    fields = text.rpartition(")")[2].split()
    state, start_ticks = fields[0], int(fields[19])
    if state in _GONE:
        return None
    return Look(identity=Identity(pid=pid, start_ticks=start_ticks), paused=state in _STOPPED)


def find(identity: Identity) -> Look | None:
    """``identity`` as it is now; ``None`` where it has ended, whoever has its id."""
    found = look(identity.pid)
    return found if found and found.identity == identity else None


def machine_boot() -> str:
    """An identifier of this boot of the machine; start times of another one mean nothing here."""
    return Path("/proc/sys/kernel/random/boot_id").read_text().strip()


def signal_group(identity: Identity, number: signal.Signals) -> bool:
    """Send ``number`` to the process and all in its group; whether it was still there to get it."""
    if find(identity) is None:
        return False
    try:
        os.killpg(identity.pid, number)
    except ProcessLookupError:
        return False
    return True


def kill_and_wait(identity: Identity, limit_s: float) -> bool:
    """SIGKILL the process and its group, and wait; whether it was there. Blocks up to ``limit_s``.

    Raises ``TimeoutError`` where it does not end: the kernel holds it in an uninterruptible call.
    """
    try:
        handle = os.pidfd_open(identity.pid)
    except ProcessLookupError:
        return False
    try:
        # The handle is of one process for good, so it is looked at only after it was opened.
        if not signal_group(identity, signal.SIGKILL):
            return False
        ended = select.poll()
        ended.register(handle, select.POLLIN)
        if not ended.poll(limit_s * 1000) and find(identity):
            raise TimeoutError(f"process {identity.pid} did not end within {limit_s:g} s")
        return True
    finally:
        with contextlib.suppress(OSError):
            os.close(handle)
