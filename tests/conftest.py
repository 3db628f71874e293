"""What tests share: the real parts that a machine may lack, each as a fixture that says so."""

from __future__ import annotations

import os
import shutil
from typing import NoReturn

import docker
import pytest
import requests.exceptions
from docker.errors import DockerException
from docker.utils import kwargs_from_env

DAEMON_LIMIT_S = 30


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
