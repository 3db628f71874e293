"""What a program needs on a machine, as tar archives with the same bytes for the same content."""

from __future__ import annotations

import io
import tarfile
from collections.abc import Iterator, Mapping
from pathlib import Path, PurePosixPath

from harness.cluster import PythonTree
from harness.errors import UsageError

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

    A package's parents become empty packages, whatever stands in them on the controller.
    """
    entries: dict[str, tuple[bytes, int]] = {}
    for tree in trees:
        parts = tree.package.split(".")
        source = Path(tree.source)
        if not source.is_dir():
            raise UsageError(f"python tree {tree.package!r}: no directory {tree.source!r}")
        for depth in range(1, len(parts)):
            entries.setdefault("/".join([*parts[:depth], "__init__.py"]), (b"", 0o644))
        entries |= directory(source, "/".join(parts))
    return entries
