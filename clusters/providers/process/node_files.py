"""The places of a node's files in the run directory, and a program put there."""

from __future__ import annotations

import contextlib
import re
import shutil
import sys
import time
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path

import attrs

from harness.errors import HarnessError, UsageError
from harness.history.durable_files import begin, disk_failure, publish
from harness.protocols.cluster import NODE_LOG_BYTES, LogPiece, Program, PythonTree

_BLOCK_BYTES = 1 << 20


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


def collect_log(source: Path, into: Path, limit_bytes: int = NODE_LOG_BYTES) -> int:
    """Put a log into the directory ``into``, its end of ``limit_bytes`` where it is longer. Returns
    the number of bytes left out. Raises ``HarnessError``.

    A log that stands in ``into`` itself stays there if it is short enough. Otherwise its end takes
    its name, and the program goes on writing to the whole log, under the name of ``whole_log``.
    """
    target, whole = into / source.name, whole_log(source)
    try:
        if not whole.exists():
            whole = source
        if not whole.exists():
            return 0
        size_bytes = whole.stat().st_size
        in_place = target.exists() and target.samefile(whole)
        if in_place and size_bytes <= limit_bytes:
            return 0
        if whole == source and in_place:
            whole = whole_log(source)
            whole.hardlink_to(source)
        into.mkdir(parents=True, exist_ok=True)
        _publish_end(whole, size_bytes, limit_bytes, target)
        return max(0, size_bytes - limit_bytes)
    except OSError as error:
        raise disk_failure("collect", source, error, "its end is missing") from error


def whole_log(source: Path) -> Path:
    """The name of a log of which only the end was collected."""
    return source.with_name(f"{source.name}.whole")


def _publish_end(whole: Path, size_bytes: int, limit_bytes: int, target: Path) -> None:
    """Make ``target`` the last ``limit_bytes`` of the first ``size_bytes`` of ``whole``."""
    unfinished = begin(target)
    try:
        with whole.open("rb") as log, unfinished.open("wb") as end:
            log.seek(max(0, size_bytes - limit_bytes))
            # Up to the size that was read: a program that writes on must not move the beginning.
            left = min(size_bytes, limit_bytes)
            while left > 0 and (block := log.read(min(left, _BLOCK_BYTES))):
                end.write(block)
                left -= len(block)
        publish(unfinished, target)
    finally:
        unfinished.unlink(missing_ok=True)


def remove_whole_log(source: Path) -> None:
    """Give back the room of a log of which the end was collected, once no process writes it. Raises
    ``HarnessError``.
    """
    try:
        whole_log(source).unlink(missing_ok=True)
    except OSError as error:
        raise HarnessError(f"cannot remove {whole_log(source)}: {error.strerror}") from error


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
