"""What tests share: the real parts that a machine may lack, each as a fixture that says so."""

from __future__ import annotations

import shutil

import docker
import pytest
import requests.exceptions
from capabilities import lacking
from docker.errors import DockerException
from docker.utils import kwargs_from_env
from hypothesis import settings

DAEMON_LIMIT_S = 30
# One process runs these, beside another that runs the rest: they start and count containers, or
# keep both cores busy for as long as they take.
ALONE = ("docker", "drill", "ignite3")
# How long an example takes is the machine's doing, and says nothing on one that others share.
settings.register_profile("shared machine", deadline=None)
settings.load_profile("shared machine")


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


@pytest.hookimpl(tryfirst=True)  # before the plugin reads the groups
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Keep the tests of a file in one process, and those that need the machine in the same one."""
    for item in items:
        room = item.path.parent.name
        group = "machine" if room in ALONE else item.path.stem
        item.add_marker(pytest.mark.xdist_group(group))
