"""What a killed controller leaves behind is found by label and removed; nothing else is."""

from __future__ import annotations

import asyncio
import random
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path

import attrs
import docker
import pytest
from docker_runs import named, owned, running

from cli.cleanup import left_by_others
from clusters.providers.docker import images
from clusters.providers.docker.cleanup import OtherDirectory, StillOwned, cleanup
from clusters.providers.docker.labels import EXPIRES, Owner, expired, myself, owner_of
from harness.errors import NotRemoved
from harness.history.run_directory import directory_mark
from results.store.store import RunStore

KILL_MOMENTS = 6
LONGEST_S = 3.0
MADE_LIMIT_S = 20.0
SETTLED_S = 3.0  # a daemon under load has made in it what it had been asked for


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

        # This controller announces nothing of what it asks for: what the daemon was making when it
        # was killed may appear at any moment until the daemon is done, and goes with the next one.
        deadline_s = time.monotonic() + MADE_LIMIT_S
        last_seen_s = time.monotonic()
        while time.monotonic() < min(last_seen_s + SETTLED_S, deadline_s):
            cleanup()
            if left := owned(docker_daemon, run_id):
                last_seen_s = time.monotonic()
            time.sleep(0.2)
        assert left == []


@pytest.mark.docker
def test_a_run_that_is_named_is_removed_while_its_controller_lives_only_by_force(
    docker_daemon: docker.APIClient,
) -> None:
    async def story() -> None:
        async with running(named("named"), ("n1",)), running(named("unnamed"), ("n1",)):
            with pytest.raises(StillOwned, match="stop it first, or say --force"):
                await asyncio.to_thread(cleanup, named("named"))
            assert len(owned(docker_daemon, named("named"))) == 2

            assert len(await asyncio.to_thread(cleanup, named("named"), force=True)) == 2
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
    docker_daemon.create_container(images.tag(), command=["sleep", "1"], name=name)
    try:
        assert cleanup(named("stranger")) == []
        assert docker_daemon.inspect_container(name)["Name"] == f"/{name}"
    finally:
        docker_daemon.remove_container(name, force=True)


@pytest.mark.docker
def test_a_copy_of_a_run_directory_does_not_speak_for_the_run(
    docker_daemon: docker.APIClient, tmp_path: Path
) -> None:
    """Its controller is dead, so nothing but the directory tells whose the containers are."""
    run_id, own, copy = named("copied"), tmp_path / "own", tmp_path / "copy"
    for directory in (own, copy):
        directory.mkdir()
    gone = attrs.evolve(myself(), start_ticks=1).labels(run_id, directory_mark(own))
    docker_daemon.create_network(f"firedrill-{run_id}", labels=gone, internal=True)
    try:
        with pytest.raises(OtherDirectory, match="name that one, or say --force"):
            cleanup(run_id, directory=directory_mark(copy))
        moved = own.rename(tmp_path / "moved")

        assert len(cleanup(run_id, directory=directory_mark(moved))) == 1
    finally:
        cleanup(run_id, force=True)


@pytest.mark.docker
def test_a_frozen_container_goes_on_before_it_is_removed(docker_daemon: docker.APIClient) -> None:
    """As the one in which faults are tried out, whose controller died at that moment."""
    run_id, began = named("frozen"), int(time.time())
    name = sleeper(docker_daemon, run_id)
    try:
        docker_daemon.pause(name)

        assert cleanup(run_id, force=True) == [f"container {name} of run {run_id}"]
    finally:
        cleanup(run_id, force=True)

    chosen = {"container": [name], "type": "container"}
    told = docker_daemon.events(
        since=began, until=int(time.time()) + 1, filters=chosen, decode=True
    )
    acts = [event["Action"] for event in told]
    assert acts.index("pause") < acts.index("unpause") < acts.index("kill")


@pytest.mark.docker
def test_what_the_daemon_does_not_remove_keeps_nothing_else_from_going(
    docker_daemon: docker.APIClient,
) -> None:
    """A network can't go as long as a container that is none of ours is in it."""
    run_id = named("stuck")
    marks = myself().labels(run_id)
    sleeper(docker_daemon, run_id)
    stranger = f"firedrill-{run_id}-stranger"
    networks = [f"firedrill-{run_id}-{number}" for number in (1, 2)]
    for network in networks:
        docker_daemon.create_network(network, labels=marks, internal=True)
    docker_daemon.create_container(
        images.tag(),
        command=["sleep", "60"],
        name=stranger,
        host_config=docker_daemon.create_host_config(network_mode=networks[0]),
    )
    try:
        docker_daemon.start(stranger)

        with pytest.raises(NotRemoved, match=f"network {networks[0]} of run .*active endpoints"):
            cleanup(run_id, force=True)

        assert owned(docker_daemon, run_id) == [networks[0]]
    finally:
        docker_daemon.remove_container(stranger, force=True)
    assert cleanup(run_id, force=True) == [f"network {networks[0]} of run {run_id}"]


def sleeper(client: docker.APIClient, run_id: str) -> str:
    """A running container of the run, made of the image that all nodes have; its name."""
    name = f"firedrill-{run_id}-trial"

    async def ensure_image() -> None:
        async with running(named("image-first"), ("n1",)):
            pass

    asyncio.run(ensure_image())
    client.create_container(
        images.tag(), command=["sleep", "60"], name=name, labels=myself().labels(run_id)
    )
    client.start(name)
    return name


@pytest.mark.docker
def test_the_next_run_says_what_a_dead_controller_left_and_what_has_expired(
    docker_daemon: docker.APIClient, tmp_path: Path
) -> None:
    dead, old, alive = (f"{named('left')}-{kind}" for kind in ("dead", "old", "alive"))
    elsewhere = attrs.evolve(myself(), host_boot="another", machine="another")
    marks = {
        dead: attrs.evolve(myself(), start_ticks=1).labels(dead),
        old: elsewhere.labels(old) | {EXPIRES: "2026-01-01T00:00:00+00:00"},
        alive: elsewhere.labels(alive),
    }
    for run_id, labels in marks.items():
        docker_daemon.create_network(f"firedrill-{run_id}", labels=labels, internal=True)
    try:
        said = left_by_others(RunStore(tmp_path))
    finally:
        for run_id in marks:
            cleanup(run_id, force=True)

    died, _, outlived = said.partition("; ")
    outlived = outlived.partition("; ")[2]
    assert dead in died
    assert "firedrill cleanup removes it" in said
    assert old not in died
    assert old in outlived
    assert alive not in said


def test_an_owner_reads_back_from_its_labels() -> None:
    me = myself()

    assert owner_of(me.labels("r1")) == me
    assert owner_of({"firedrill.run": "r1"}) is None


def test_two_machines_that_know_no_identifier_are_never_taken_for_one() -> None:
    here = attrs.evolve(myself(), machine="")

    assert not attrs.evolve(here, host_boot="of the other one").is_dead(here)


def test_the_time_of_an_object_is_over_only_where_its_label_says_so() -> None:
    now = datetime.now(UTC)
    labels = myself().labels("r1")

    assert not expired(labels, now + timedelta(days=7))
    assert expired(labels, now + timedelta(days=9))
    assert not expired({}, now)
    assert not expired({EXPIRES: "soon"}, now)
    assert not expired({EXPIRES: "2026-01-01T00:00:00"}, now)  # of no time zone


@pytest.mark.parametrize(
    ("change", "dead"),
    [
        ({}, False),
        ({"host": "elsewhere", "host_boot": "other"}, False),
        ({"host_boot": "other"}, True),
        ({"host_boot": "other", "machine": "other"}, False),
        ({"host_boot": "other", "machine": ""}, False),
        ({"host": "renamed"}, False),
        ({"host": "renamed", "start_ticks": 1}, True),
        ({"pid_namespace": "pid:[1]", "pid": 999_999}, False),
        ({"start_ticks": 1}, True),
        ({"pid": 2**22 + 1}, True),
    ],
)
def test_only_an_owner_that_is_surely_gone_is_dead(change: dict, dead: bool) -> None:
    me = attrs.evolve(myself(), machine="this one")
    other: Owner = attrs.evolve(me, **change)

    assert other.is_dead(me) is dead
