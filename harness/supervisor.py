"""Supervises one command, as a program of its own:
``supervisor.py CALLER READY SCRATCH LOG COMMAND...``.

The supervisor makes the directory SCRATCH, locks it, and says so on the pipe READY. It kills the
command and every descendant of it as soon as the command ends, the process CALLER ends (kill -9
included), or CALLER closes the supervisor's standard input. It then removes SCRATCH: a killed
caller leaves no files either, since it never has a directory that is not guarded yet.

Descendants are found by adoption (``PR_SET_CHILD_SUBREAPER``): the children of a dying process
become the supervisor's children, in any session or group. The supervisor runs by path, in an
isolated interpreter without site packages, and starts before the command: no moment is unguarded.
It imports nothing but the standard library for that.

``die_with_parent`` and ``limit_memory`` are what every forked process of the harness asks of the
kernel for itself.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import fcntl
import os
import resource
import select
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

LIMIT_MAX_BYTES = 1 << 62  # more does not fit what the kernel is told
# The deadline for killed processes to disappear: the kernel takes its time to free gigabytes.
KILL_LIMIT_S = 10.0
KILL_PAUSE_S = 0.01
END_LIMIT_S = KILL_LIMIT_S + 2.0  # the supervisor's own, and removing the scratch directory
# The deadline for the supervisor to stand: an interpreter, some 15 ms, on a machine that starves.
START_LIMIT_S = 60.0
SCRATCH_ATTEMPTS_MAX = 10
EXIT_NOT_STARTED = 127
# The offset of the exit code of a command that a signal ended, as in shells.
EXIT_OF_SIGNAL = 128

_PR_SET_PDEATHSIG, _PR_SET_CHILD_SUBREAPER = 1, 36  # <linux/prctl.h>
_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
_READY = b"ready"


class NoScratch(OSError):
    """The supervisor could not make its command's directory."""


class Supervised:
    """A command that can't outlive this process; see the module."""

    def __init__(
        self,
        command: Sequence[str],
        scratch: Path,
        *,
        environment: dict[str, str] | None = None,
        log: str = "",
        pass_fds: Sequence[int] = (),
    ) -> None:
        """Start ``command``, with the new directory ``scratch`` for its temporary files. Its
        standard input stays open as long as it may live. With ``log`` it runs in ``scratch``, and
        the file of that name there takes its standard error. Raises ``OSError``, ``NoScratch``
        where ``scratch`` can't be made.
        """
        self.scratch, self._made = scratch, False
        reader, writer = os.pipe()
        caller = (str(os.getpid()), str(writer), str(scratch), log)
        try:
            self._process = subprocess.Popen(
                [sys.executable, "-I", "-S", __file__, *caller, *command],
                stdin=subprocess.PIPE,
                env=environment,
                pass_fds=(*pass_fds, writer),
                start_new_session=True,  # what ends the caller's group must not end its supervisor
            )
        except BaseException:
            os.close(reader)
            raise
        finally:
            os.close(writer)
        try:
            _await_ready(reader)
            self._made = True
        # An interruption must not leave the command behind either.
        except BaseException:
            self.end()
            raise
        finally:
            os.close(reader)

    def poll(self) -> int | None:
        """Return the command's exit code, 128 plus the signal that ended it, or ``None`` while it
        lives.
        """
        return self._process.poll()

    def wait(self, timeout_s: float | None = None) -> int:
        """Return ``poll`` after the command's end. Raises ``subprocess.TimeoutExpired``."""
        return self._process.wait(timeout_s)

    def end(self) -> None:
        """Kill the rest of the command's processes, and return when they are gone."""
        if self._process.stdin is not None:
            with contextlib.suppress(OSError):
                self._process.stdin.close()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(END_LIMIT_S)
            if self._made:  # by a supervisor that may have been killed itself
                shutil.rmtree(self.scratch, ignore_errors=True)


def _await_ready(reader: int) -> None:
    """Wait until the supervisor has made its directory. Raises ``OSError``."""
    waiting = select.poll()
    waiting.register(reader, select.POLLIN)
    if not waiting.poll(START_LIMIT_S * 1000):
        raise TimeoutError(errno.ETIMEDOUT, f"no supervisor within {START_LIMIT_S:g} s")
    told = os.read(reader, 64)  # written at once, or not at all
    if told.isdigit():
        raise NoScratch(int(told), os.strerror(int(told)))
    if told != _READY:
        raise OSError(errno.ECHILD, "its supervisor ended at once")


def main(argv: list[str]) -> int:
    """Supervise; the exit code is that of ``Supervised.poll``."""
    caller, ready, scratch, log, command = int(argv[0]), int(argv[1]), *argv[2:4], argv[4:]
    for number in _SIGNALS:
        # What ends the caller must not end the process that cleans up after it.
        signal.signal(number, signal.SIG_IGN)
    _prctl(_PR_SET_CHILD_SUBREAPER, 1)
    code = EXIT_NOT_STARTED
    with contextlib.suppress(ProcessLookupError):  # a caller that is gone already
        watched = os.pidfd_open(caller)
        # Else the caller ended in between, and its number may be another process's by now.
        if os.getppid() == caller and _made(scratch, log, ready):
            code = _run(command, watched)
            _kill_descendants()
            shutil.rmtree(scratch, ignore_errors=True)
    return code


def _made(scratch: str, log: str, ready: int) -> bool:
    """Make the directory and what goes there; tell on ``ready`` whether that was possible."""
    try:
        _make_locked(scratch)
        os.environ["TMPDIR"] = scratch
        if log:
            errors = os.open(f"{scratch}/{log}", os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
            os.dup2(errors, 2)
            os.close(errors)
            os.chdir(scratch)
    except OSError as error:
        if not isinstance(error, FileExistsError):  # else it is another's
            shutil.rmtree(scratch, ignore_errors=True)
        _tell(ready, str(error.errno).encode())
        return False
    _tell(ready, _READY)
    return True


def _tell(ready: int, word: bytes) -> None:
    # A caller that is gone is noticed by its handle.
    with contextlib.suppress(BrokenPipeError):
        os.write(ready, word)
    os.close(ready)  # the command must not have it


def _make_locked(scratch: str) -> None:
    """Make the directory, and lock it for this process and the command: while either lives, it is
    no sweep's to remove (``harness.scratch``). Raises ``OSError``.
    """
    # As ``directory_locks.lock_new_directory``, again: this module is run as a file, by itself, and
    # may import the standard library alone.
    for _ in range(SCRATCH_ATTEMPTS_MAX):
        os.mkdir(scratch, 0o700)
        # A sweep may come between the two: it holds what it finds unheld, and removes it.
        with contextlib.suppress(FileNotFoundError):
            lock = os.open(scratch, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
            fcntl.flock(lock, fcntl.LOCK_SH)
            if os.path.samestat(os.lstat(scratch), os.fstat(lock)):
                os.set_inheritable(lock, True)
                return
            os.close(lock)
    raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST))


def die_with_parent(parent: int) -> bool:
    """Have the kernel kill this process as soon as ``parent``, which forked it, ends; return
    whether that process still lives. Raises ``OSError``.
    """
    _prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    # After the request: of a parent that ended before it the kernel sends no signal any more.
    return os.getppid() == parent


def limit_memory(limit_bytes: int) -> None:
    """Limit the memory that this process and those that it starts may write to, each for itself.

    Not the address space: much of that is only reserved, and files that are mapped cost nothing. A
    lower limit that was set from outside stays.
    """
    _, hard = resource.getrlimit(resource.RLIMIT_DATA)
    limit = min(limit_bytes, LIMIT_MAX_BYTES)
    # Infinity is -1, which ``min`` would take for the lower one.
    limit = limit if hard == resource.RLIM_INFINITY else min(hard, limit)
    resource.setrlimit(resource.RLIMIT_DATA, (limit, hard))


def memory_limit_bytes() -> int | None:
    """Return the limit that ``limit_memory`` set; ``None`` where there is none."""
    limit, _ = resource.getrlimit(resource.RLIMIT_DATA)
    return None if limit == resource.RLIM_INFINITY else limit


def _run(command: list[str], caller: int) -> int:
    """Return the command's exit code, or that of SIGKILL where it must not go on."""
    # The command's input, which ends with this process, however that ends. It must not be the
    # caller's, whose end only this process is to notice.
    lifeline, kept = os.pipe()
    parent = os.getpid()
    child = os.fork()
    if child == 0:
        _become(command, lifeline, parent)
    os.close(lifeline)
    ended = os.pidfd_open(child)
    waiting = select.poll()
    for handle in (sys.stdin.fileno(), caller, ended):
        waiting.register(handle, select.POLLIN)
    while True:
        ready = [handle for handle, _ in waiting.poll()]
        # First: a command that ended by itself has its own exit code, even if its caller ends too.
        if ended in ready:
            os.close(kept)
            _, status = os.waitpid(child, 0)
            code = os.waitstatus_to_exitcode(status)
            return code if code >= 0 else EXIT_OF_SIGNAL - code
        # Bytes from the caller mean nothing: only the end of them does.
        if caller in ready or not os.read(sys.stdin.fileno(), 64):
            return EXIT_OF_SIGNAL + signal.SIGKILL


def _become(command: list[str], lifeline: int, parent: int) -> None:
    """Turn this process, a fork of the supervisor ``parent``, into ``command``; it dies with it."""
    try:
        if die_with_parent(parent):
            for number in _SIGNALS:
                # An ignored signal stays ignored across ``exec``.
                signal.signal(number, signal.SIG_DFL)
            # Only this copy survives ``exec``. The pipe's own ends do not: if the command held the
            # writing one, its input would never end.
            os.dup2(lifeline, 0)
            os.execvp(command[0], command)  # noqa: S606 (a list, and no shell)
    except OSError as error:
        os.write(2, f"{command[0]}: {error.strerror}\n".encode())
    finally:
        # Not ``sys.exit``: a fork must not go on in the supervisor's code, and remove its files.
        os._exit(EXIT_NOT_STARTED)


def _kill_descendants() -> None:
    """Kill until no child is left, in rounds: the children of the dead become children of this
    process.
    """
    ends_s = time.monotonic() + KILL_LIMIT_S
    while time.monotonic() < ends_s:
        # ``waitpid`` raises it where no child is left, and the ``return`` below is reached.
        with contextlib.suppress(ChildProcessError):
            # Before the listing, in which a zombie would still be.
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass
            for pid in descendants(os.getpid()):
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            time.sleep(KILL_PAUSE_S)
            continue
        return


def descendants(root: int) -> list[int]:
    """Return the processes below ``root`` as they are now, zombies as well, parents first."""
    children: dict[int, list[int]] = {}
    for entry in os.listdir("/proc"):
        if entry.isdecimal():
            # A process may end between the listing and this look.
            with contextlib.suppress(OSError), open(f"/proc/{entry}/stat", "rb") as stat:
                # The name, in parentheses, may hold anything; after it: state, parent.
                parent = int(stat.read().rpartition(b")")[2].split()[1])
                children.setdefault(parent, []).append(int(entry))
    found: list[int] = []
    pending = [root]
    while pending:
        below = children.get(pending.pop(), [])
        found += below
        pending += below
    return found


def _prctl(option: int, value: int) -> None:
    if ctypes.CDLL(None, use_errno=True).prctl(option, value, 0, 0, 0):
        raise OSError(ctypes.get_errno(), f"prctl {option}")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
