"""A packed environment: this package and what its tasks import, as an archive that travels with a
job. A worker of the cluster then needs Java and a Python of the same version, and nothing else.
"""

from __future__ import annotations

import importlib.metadata
import os
import sys
import tarfile
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

from harness.errors import UsageError
from harness.history import durable_files, regular_files

# The directory that the archive becomes where an executor starts.
NAME = "firedrill-environment"
INTERPRETER = f"python{sys.version_info.major}.{sys.version_info.minor}"
ROOMS = ("checkers", "harness")
# What kernels import, and what these bring along.
DISTRIBUTIONS = ("numpy", "scipy", "pyarrow", "msgspec", "attrs", "tomli-w", "pyspark", "py4j")
# Of pyspark only what Python imports: its jars are the worker's own.
_LEFT_OUT = ("pyspark/jars/", "pyspark/bin/", "pyspark/examples/", "pyspark/sbin/", "pyspark/data/")
_PARTS = ("/tests/", "/include/", "__pycache__")


def as_archive(path: Path) -> Path:
    """Return the packed environment ``path``, which is made where there is none yet.

    Raises ``UsageError`` where it is no file that can be read or made.
    """
    if path.exists():
        if not regular_files.is_regular(path):
            raise UsageError(f"--spark-environment: {path}: expected a file")
        return path.absolute()
    try:
        unfinished = durable_files.begin(path)
        pack(unfinished)
        durable_files.publish(unfinished, path)
    except OSError as error:
        raise UsageError(f"--spark-environment: {path}: {error.strerror}") from error
    return path.absolute()


def pack(path: Path) -> None:
    """Write the archive ``path``."""
    # Level 1: a tenth of the time of the usual one, for a third more bytes.
    with tarfile.open(path, "w:gz", compresslevel=1) as archive:
        for name, file in sorted(contents()):
            archive.add(file, arcname=name, recursive=False)


def contents() -> Iterator[tuple[str, Path]]:
    """Yield the files of the archive by their names in it."""
    for room in ROOMS:
        spec = find_spec(room)
        origin = None if spec is None else spec.origin
        if origin is None:
            raise UsageError(f"the package {room} is not installed as files, so it can't be packed")
        root = Path(origin).parent
        for file in root.rglob("*"):
            name = f"{room}/{file.relative_to(root).as_posix()}"
            if file.is_file() and _travels(name):
                yield name, file
    for distribution in DISTRIBUTIONS:
        for listed in importlib.metadata.files(distribution) or ():
            name = os.path.normpath(str(listed))
            if not name.startswith("..") and _travels(name):
                yield name, Path(str(listed.locate()))


def _travels(name: str) -> bool:
    return not name.startswith(_LEFT_OUT) and not any(part in name for part in _PARTS)
