"""What tests share: the real parts that a machine may lack, each as a fixture that says so."""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import NoReturn

import docker
import pytest
import requests.exceptions
from docker.errors import DockerException
from docker.utils import kwargs_from_env
from hypothesis import settings

DAEMON_LIMIT_S = 30
# How long an example takes is the machine's doing, and says nothing on one that others share.
settings.register_profile("shared machine", deadline=None)
settings.load_profile("shared machine")


def lacking(reason: str) -> NoReturn:
    """Skip the test for ``reason``; where CI promises everything, fail instead."""
    if os.environ.get("CI") == "true":
        pytest.fail(f"CI must have what this test needs: {reason}")
    pytest.skip(reason)


@pytest.fixture(scope="session")
def docker_daemon() -> docker.APIClient:
    """A client of the Docker daemon that answers here."""
    try:
        client = docker.APIClient(version="auto", timeout=DAEMON_LIMIT_S, **kwargs_from_env())
        client.ping()
    except (DockerException, requests.exceptions.RequestException) as error:
        lacking(f"no Docker daemon answers: {error}")
    return client


@pytest.fixture(scope="session")
def chromium() -> str:
    """The path of a Chromium that can run headless."""
    found = shutil.which("chromium") or shutil.which("chromium-browser")
    return found or lacking("chromium is not installed")


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
