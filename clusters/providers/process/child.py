"""One node's program as a child of the controller: started through the gate, signalled, reaped."""

from __future__ import annotations

import asyncio
import signal
import sys
from collections.abc import Mapping
from pathlib import Path

import attrs

from clusters.providers.process import gate, procfs
from clusters.providers.process.ledger import Ledger
from clusters.providers.process.procfs import Identity
from harness.errors import DeadlineExceeded, HarnessError

# From SIGKILL to the end of a process: its memory has to be given back first.
_END_LIMIT_S = 10.0
# A signal is delivered when the process next runs; on a busy machine that takes a moment.
_SIGNAL_LIMIT_S = 5.0
_POLL_S = 0.01


@attrs.frozen(kw_only=True)
class Child:
    """A started program: who it is, and the handle that reaps it."""

    node: str
    identity: Identity
    process: asyncio.subprocess.Process

    @property
    def exit_text(self) -> str:
        """How it ended, in words; empty while it runs."""
        code = self.process.returncode
        if code is None:
            return ""
        return f"killed by {signal.Signals(-code).name}" if code < 0 else f"exited with {code}"

    def signal(self, number: signal.Signals) -> None:
        """Send ``number`` to the program and what it started; nothing where it has ended."""
        procfs.signal_group(self.identity, number)

    async def ended(self, limit_s: float) -> bool:
        """Wait for the end and reap it; whether it came within ``limit_s``."""
        try:
            async with asyncio.timeout(limit_s):
                await self.process.wait()
        except TimeoutError:
            return False
        return True

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
                # Nobody tells when a process was stopped; the kernel only shows it.
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
) -> Child:
    """Start ``argv`` in ``work``, its output appended to ``log``, in a session of its own.

    It runs once the ledger has it on the disk. Raises ``HarnessError``.
    """
    command = (sys.executable, "-I", "-S", gate.__file__, *argv)
    try:
        with log.open("ab") as output:
            process = await asyncio.create_subprocess_exec(
                *command,
                stdin=asyncio.subprocess.PIPE,
                stdout=output,
                stderr=output,
                cwd=work,
                env=dict(env),
                start_new_session=True,
            )
    except OSError as error:
        raise HarnessError(f"{node}: can't start a process: {error.strerror}") from error
    try:
        found = procfs.look(process.pid)
        if found is None or process.stdin is None:
            raise HarnessError(f"{node}: process {process.pid} ended before it began, see {log}")
        await ledger.own(node, found.identity)
        process.stdin.write(b"\n")
        process.stdin.close()
    except BaseException:  # cancelled as well: what stands in no ledger must not live
        if process.returncode is None:
            process.kill()
        raise
    return Child(node=node, identity=found.identity, process=process)
