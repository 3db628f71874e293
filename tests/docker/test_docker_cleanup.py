"""What a killed controller leaves behind is found by label and removed; nothing else is."""

from __future__ import annotations

import asyncio
import random
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import attrs
import docker
import pytest
from docker_runs import named, owned, running

from clusters.providers.docker import recipe
from clusters.providers.docker.cleanup import cleanup
from clusters.providers.docker.labels import Owner, myself, owner_of

KILL_MOMENTS = 6
LONGEST_S = 3.0


@contextmanager
def owner(run_id: str) -> Iterator[subprocess.Popen[str]]:
    script = Path(__file__).with_name("docker_owner.py")
    process = subprocess.Popen(
        [sys.executable, str(script), run_id], stdout=subprocess.PIPE, text=True
    )
    try:
        yield process
    finally:
        process.kill()
        process.communicate(timeout=30)


@pytest.mark.docker
def test_a_killed_controllers_run_is_removed_and_a_living_ones_is_not(
    docker_daemon: docker.APIClient,
) -> None:
    dead = named("dead")

    async def story() -> None:
        async with running(named("alive"), ("n1",)):
            with owner(dead) as process:
                assert process.stdout is not None
                assert process.stdout.readline() == "up\n"
                assert process.stdout.readline() == "cut\n"
                assert [text for text in cleanup() if dead in text] == []
            alive = owned(docker_daemon, named("alive"))
            assert len(owned(docker_daemon, dead)) == 3

            removed = cleanup()

            assert [text for text in removed if dead in text] == [
                f"container firedrill-{dead}-n1 of run {dead}",
                f"container firedrill-{dead}-n2 of run {dead}",
                f"network firedrill-{dead} of run {dead}",
            ]
            assert owned(docker_daemon, dead) == []
            assert owned(docker_daemon, named("alive")) == alive
            assert [text for text in cleanup() if dead in text] == []

    asyncio.run(story())


@pytest.mark.docker
@pytest.mark.slow
def test_a_controller_killed_at_any_moment_leaves_nothing_after_cleanup(
    docker_daemon: docker.APIClient,
) -> None:
    moments = random.Random(20)
    for i in range(KILL_MOMENTS):
        run_id = named(f"moment-{i}")
        with owner(run_id) as process, pytest.raises(subprocess.TimeoutExpired):
            process.wait(timeout=moments.uniform(0, LONGEST_S))

        cleanup()

        assert owned(docker_daemon, run_id) == []


@pytest.mark.docker
def test_a_run_that_is_named_is_removed_though_its_controller_lives(
    docker_daemon: docker.APIClient,
) -> None:
    async def story() -> None:
        async with running(named("named"), ("n1",)), running(named("unnamed"), ("n1",)):
            assert len(await asyncio.to_thread(cleanup, named("named"))) == 2
            assert owned(docker_daemon, named("named")) == []
            assert len(owned(docker_daemon, named("unnamed"))) == 2

    asyncio.run(story())


@pytest.mark.docker
def test_what_carries_no_label_is_never_touched(docker_daemon: docker.APIClient) -> None:
    async def ensure_image() -> None:
        async with running(named("image-first"), ("n1",)):
            pass

    asyncio.run(ensure_image())
    name = f"firedrill-{named('stranger')}-n1"
    docker_daemon.create_container(recipe.tag(), command=["sleep", "1"], name=name)
    try:
        assert cleanup(named("stranger")) == []
        assert docker_daemon.inspect_container(name)["Name"] == f"/{name}"
    finally:
        docker_daemon.remove_container(name, force=True)


def test_an_owner_reads_back_from_its_labels() -> None:
    me = myself()

    assert owner_of(me.labels("r1")) == me
    assert owner_of({"firedrill.run": "r1"}) is None


@pytest.mark.parametrize(
    ("change", "dead"),
    [
        ({}, False),
        ({"host": "elsewhere", "host_boot": "other"}, False),
        ({"host_boot": "other"}, True),
        ({"pid_namespace": "pid:[1]", "pid": 999_999}, False),
        ({"start_ticks": 1}, True),
        ({"pid": 2**22 + 1}, True),
    ],
)
def test_only_an_owner_that_is_surely_gone_is_dead(change: dict, dead: bool) -> None:
    me = myself()
    other: Owner = attrs.evolve(me, **change)

    assert other.is_dead(me) is dead
