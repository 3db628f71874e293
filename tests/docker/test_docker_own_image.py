"""A plan may name an image of its own, which the daemon must have; what it was is recorded."""

from __future__ import annotations

import asyncio
import re
from pathlib import Path

import docker
import pytest
from docker_runs import PORTS, named

from clusters.providers.docker import images
from clusters.providers.docker.cleanup import Requests
from clusters.providers.docker.image_contents import Package, Probe, contents, digest, installed
from clusters.providers.docker.provider import build
from harness.errors import PlanError


@pytest.mark.docker
def test_an_image_that_the_daemon_does_not_have_is_refused_by_its_key(
    docker_daemon: docker.APIClient, tmp_path: Path
) -> None:
    provider = build("own-image", {"image": "firedrill-nobody-has:0"}, tmp_path)

    with pytest.raises(PlanError, match="the daemon has no image 'firedrill-nobody-has:0'") as seen:
        asyncio.run(provider.capabilities())

    assert seen.value.path == "cluster.options.image"


def test_what_is_recorded_is_what_runs_wherever_the_image_s_name_leads_afterwards(
    docker_daemon: docker.APIClient, tmp_path: Path
) -> None:
    base = images.ensure_base(docker_daemon)
    alias, run_id = f"firedrill-test:{named('moved')}", named("moved")
    docker_daemon.tag(base, *alias.split(":"))

    async def story() -> tuple[dict[str, str], list[str]]:
        provider = build(run_id, {"image": alias}, tmp_path)
        assert await provider.capabilities()
        told = provider.versions()
        _lead_elsewhere(docker_daemon, alias)
        try:
            await provider.provision(("n1",), PORTS)
            chosen = {"label": f"firedrill.node=n1,firedrill.run={run_id}".split(",")}
            ran = [c["ImageID"] for c in docker_daemon.containers(all=True, filters=chosen)]
        finally:
            await provider.teardown()
        return told, ran

    try:
        told, ran = asyncio.run(story())
        assert docker_daemon.inspect_image(alias)["Id"] != told["image-id"]
    finally:
        docker_daemon.remove_image(alias, force=True)

    assert told["image"] == alias
    assert ran == [told["image-id"]] == [docker_daemon.inspect_image(base)["Id"]]
    assert re.fullmatch(r"\d+ packages sha256:[0-9a-f]{64}", told["image-packages"])


def _lead_elsewhere(client: docker.APIClient, alias: str) -> None:
    """Let the name lead to another image."""
    made = client.create_container(alias, command=["true"], network_disabled=True)["Id"]
    try:
        repository, _, tag = alias.partition(":")
        client.commit(made, repository=repository, tag=tag, changes=["LABEL other=1"])
    finally:
        client.remove_container(made, force=True)


def test_the_container_that_is_made_to_look_into_an_image_is_announced_and_gone_afterwards(
    docker_daemon: docker.APIClient, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Watched(Requests):
        def settle(self, name: str) -> None:
            seen.extend(self.open())
            super().settle(name)

    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    seen: list[str] = []
    requests = Watched(tmp_path)
    name = f"firedrill-{named('looking')}"
    probe = Probe(name=name, labels={"firedrill.run": "looking"}, requests=requests)

    contents(docker_daemon, images.ensure_base(docker_daemon), probe)

    assert set(seen) == {name}
    assert requests.open() == ()
    assert docker_daemon.containers(all=True, filters={"name": name}) == []


def test_the_packages_of_an_image_are_those_that_dpkg_tells_in_it(
    docker_daemon: docker.APIClient, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    base = images.ensure_base(docker_daemon)
    shown = ("dpkg-query", "--show", "--showformat", r"${Package} ${Version} ${Architecture}\n")
    made = docker_daemon.create_container(base, command=shown, network_disabled=True)["Id"]
    try:
        docker_daemon.start(made)
        assert docker_daemon.wait(made, timeout=30)["StatusCode"] == 0
        told = docker_daemon.logs(made).decode().splitlines()
    finally:
        docker_daemon.remove_container(made, force=True)

    found = contents(docker_daemon, base)

    assert sorted(map(str, found.packages)) == sorted(told)
    assert {"openssh-server", "python3", "tini"} <= {package.name for package in found.packages}
    assert contents(docker_daemon, base) == found  # from what was kept


STATUS = """\
Package: tini
Status: install ok installed
Architecture: amd64
Version: 0.19.0-1
Description: tiny init
 Version: of a description

Package: gone
Status: deinstall ok config-files
Architecture: all
Version: 1
"""


def test_packages_that_were_removed_are_none_and_another_version_is_another_digest() -> None:
    assert list(installed(STATUS)) == [Package("tini", "0.19.0-1", "amd64")]
    newer = installed(STATUS.replace("0.19.0-1", "0.19.0-2"))
    assert digest(installed(STATUS)) == digest(installed(STATUS)) != digest(newer)
