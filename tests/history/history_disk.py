"""A disk that is easily full."""

from __future__ import annotations

import contextlib
import subprocess
from collections.abc import Iterator
from pathlib import Path

from conftest import lacking


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
