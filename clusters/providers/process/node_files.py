"""The places of a node's files in the run directory, and a program put there."""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import sys
import time
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path

import attrs

from harness.errors import HarnessError, UsageError
from harness.protocols.cluster import LogPiece, Program, PythonTree

# Of a log that is longer, the end is kept: that is where the story of a failure is.
LOG_LIMIT_BYTES = 64 << 20


@attrs.frozen(kw_only=True)
class Layout:
    """The directories of one node: ``root`` for logs, below it the program's own."""

    root: Path

    @property
    def work(self) -> Path:
        """The program's working directory, with its data."""
        return self.root / "work"

    @property
    def python(self) -> Path:
        """The import path of the program: links to the trees it needs, and nothing else of
        theirs.
        """
        return self.root / "python"

    def log(self, program: Program) -> Path:
        """Where the program's output goes."""
        return _inside(self.root, program.log)


def place(layout: Layout, program: Program) -> None:
    """Put the program's files and code where it will run; again over what is there."""
    layout.work.mkdir(parents=True, exist_ok=True)
    layout.log(program).parent.mkdir(parents=True, exist_ok=True)
    for name, content in sorted(program.files.items()):
        path = _inside(layout.work, name)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
    if layout.python.exists():
        shutil.rmtree(layout.python)
    for tree in program.python:
        _link(layout.python, tree)


def wipe(layout: Layout, program: Program) -> None:
    """Remove all below the working directory that ``program`` has written. Idempotent."""
    for path in _data(layout, program):
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
        else:
            path.unlink(missing_ok=True)


def data_bytes(layout: Layout, program: Program) -> int:
    """The size of all that ``wipe`` would remove."""
    found = 0
    for path in _data(layout, program):
        files = path.rglob("*") if path.is_dir() else (path,)
        for file in files:
            with contextlib.suppress(FileNotFoundError):  # a running program replaces its files
                found += file.lstat().st_size if file.is_file() else 0
    return found


def _data(layout: Layout, program: Program) -> list[Path]:
    """What stands in the working directory beside the program's own files."""
    own = {Path(name).parts[0] for name in program.files}
    return sorted(path for path in layout.work.iterdir() if path.name not in own)


def lacking(lock: Path) -> list[str]:
    """The requirements of a lock file that the controller's interpreter lacks. Raises ``OSError``.

    Nothing is installed here: a program shares that interpreter, whose versions may be others.
    """
    names = re.findall(r"^([A-Za-z0-9][A-Za-z0-9._-]*)==", lock.read_text(), re.MULTILINE)
    return [name for name in names if not _installed(name)]


def _installed(name: str) -> bool:
    try:
        distribution(name)
    except PackageNotFoundError:
        return False
    return True


def argument_vector(program: Program) -> tuple[str, ...]:
    """How to run it here: ``python3`` is the interpreter that runs the controller."""
    head, *rest = program.argv
    return (sys.executable if head == "python3" else head, *rest)


def copy_log(source: Path, into: Path) -> None:
    """Copy a log into the directory ``into``, its end where it is too long."""
    target = into / source.name
    if not source.exists() or (target.exists() and target.samefile(source)):
        return
    into.mkdir(parents=True, exist_ok=True)
    with source.open("rb") as log, target.open("wb") as copy:
        log.seek(max(0, source.stat().st_size - LOG_LIMIT_BYTES))
        shutil.copyfileobj(log, copy)


def read_piece(source: Path, offset: int, limit_bytes: int) -> LogPiece:
    """A part of a log, empty where there is none. Raises ``HarnessError``."""
    wall_ns = time.time_ns()
    try:
        with source.open("rb") as log:
            log.seek(offset)
            return LogPiece(content=log.read(limit_bytes), wall_ns=wall_ns)
    except FileNotFoundError:
        return LogPiece(content=b"", wall_ns=wall_ns)
    except OSError as error:
        raise HarnessError(f"{source}: {error.strerror}") from error


def cut_log(source: Path, limit_bytes: int = LOG_LIMIT_BYTES) -> None:
    """Keep only the end of a log that is too long and that no process writes any more."""
    try:
        if not source.exists() or source.stat().st_size <= limit_bytes:
            return
        shorter = source.with_name(f".{source.name}.end")
        with source.open("rb") as log, shorter.open("wb") as end:
            log.seek(-limit_bytes, os.SEEK_END)
            shutil.copyfileobj(log, end)
        shorter.replace(source)
    except OSError as error:
        raise HarnessError(f"cannot shorten {source}: {error.strerror}") from error


def _inside(directory: Path, name: str) -> Path:
    """``name`` below ``directory``. Raises ``UsageError`` for a name that leads elsewhere."""
    relative = Path(name)
    if relative.is_absolute() or ".." in relative.parts or not relative.parts:
        raise UsageError(f"program file {name!r}: needs a path below the work directory")
    return directory / relative


def _link(python: Path, tree: PythonTree) -> None:
    """Make ``tree`` importable under its name: empty packages above it, and a link to it."""
    source = Path(tree.source).resolve()
    if not source.is_dir():
        raise HarnessError(f"package {tree.package!r}: {source} is no directory")
    *above, last = tree.package.split(".")
    parent = python
    parent.mkdir(parents=True, exist_ok=True)
    for name in above:
        parent /= name
        parent.mkdir(exist_ok=True)
        (parent / "__init__.py").touch()
    (parent / last).symlink_to(source, target_is_directory=True)
