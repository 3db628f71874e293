"""Tests that don't ask for the Docker daemon have none."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import docker
import pytest
from docker.errors import DockerException
from docker.utils import kwargs_from_env

FIREDRILL = Path(sys.executable).with_name("firedrill")


def test_a_test_without_the_mark_reaches_no_daemon() -> None:
    with pytest.raises(DockerException):
        docker.APIClient(version="auto", timeout=5, **kwargs_from_env())


def test_a_cleanup_of_every_run_says_that_it_saw_no_containers(tmp_path: Path) -> None:
    done = subprocess.run(
        [FIREDRILL, "cleanup", "--runs-dir", tmp_path],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout == "nothing to remove\n"
    assert "containers were not looked at: no Docker daemon answers" in done.stderr


@pytest.mark.docker
def test_a_test_with_the_mark_is_given_the_daemon_of_the_user(
    docker_daemon: docker.APIClient,
) -> None:
    assert docker_daemon.ping()
    assert "nonexistent" not in os.environ.get("DOCKER_HOST", "")
