"""Interactive access to a running node of local processes."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Sequence
from pathlib import Path

from clusters.providers.process import cleanup, procfs
from clusters.providers.process.procfs import Identity
from harness.errors import UsageError
from harness.history.run_directory import directory_mark


def running(state_dir: Path, node: str) -> Identity | None:
    """The process of ``node`` of the run with the ``undo`` directory ``state_dir``, if it runs and
    carries the run's mark: the list there can name any process.
    """
    owned = cleanup.read(state_dir)
    if owned is None or owned.boot != procfs.machine_boot():
        return None
    identity = owned.processes.get(node)
    if identity is None or procfs.find(identity) is None:
        return None
    return identity if procfs.is_marked(identity, directory_mark(state_dir.parent)) else None


def shell(state_dir: Path, node: str, argv: Sequence[str]) -> int:
    """Run ``argv``, or the user's shell, where ``node`` works and with what it sees; its exit code.

    Blocks for as long as the user likes. Raises ``UsageError`` where the node does not run, or
    there is no such command.
    """
    identity = running(state_dir, node)
    if identity is None:
        raise UsageError(f"node {node!r}: nothing of it runs (see firedrill logs)")
    command = list(argv) or [os.environ.get("SHELL") or "sh"]
    try:
        done = subprocess.run(
            command,
            cwd=state_dir.resolve().parent / "nodes" / node / "work",
            env=os.environ | _environment(identity) | {"FIREDRILL_NODE": node},
            check=False,
        )
    except OSError as error:
        raise UsageError(f"node {node!r}: can't run {command[0]!r}: {error.strerror}") from error
    return done.returncode if done.returncode >= 0 else 128 - done.returncode


def _environment(identity: Identity) -> dict[str, str]:
    """The environment that the node's program was started with, and its process id."""
    try:
        content = Path(f"/proc/{identity.pid}/environ").read_bytes()
    except OSError:  # ended meanwhile
        content = b""
    pairs = (item.partition(b"=") for item in content.split(b"\0") if b"=" in item)
    seen = {os.fsdecode(name): os.fsdecode(value) for name, _, value in pairs}
    return seen | {"FIREDRILL_PID": str(identity.pid)}
