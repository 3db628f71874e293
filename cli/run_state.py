"""What holds a run: the processes that work on it, and what of it is up on this machine."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path

from harness.errors import FiredrillError, MalformedHistory
from harness.history.directory_locks import lock_directory, locked
from harness.history.run_directory import RunDirectory, require_plain

ON = "still driven"
JUDGED = "being judged"
UP = "its cluster is kept up"
LEFT = "processes of it are left: firedrill cleanup ends them"


def held_by(run: RunDirectory) -> str:
    """Return why the run can't be removed now: one of the words above, which only its directory
    could tell afterwards. Empty where nothing holds it, or where the directory has links in place
    of files, and so comes from elsewhere.
    """
    try:
        require_plain(run)
    except MalformedHistory:
        return ""
    if run.kept.exists():
        return UP
    if driven(run):
        return ON
    if _held_alone(run.root):
        return JUDGED
    return LEFT if _processes_left(run) else ""


def driven(run: RunDirectory) -> bool:
    """Tell whether a living controller writes to ``run``, or judges it while its nodes are up."""
    from clusters.providers.process.cleanup import driven as runs_nodes

    try:
        require_plain(run)
    except MalformedHistory:  # what is elsewhere is not this run's
        return False
    with contextlib.suppress(MalformedHistory):  # the clean-up itself reports it
        if runs_nodes(run.undo):
            return True
    # A controller holds it from its creation on; once it is sealed, it may be judged alone.
    if not run.history.exists() and _held_alone(run.root):
        return True
    try:
        handle = lock_directory(run.chunks, shared=False)
    except OSError:  # sealed, or never begun
        return False
    if handle is None:
        return True
    # Taken for the look only: a controller that begins now needs the lock.
    os.close(handle)
    return False


@contextlib.contextmanager
def holding(run: RunDirectory) -> Iterator[None]:
    """Hold the run against its removal within the block. Where another process does that already,
    or no lock can be had, the block runs all the same.
    """
    with contextlib.ExitStack() as stack:
        with contextlib.suppress(OSError):
            stack.enter_context(locked(run.root))
        yield


def _held_alone(directory: Path) -> bool:
    try:
        # Shared, so that two that look at once don't take each other for a controller.
        handle = lock_directory(directory, shared=True)
    except OSError:
        return False
    if handle is None:
        return True
    os.close(handle)
    return False


def _processes_left(run: RunDirectory) -> bool:
    from clusters.providers.process.cleanup import left

    with contextlib.suppress(FiredrillError, OSError):
        return left(run.undo) > 0
    return False
