"""What tests share: the real parts that a machine may lack, each as a fixture that says so."""

from __future__ import annotations

import logging
import os
import shutil
from collections.abc import Generator, Iterator
from pathlib import Path
from typing import Any

import docker
import pytest
import requests.exceptions
from capabilities import lacking
from docker.errors import DockerException
from docker.utils import kwargs_from_env
from hypothesis import settings
from xdist.remote import Producer
from xdist.scheduler import LoadScopeScheduling

DAEMON_LIMIT_S = 30
NO_DAEMON = "unix:///nonexistent/docker.sock"
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


@pytest.fixture(autouse=True)
def quiet_logging() -> Iterator[None]:
    """Set the level of the root logger back, which a simulation lowers: what a library tells of a
    gateway that is gone, from a finalizer, would be formatted in the midst of anything.
    """
    yield
    logging.getLogger().setLevel(logging.WARNING)


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_protocol(item: pytest.Item) -> Generator[None, Any, Any]:
    """Let a test that doesn't ask for the Docker daemon reach none: its ``cleanup`` would remove
    what is left, on purpose, of a run of another process's test.
    """
    if item.get_closest_marker("docker") or "docker_daemon" in getattr(item, "fixturenames", ()):
        return (yield)
    given = os.environ.get("DOCKER_HOST")
    os.environ["DOCKER_HOST"] = NO_DAEMON
    try:
        return (yield)
    finally:
        os.environ.pop("DOCKER_HOST")
        if given is not None:
            os.environ["DOCKER_HOST"] = given


class ByFile(LoadScopeScheduling):
    """Keeps the tests of a file in one process, and those that need the machine in the same one."""

    def _split_scope(self, nodeid: str) -> str:
        file = nodeid.split("::", 1)[0]
        return "machine" if Path(file).parent.name in ALONE else file


@pytest.hookimpl(optionalhook=True)  # one process alone has none
def pytest_xdist_make_scheduler(config: pytest.Config, log: Producer) -> ByFile:
    """What chooses the process of a test where several run them."""
    return ByFile(config, log)


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_report_to_serializable() -> Generator[None, Any, Any]:
    """Let no name that is no UTF-8, which some tests give to files, end the process of the tests
    with a report that can't be sent.
    """
    return printable((yield))


def printable(value: Any) -> Any:
    """``value`` with its texts as UTF-8 can tell them."""
    if isinstance(value, str):
        return value.encode("utf-8", "backslashreplace").decode()
    if isinstance(value, dict):
        return {printable(key): printable(each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return type(value)(map(printable, value))
    return value
