"""Starts the reaper of a run, and lets it go when nothing is left to heal."""

from __future__ import annotations

import os
import subprocess
import sys

import attrs

from harness.cli import reaper
from harness.errors import HarnessError
from harness.rundir import RunDirectory

LET_GO_LIMIT_S = 10.0  # an interpreter that ends on a loaded machine


@attrs.define
class ReaperGuard:
    """A process of its own, which heals what this one leaves. See ``harness.cli.reaper``."""

    _process: subprocess.Popen[bytes]
    _released: bool = False

    @classmethod
    def start(cls, run: RunDirectory, provider: str) -> ReaperGuard:
        """Watch over this process from now on, for ``run``. Raises ``HarnessError``."""
        root = run.root.resolve()
        words = (root.name, str(root), provider, str(os.getpid()))
        try:
            return cls(
                subprocess.Popen(
                    [sys.executable, "-P", "-m", reaper.__name__, *words],
                    stdin=subprocess.PIPE,
                    stdout=subprocess.DEVNULL,
                    stderr=subprocess.DEVNULL,
                    cwd="/",
                    start_new_session=True,  # Ctrl-C is for the controller
                )
            )
        except OSError as error:
            raise HarnessError(f"cannot start the run's reaper: {error.strerror}") from error

    def release(self) -> None:
        """Nothing is left to heal: it ends, and is waited for. Idempotent."""
        if self._released or self._process.stdin is None:
            return
        self._released = True
        try:
            self._process.communicate(reaper.RELEASE, timeout=LET_GO_LIMIT_S)
        except (OSError, subprocess.TimeoutExpired):  # it read the word, or nobody is there
            return

    @property
    def released(self) -> bool:
        """Whether it was let go."""
        return self._released

    def hand_over(self) -> None:
        """Let it act now, while this process lives: what is left is its work. Idempotent."""
        if not self._released and self._process.stdin is not None:
            self._process.stdin.close()
