"""One node's program as a child of the controller: started through the gate, signalled, reaped."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path

import attrs

from clusters.providers.process import gate, procfs
from clusters.providers.process.cleanup import Ledger
from clusters.providers.process.procfs import Identity
from harness.errors import DeadlineExceeded, HarnessError
from harness.protocols.cluster import CommandResult

# From SIGKILL to the end of a process: its memory has to be given back first.
_END_LIMIT_S = 10.0
# A signal is delivered when the process next runs; on a busy machine that takes a moment.
_SIGNAL_LIMIT_S = 5.0
_POLL_S = 0.01
OUTPUT_BYTES = 4096  # the end of what a command said


@attrs.frozen(kw_only=True)
class Child:
    """A started program: its identity, and the handle that reaps it.

    The handle is not one of asyncio: that would kill the process with the loop, and a cluster that
    is kept outlives the loop.
    """

    node: str
    identity: Identity
    process: subprocess.Popen[bytes]

    @property
    def exit_text(self) -> str:
        """How the program ended, in words; empty while it runs."""
        code = self.process.poll()
        if code is None:
            return ""
        return f"killed by {signal.Signals(-code).name}" if code < 0 else f"exited with {code}"

    def signal(self, number: signal.Signals) -> None:
        """Send ``number`` to the program and its children; do nothing where it has ended."""
        procfs.signal_group(self.identity, number)

    async def ended(self, limit_s: float) -> bool:
        """Wait for the end and reap it; whether it came within ``limit_s``."""
        if self.process.poll() is not None:
            return True
        loop = asyncio.get_running_loop()
        over = asyncio.Event()
        handle = os.pidfd_open(
            self.process.pid
        )  # only this object reaps it: the id is still its own
        loop.add_reader(handle, over.set)
        try:
            async with asyncio.timeout(limit_s):
                await over.wait()
        except TimeoutError:
            return False
        finally:
            loop.remove_reader(handle)
            os.close(handle)
        # A pidfd is readable before the process is reaped; ``poll`` reaps it.
        return self.process.poll() is not None

    async def kill(self) -> None:
        """SIGKILL, and wait for the end. Raises ``DeadlineExceeded``."""
        self.signal(signal.SIGKILL)
        if not await self.ended(_END_LIMIT_S):
            raise DeadlineExceeded(f"{self.node}: SIGKILL to process {self.identity.pid}",
                                   _END_LIMIT_S)  # fmt: skip

    async def pause(self, paused: bool) -> None:
        """SIGSTOP or SIGCONT, and wait until it shows. Raises ``HarnessError`` where it has ended,
        ``DeadlineExceeded`` where it does not show.
        """
        number = signal.SIGSTOP if paused else signal.SIGCONT
        self.signal(number)
        try:
            async with asyncio.timeout(_SIGNAL_LIMIT_S):
                # No event reports that a process was stopped; the kernel only shows it.
                while (seen := procfs.find(self.identity)) and seen.paused != paused:  # noqa: ASYNC110
                    await asyncio.sleep(_POLL_S)
        except TimeoutError as error:
            what = f"{self.node}: {number.name} to process {self.identity.pid}"
            raise DeadlineExceeded(what, _SIGNAL_LIMIT_S) from error
        if seen is None:
            raise HarnessError(f"{self.node}: does not run, so {number.name} reaches nobody")


async def spawn(
    node: str,
    argv: tuple[str, ...],
    *,
    env: Mapping[str, str],
    work: Path,
    log: Path,
    ledger: Ledger,
    pass_fds: tuple[int, ...] = (),
) -> Child:
    """Start ``argv`` in ``work``, its output appended to ``log``, in a session of its own, with the
    descriptors ``pass_fds``.

    It runs only after the ledger has written its identity to the disk. Raises ``HarnessError``.
    """
    try:
        # -I -S: neither environment nor site-packages may run code ahead of the gate.
        command = (sys.executable, "-I", "-S", gate.__file__, *argv)
        marked = {**env, procfs.MARK: ledger.mark()}
        process = launch(command, env=marked, work=work, log=log, pass_fds=pass_fds)
    except OSError as error:
        raise HarnessError(f"{node}: can't start a process: {error.strerror}") from error
    try:
        found = procfs.look(process.pid)
        if found is None or process.stdin is None:
            raise HarnessError(f"{node}: process {process.pid} ended before it began, see {log}")
        await ledger.own(node, found.identity)
        _let_through(process)
    except BaseException:  # cancelled as well: a process in no ledger must not live
        process.kill()
        raise
    return Child(node=node, identity=found.identity, process=process)


def launch(
    argv: tuple[str, ...],
    *,
    env: Mapping[str, str] | None = None,
    work: Path | None = None,
    log: Path | None = None,
    pass_fds: tuple[int, ...] = (),
) -> subprocess.Popen[bytes]:
    """Start ``argv`` in a session of its own, its stdin a pipe of ours. Raises ``OSError``."""
    # Appended: a node that is started again writes on behind its earlier boots.
    with (log or Path(os.devnull)).open("ab") as output:
        return subprocess.Popen(
            argv,
            stdin=subprocess.PIPE,
            stdout=output,
            stderr=output,
            cwd=work,
            env=None if env is None else dict(env),
            # Its own process group with it: signals are meant for its children as well.
            start_new_session=True,
            pass_fds=pass_fds,
        )


def run_command(
    node: str, command: str, env: Mapping[str, str], work: Path, limit_s: float
) -> CommandResult:
    """Run ``command`` by ``sh`` in ``work``. Blocking. Raises ``HarnessError`` where it can't be
    started, ``DeadlineExceeded`` once it was ended.
    """
    try:
        # A file: what the command leaves running may hold its output open for good.
        with tempfile.TemporaryFile() as output:
            process = subprocess.Popen(
                ("sh", "-c", command),
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                cwd=work,
                env=dict(env),
                start_new_session=True,
            )
            try:
                status = process.wait(limit_s)
            except subprocess.TimeoutExpired as error:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGKILL)
                process.wait()
                raise DeadlineExceeded(f"{node}: a command of the plan", limit_s) from error
            output.seek(max(0, output.seek(0, os.SEEK_END) - OUTPUT_BYTES))
            said = output.read().decode("utf-8", "replace")
    except OSError as error:
        raise HarnessError(f"{node}: can't run a command: {error.strerror}") from error
    # As a shell tells it of what a signal ended.
    return CommandResult(status=128 - status if status < 0 else status, output=said)


def _let_through(process: subprocess.Popen[bytes]) -> None:
    """Open the gate. A process that was killed at the gate is noticed by the next probe of it."""
    if process.stdin is not None:
        with contextlib.suppress(BrokenPipeError), process.stdin as gate_pipe:
            gate_pipe.write(b"\n")
