"""Temporary directories that a command holds locked while it lives, so that those of commands that
were killed can be told apart and removed by the next one.

The lock is the kernel's: it ends with the last process that has its descriptor, however that ends.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import stat
import tempfile
from collections.abc import Iterator
from pathlib import Path

import attrs

from harness.errors import HarnessError
from harness.history.directory_locks import is_open_as, lock_directory, lock_new_directory

PREFIX, SUFFIX = "firedrill-", ".scratch"
_ATTEMPTS_MAX = 10


@attrs.frozen(kw_only=True)
class Scratch:
    """A directory, and the descriptor that locks it: a process that inherits it holds it too."""

    path: Path
    lock: int


@contextlib.contextmanager
def scratch_directory(purpose: str, parent: Path | None = None) -> Iterator[Scratch]:
    """Make a temporary directory named after ``purpose`` in ``parent``, or among the machine's; it
    is removed after the block. Raises ``HarnessError`` where none can be made.
    """
    made = lasting_scratch(purpose, parent)
    try:
        yield made
    finally:
        shutil.rmtree(made.path, ignore_errors=True)
        os.close(made.lock)


def lasting_scratch(purpose: str, parent: Path | None = None) -> Scratch:
    """Make such a directory that outlives any block: the sweep of the next command removes it,
    once no process that has its lock lives. Raises ``HarnessError``.
    """
    try:
        return _made(purpose, parent)
    except OSError as error:
        raise no_scratch(error) from error


def no_scratch(error: OSError) -> HarnessError:
    """Describe that no temporary directory can be made."""
    return HarnessError(f"no temporary directory can be made: {error.strerror}")


def supervised_scratch(purpose: str) -> Path:
    """The path of such a directory among the machine's temporary files, for a supervisor to make:
    one that this process made would stay where it is killed before it has started the supervisor.
    Raises ``HarnessError``.
    """
    try:
        # Not mkdtemp: the supervisor makes it, and refuses a name that is taken meanwhile.
        return Path(tempfile.mktemp(SUFFIX, f"{PREFIX}{purpose}-"))  # noqa: S306
    except OSError as error:
        raise no_scratch(error) from error


def sweep(parent: Path | None = None) -> None:
    """Remove this user's temporary directories in ``parent``, or among the machine's, that no
    living process holds. Never raises for one that can't be removed, and follows no link.
    """
    # Where no directory takes a file, there is none for temporary files either.
    with contextlib.suppress(OSError), os.scandir(parent or tempfile.gettempdir()) as entries:
        for entry in entries:
            if entry.name.startswith(PREFIX) and entry.name.endswith(SUFFIX):
                # Another sweep, or another user, may be at it.
                with contextlib.suppress(OSError):
                    _remove_unheld(Path(entry.path))


def _made(purpose: str, parent: Path | None) -> Scratch:
    for _ in range(_ATTEMPTS_MAX):
        path = Path(tempfile.mkdtemp(SUFFIX, f"{PREFIX}{purpose}-", parent))
        if (lock := lock_new_directory(path, shared=True)) is not None:
            return Scratch(path=path, lock=lock)
    raise HarnessError("no temporary directory can be made: each was removed by another process")


def _remove_unheld(path: Path) -> None:
    found = os.lstat(path)
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.geteuid():
        return
    lock = lock_directory(path, shared=False)
    if lock is None:
        return
    try:
        if is_open_as(path, lock):
            shutil.rmtree(path, ignore_errors=True)
    finally:
        os.close(lock)
