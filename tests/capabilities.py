"""What a test needs of its machine. Where it lacks that, the test is skipped; in CI it fails."""

from __future__ import annotations

import contextlib
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import NoReturn

import pytest


def lacking(reason: str, *, promised: bool = True) -> NoReturn:
    """Skip the test for ``reason``. In CI fail instead, unless what it lacks is not ``promised``: a
    module of the kernel can't be installed.
    """
    if promised and os.environ.get("CI") == "true":
        pytest.fail(f"CI must have what this test needs: {reason}")
    pytest.skip(reason)


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
