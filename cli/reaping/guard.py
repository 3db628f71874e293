"""Starts the processes that heal after a run, its reaper and its watchdog, and releases them when
nothing is left to heal.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable

import attrs

from cli.reaping import reaper, watchdog
from harness.errors import HarnessError
from harness.history.run_directory import RunDirectory

LET_GO_LIMIT_S = 0.2  # past it they are killed: an interpreter may not even have begun to read


@attrs.define
class ReaperGuard:
    """Two processes that heal after the death of this one: the reaper, and a watchdog that acts
    where the reaper is gone, too. See ``cli.reaping.reaper`` and ``cli.reaping.watchdog``.
    """

    _processes: tuple[subprocess.Popen[bytes], ...]
    _expected: Callable[[], tuple[str, ...]] = tuple
    _released: bool = False

    @classmethod
    def start(cls, run: RunDirectory, provider: str) -> ReaperGuard:
        """Guard this process from now on, for ``run``. Raises ``HarnessError``."""
        root = run.root.resolve()
        words = (root.name, str(root), provider, str(os.getpid()))
        reaping = _start("reaper", reaper.__name__, *words)
        # Of the reaper alone, so that it is let go where the watchdog does not start.
        remains = reaper.remains_of(root.name, root, provider, None)
        expected = remains.expected if remains else tuple
        guard = cls((reaping,))
        try:
            watching = _start("watchdog", watchdog.__name__, *words, str(reaping.pid))
        except HarnessError:
            guard.release()
            raise
        return cls((reaping, watching), expected)

    def release(self) -> None:
        """End both processes, since nothing is left to heal, and wait for their end. Idempotent.
        Does nothing while the daemon may still make what it was asked for: that is to be handed
        over.
        """
        if self._released or self._expected():
            return
        self._released = True
        for process in reversed(self._processes):  # the watchdog first: it waits for the reaper
            try:
                process.communicate(reaper.RELEASE, timeout=LET_GO_LIMIT_S)
            except (OSError, subprocess.TimeoutExpired):
                process.kill()
                process.wait()

    @property
    def released(self) -> bool:
        """Whether they were released."""
        return self._released

    def hand_over(self) -> None:
        """Let both processes act now, while this process lives: the rest is their
        work. Idempotent.
        """
        for process in self._processes:
            if not self._released and process.stdin is not None:
                # The end of their input without the word of release is the order to act.
                process.stdin.close()


def _start(what: str, module: str, *words: str) -> subprocess.Popen[bytes]:
    try:
        return subprocess.Popen(
            [sys.executable, "-P", "-m", module, *words],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            # They outlive the command, and must not keep its working directory in use.
            cwd="/",
            start_new_session=True,  # Ctrl-C is for the controller
        )
    except OSError as error:
        raise HarnessError(f"cannot start the run's {what}: {error.strerror}") from error
