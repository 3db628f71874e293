"""What a test needs of its machine. Where it lacks that, the test is skipped; in CI it fails."""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import NoReturn

import pytest

FETCH_LIMIT_S = 300.0


def lacking(reason: str, *, promised: bool = True) -> NoReturn:
    """Skip the test for ``reason``. In CI fail instead, unless what it lacks is not ``promised``: a
    module of the kernel can't be installed.
    """
    if promised and os.environ.get("CI") == "true":
        pytest.fail(f"CI must have what this test needs: {reason}")
    pytest.skip(reason)


def maven_jar(artifact: str) -> Path:
    """The jar of ``artifact`` (``GROUP:NAME:VERSION``), fetched by Maven and kept for later tests;
    skips the test where it can't be had.
    """
    group, name, version = artifact.split(":")
    here = Path(tempfile.gettempdir()) / "firedrill-tests-maven" / group
    jar = here / f"{name}-{version}.jar"
    if jar.exists():
        return jar
    if shutil.which("mvn") is None:
        lacking(f"no Maven to fetch {artifact} with", promised=False)
    command = ["mvn", "-q", "-B", "dependency:copy", f"-Dartifact={artifact}:jar"]
    # Renamed when it is whole: another process of the tests may look for it meanwhile.
    here.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=here) as fetched:
        command.append(f"-DoutputDirectory={fetched}")
        done = subprocess.run(command, capture_output=True, text=True, timeout=FETCH_LIMIT_S)
        found = Path(fetched) / jar.name
        if done.returncode or not found.exists():
            lacking(f"Maven does not fetch {artifact}: {done.stdout[-300:]}", promised=False)
        found.replace(jar)
    return jar


@contextlib.contextmanager
def small_disk(mount: Path, size: str) -> Iterator[Path]:
    """A file system of ``size`` of its own, where this machine lets us mount one."""
    mount.mkdir()
    options = ["-t", "tmpfs", "-o", f"size={size}", "tmpfs", str(mount)]
    made = subprocess.run(["mount", *options], capture_output=True, text=True, timeout=30)
    if made.returncode:
        lacking(f"no file system can be mounted: {made.stderr.strip()}")
    try:
        yield mount
    finally:
        subprocess.run(["umount", "--lazy", str(mount)], check=True, timeout=30)
