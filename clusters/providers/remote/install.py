"""Putting a program on a machine: code below one directory, its own files in another."""

from __future__ import annotations

import io
import tarfile
from collections.abc import Iterator, Mapping
from pathlib import Path, PurePosixPath

import attrs

from clusters.providers.remote import requirements
from clusters.providers.remote.program import Launch
from clusters.providers.remote.ssh_session import Session
from harness.errors import UsageError
from harness.protocols.cluster import Program, PythonTree

UNPACK_LIMIT_S = 60.0
COMPILE_LIMIT_S = 120.0
LIBRARIES, TREES = "libraries", "trees"

# Whatever can't be compiled is compiled, or found wrong, as it is imported.
_COMPILE = '"$1" -m compileall -q -- "$2" >/dev/null 2>&1 || true'
_UNPACK = 'set -eu; mkdir -p -- "$1"; tar --extract --no-same-owner --directory="$1"'


@attrs.frozen(kw_only=True)
class Places:
    """Where things stand on a machine."""

    code: str
    work: str
    pid_file: str


def install(session: Session, program: Program, places: Places) -> Launch:
    """Unpack ``program`` and return how to start it. Blocking.

    Raises ``UsageError`` for a program that can't be installed anywhere.
    """
    code = {f"{TREES}/{path}": entry for path, entry in python_trees(program.python).items()}
    interpreter = "python3"
    if program.argv[0] == "python3" or program.python or program.requirements:
        found = requirements.look(session)
        interpreter = found.path
        if program.requirements is not None:
            code |= directory(requirements.fetch(Path(program.requirements), found), LIBRARIES)
    files = {path: (content, 0o644) for path, content in program.files.items()}
    _unpack(session, places.code, archive(code))
    if code:
        # Else the first start compiles it: two thirds of its time, in the midst of a run for a node
        # that joins, and on machines that have no core to spare some seconds.
        session.run(
            ["sh", "-c", _COMPILE, "sh", interpreter, places.code],
            limit_s=COMPILE_LIMIT_S,
            name=f"compiling {places.code}",
        )
    _unpack(session, places.work, archive(files))
    argv = program.argv
    if argv[0] == "python3":
        argv = (interpreter, *argv[1:])
    return Launch(
        argv=argv,
        env=_environment(program, places),
        work_dir=places.work,
        log=str(Path(places.work, safe_path(program.log))),
        pid_file=places.pid_file,
        own=tuple(sorted({PurePosixPath(n).parts[0] for n in (*program.files, program.log)})),
    )


def _environment(program: Program, places: Places) -> dict[str, str]:
    environment = {
        "PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
        # A log that is written late loses its end at kill -9, which is when it is read.
        "PYTHONUNBUFFERED": "1",
    }
    if program.python or program.requirements:
        environment["PYTHONPATH"] = f"{places.code}/{TREES}:{places.code}/{LIBRARIES}"
    return environment | program.env


def _unpack(session: Session, directory: str, data: bytes) -> None:
    session.run(
        ["sh", "-c", _UNPACK, "sh", directory],
        limit_s=UNPACK_LIMIT_S,
        name=f"unpacking into {directory}",
        stdin=data,
    )


SIZE_LIMIT_BYTES = 256 << 20  # code and libraries of one program, unpacked
SKIPPED_DIRECTORIES = ("__pycache__",)


def safe_path(relative: str) -> str:
    """``relative`` itself, if it stays below the directory it is unpacked in. Raises
    ``UsageError``.
    """
    path = PurePosixPath(relative)
    if path.is_absolute() or ".." in path.parts or not path.parts:
        raise UsageError(f"file {relative!r} of a program must be a path below its work directory")
    return str(path)


def archive(files: Mapping[str, tuple[bytes, int]]) -> bytes:
    """A tar of ``{path: (content, mode)}``: sorted, owned by root, without times."""
    size = sum(len(content) for content, _ in files.values())
    if size > SIZE_LIMIT_BYTES:
        raise UsageError(f"a program's files hold {size} bytes (limit {SIZE_LIMIT_BYTES})")
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w", format=tarfile.PAX_FORMAT) as tar:
        for path in sorted(files):
            content, mode = files[path]
            entry = tarfile.TarInfo(safe_path(path))
            entry.size, entry.mode, entry.mtime = len(content), mode, 0
            tar.addfile(entry, io.BytesIO(content))
    return buffer.getvalue()


def _regular_files(root: Path) -> Iterator[Path]:
    for path in sorted(root.rglob("*")):
        if path.is_file() and not any(part in SKIPPED_DIRECTORIES for part in path.parts):
            yield path


def directory(root: Path, below: str = "") -> dict[str, tuple[bytes, int]]:
    """The files under ``root`` as entries for ``archive``, placed under ``below``."""
    return {
        str(PurePosixPath(below, path.relative_to(root).as_posix())): (
            path.read_bytes(),
            0o755 if path.stat().st_mode & 0o100 else 0o644,
        )
        for path in _regular_files(root)
    }


def python_trees(trees: tuple[PythonTree, ...]) -> dict[str, tuple[bytes, int]]:
    """The trees as entries for ``archive``: each importable by its package's name.

    A package's parents become empty packages, without the code that they hold on the controller.
    """
    entries: dict[str, tuple[bytes, int]] = {}
    for tree in trees:
        parts = tree.package.split(".")
        source = Path(tree.source)
        if not source.is_dir():
            raise UsageError(f"python tree {tree.package!r}: no directory {tree.source!r}")
        for depth in range(1, len(parts)):
            # A parent may be a tree of its own: its code, if it came first, stays.
            entries.setdefault("/".join([*parts[:depth], "__init__.py"]), (b"", 0o644))
        entries |= directory(source, "/".join(parts))
    return entries
