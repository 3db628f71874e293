"""``scripts/start-docker`` asks the daemon, starts one only where none answers, and says why not.

The script runs as it is; ``docker``, ``dockerd`` and ``id`` are stand-ins on its PATH, since a test
must not start a daemon on the machine it runs on.
"""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

SCRIPT = Path(__file__).resolve().parents[2] / "scripts" / "start-docker"
DOCKER = '#!/bin/sh\n[ -e "$STATE/up" ] && echo 99.1 || exit 1\n'
# It lives on for a moment, as a daemon does: one that ends at once is an error of its own.
DOCKERD = '#!/bin/sh\necho "$*" >"$STATE/started"; : >"$STATE/up"; exec sleep 3\n'


def start(
    place: Path, *, docker: str = DOCKER, dockerd: str = DOCKERD, user: int = 0, **environment: str
) -> subprocess.CompletedProcess[str]:
    commands = place / "bin"
    commands.mkdir(exist_ok=True)
    for name, text in {
        "docker": docker,
        "dockerd": dockerd,
        "id": f"#!/bin/sh\necho {user}\n",
    }.items():
        (commands / name).write_text(text)
        (commands / name).chmod(0o755)
    inherited = {k: v for k, v in os.environ.items() if k != "DOCKER_HOST"}
    return subprocess.run(
        [str(SCRIPT)],
        env=inherited
        | {
            "PATH": f"{commands}:{os.environ['PATH']}",
            "STATE": str(place),
            "DOCKERD_LOG": str(place / "logs" / "dockerd.log"),
        }
        | environment,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


def test_a_daemon_that_answers_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "up").touch()

    done = start(tmp_path)

    assert (done.returncode, done.stdout) == (0, "start-docker: Docker 99.1 answers already\n")
    assert not (tmp_path / "started").exists()


def test_a_daemon_is_started_off_the_networks_of_runs_and_only_once(tmp_path: Path) -> None:
    first = start(tmp_path)

    assert first.returncode == 0
    assert "Docker 99.1 answers (pid " in first.stdout
    assert (tmp_path / "started").read_text() == "--bip 198.18.1.1/24\n"
    assert "answers already" in start(tmp_path).stdout


def test_a_daemon_that_ends_at_once_is_told_with_its_log(tmp_path: Path) -> None:
    done = start(tmp_path, dockerd="#!/bin/sh\necho no cgroups here; exit 1\n")

    assert done.returncode == 1
    assert "dockerd ended at once" in done.stderr
    assert "no cgroups here" in done.stderr


@pytest.mark.parametrize(
    ("user", "environment", "reason"),
    [
        (1000, {}, "needs root"),
        (0, {"DOCKER_HOST": "tcp://127.0.0.1:9"}, "DOCKER_HOST is set to tcp://127.0.0.1:9"),
    ],
)
def test_what_can_not_be_started_is_said(
    tmp_path: Path, user: int, environment: dict[str, str], reason: str
) -> None:
    done = start(tmp_path, user=user, **environment)

    assert done.returncode == 1
    assert reason in done.stderr
    assert not (tmp_path / "started").exists()
