"""Containers that were left up: spared by a general clean-up, entered through the daemon."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import docker
import pytest
from docker_runs import named, owned

from clusters.providers.docker import container_shell
from clusters.providers.docker.cleanup import cleanup, kept_runs
from harness.errors import UsageError
from harness.history.run_directory import directory_mark

LEAVER = """
import asyncio, sys
from pathlib import Path
from docker_runs import PORTS, Run, build

async def main():
    provider = build(sys.argv[1], {}, Path(sys.argv[2]))
    try:
        run = Run(provider, await provider.provision(("n1",), PORTS))
        await run.start_all()
        await provider.leave()
    except BaseException:
        await provider.teardown()
        raise

asyncio.run(main())
"""
LIMIT_S = 60


@pytest.fixture
def undo(tmp_path: Path) -> Path:
    """The list of the run's resources in its directory."""
    found = tmp_path / "run" / "undo"
    found.mkdir(parents=True)
    return found


@pytest.fixture
def left(docker_daemon: docker.APIClient, undo: Path) -> Iterator[str]:
    """The identifier of a run that is up, its controller gone."""
    run_id = named("left")
    command = [sys.executable, "-c", LEAVER, run_id, str(undo)]
    try:
        subprocess.run(command, check=True, timeout=LIMIT_S, cwd=Path(__file__).parent)
        yield run_id
    finally:
        cleanup(run_id)


@pytest.mark.docker
def test_a_kept_run_goes_only_by_its_name(left: str, docker_daemon: docker.APIClient) -> None:
    assert left in kept_runs()
    assert [text for text in cleanup() if left in text] == []
    assert len(owned(docker_daemon, left)) == 3

    removed = cleanup(left)

    assert len(removed) == 3
    assert owned(docker_daemon, left) == []
    assert left not in kept_runs()


@pytest.mark.docker
def test_the_daemon_lets_a_person_in_without_a_key(
    left: str, undo: Path, capfdbinary: pytest.CaptureFixture[bytes]
) -> None:
    ours = directory_mark(undo.parent)
    with open("/dev/null") as nothing, pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "stdin", nothing)
        code = container_shell.shell(
            left, "n1", ["sh", "-c", "hostname; echo no >&2; exit 7"], ours
        )

    assert code == 7
    assert capfdbinary.readouterr() == (b"n1\n", b"no\n")
    assert b"".join(container_shell.log(left, "n1", ours, follow=False)) is not None
    assert container_shell.running(left, "n1", ours)
    assert not container_shell.running(left, "n2", ours)
    with pytest.raises(UsageError, match=r"its container .*-n2 does not run"):
        container_shell.shell(left, "n2", [], ours)


@pytest.mark.docker
def test_a_directory_that_claims_the_run_of_another_gets_no_shell(
    left: str, tmp_path: Path
) -> None:
    theirs = directory_mark(tmp_path)
    assert not container_shell.running(left, "n1", theirs)
    with pytest.raises(UsageError, match=r"its container .*-n1 does not run"):
        container_shell.shell(left, "n1", ["true"], theirs)
