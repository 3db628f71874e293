"""The lease of a machine's faults runs out where it is not renewed, and not before; it is told."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import docker
import pytest
from docker_runs import named, running

from clusters.providers.docker.container import docker_name
from clusters.providers.remote import fault_lease
from harness.clock import RunClock
from harness.protocols.cluster import LeasesFaults
from harness.protocols.cluster_membership import Membership
from harness.protocols.faults import Scene, Victims
from nemesis.command_faults import command

NEVER_S = 1000.0
LIMIT_S = 20.0
CUT = (("n1", "n2"),)
RULES = "iptables -N FIREDRILL; iptables -A FIREDRILL -s 198.18.0.9/32 -j DROP"


def drops(client: docker.APIClient, run_id: str, node: str) -> bool:
    """Whether the node drops anything, as its kernel tells the daemon."""
    made = client.exec_create(docker_name(run_id, node), ["iptables", "-S", "FIREDRILL"])
    return b"DROP" in client.exec_start(made["Id"])


async def until(look: Callable[[], bool]) -> None:
    async with asyncio.timeout(LIMIT_S):
        while not await asyncio.to_thread(look):  # noqa: ASYNC110 (the machine acts, not this loop)
            await asyncio.sleep(0.1)


def test_a_controller_that_starves_for_ten_seconds_keeps_its_faults_and_a_dead_one_no_thirty() -> (
    None
):
    assert fault_lease.LEASE_S - fault_lease.RENEW_S >= 10
    # Ending takes as long on a crowded one.
    assert fault_lease.LEASE_S + fault_lease.TURN_MAX_S <= 30 / 2


def test_the_readme_names_the_lease_as_it_is() -> None:
    readme = Path(__file__).parents[2] / "README.md"
    assert f"programs have a lease of {fault_lease.LEASE_S:g} s" in readme.read_text()


@pytest.mark.docker
@pytest.mark.slow
@pytest.mark.parametrize("session_lost", [False, True])
def test_a_lease_that_was_not_renewed_runs_out_and_a_controller_that_asks_hears_it(
    docker_daemon: docker.APIClient, monkeypatch: pytest.MonkeyPatch, session_lost: bool
) -> None:
    monkeypatch.setattr(fault_lease, "LEASE_S", 3)
    monkeypatch.setattr(fault_lease, "RENEW_S", NEVER_S)
    run_id = named("lapse")

    async def story() -> tuple[str, ...]:
        async with running(run_id, ("n1", "n2")) as run:
            await run.provider.cut(CUT)
            assert drops(docker_daemon, run_id, "n2")
            await until(lambda: not drops(docker_daemon, run_id, "n2"))

            assert isinstance(run.provider, LeasesFaults)
            if session_lost:
                await asyncio.to_thread(run.provider._nodes["n2"].session.drop)
            told = await run.provider.lapsed()
            await run.provider.cut(CUT)  # the rules can be made anew
            assert drops(docker_daemon, run_id, "n2")
            return told

    [told] = asyncio.run(story())
    assert told.startswith("n2: the controller was not heard of for 3 s")
    assert told.endswith("ended its cuts and losses")


@pytest.mark.docker
@pytest.mark.slow
def test_a_fault_by_commands_of_the_plan_ends_with_the_lease_of_its_machine(
    docker_daemon: docker.APIClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fault_lease, "LEASE_S", 3)
    monkeypatch.setattr(fault_lease, "RENEW_S", NEVER_S)
    run_id = named("command")
    options = {"inject": "touch /run/broken", "heal": "rm -f /run/broken"}
    fault = command().with_options({**options, "proof": "test -e /run/broken"}, None, "fault")

    def is_broken() -> bool:
        made = docker_daemon.exec_create(docker_name(run_id, "n1"), ["ls", "/run"])
        return b"broken" in docker_daemon.exec_start(made["Id"])

    async def story() -> None:
        async with running(run_id, ("n1",)) as run:
            await run.start_all()
            clock = RunClock(asyncio.get_running_loop())
            system: Any = None  # which such a fault does not ask
            scene = Scene(
                provider=run.provider,
                system=system,
                membership=Membership(run.cluster),
                clock=clock,
            )
            await fault.inject(scene, Victims(nodes=("n1",), roles=(), draw=7))
            assert await asyncio.to_thread(is_broken)
            await until(lambda: not is_broken())

    asyncio.run(story())


@pytest.mark.docker
@pytest.mark.slow
def test_a_machine_that_was_frozen_for_longer_than_the_lease_keeps_its_cut(
    docker_daemon: docker.APIClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fault_lease, "LEASE_S", 4)
    monkeypatch.setattr(fault_lease, "RENEW_S", 0.3)
    run_id = named("thawed")

    async def story() -> tuple[str, ...]:
        async with running(run_id, ("n1", "n2")) as run:
            await run.provider.cut(CUT)
            await run.provider.freeze("n2")
            await asyncio.sleep(6)  # longer than the lease: the time itself is what is tried
            await run.provider.thaw("n2")
            await asyncio.sleep(2)
            assert drops(docker_daemon, run_id, "n2")
            return await run.provider.lapsed()

    assert asyncio.run(story()) == ()


@pytest.mark.docker
@pytest.mark.slow
@pytest.mark.parametrize(
    ("trouble", "over"),
    [
        ("mv /usr/sbin/tc /usr/sbin/iptables /tmp", "mv /tmp/tc /tmp/iptables /usr/sbin"),
        ("rm /run/firedrill/lapsed && mkdir /run/firedrill/lapsed", "true"),
    ],
    ids=["its commands fail for a while", "it can write nothing down"],
)
def test_a_watchdog_whose_controller_is_gone_outlives_its_own_troubles(
    docker_daemon: docker.APIClient, monkeypatch: pytest.MonkeyPatch, trouble: str, over: str
) -> None:
    monkeypatch.setattr(fault_lease, "LEASE_S", 1)
    monkeypatch.setattr(fault_lease, "RENEW_S", NEVER_S)
    run_id = named("troubled")

    def on_n2(command: str) -> None:
        made = docker_daemon.exec_create(docker_name(run_id, "n2"), ["sh", "-c", command])
        docker_daemon.exec_start(made["Id"])
        assert docker_daemon.exec_inspect(made["Id"])["ExitCode"] == 0

    async def story() -> None:
        async with running(run_id, ("n1", "n2")) as run:
            await asyncio.to_thread(on_n2, trouble)
            await asyncio.to_thread(on_n2, f"PATH=$PATH:/tmp; {RULES}")
            await asyncio.to_thread(run.provider._nodes["n2"].session.drop)
            await asyncio.sleep(4)  # several turns without a lease: its troubles are what is tried
            await asyncio.to_thread(on_n2, over)
            await asyncio.to_thread(on_n2, RULES)
            await until(lambda: not drops(docker_daemon, run_id, "n2"))
            # A controller that comes back hears of what could be written down.
            assert bool(await run.provider.lapsed()) is (over != "true")

    asyncio.run(story())


@pytest.mark.docker
@pytest.mark.slow
def test_a_machine_that_nobody_renews_ends_and_a_pruning_of_the_daemon_takes_it(
    docker_daemon: docker.APIClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fault_lease, "LEASE_S", 1)
    monkeypatch.setattr(fault_lease, "END_S", 2)
    monkeypatch.setattr(fault_lease, "RENEW_S", NEVER_S)
    run_id = named("pruned")
    name, chosen = docker_name(run_id, "n1"), {"label": f"firedrill.run={run_id}"}

    async def story() -> None:
        async with running(run_id, ("n1",)):
            look = docker_daemon.inspect_container
            await until(lambda: not look(name)["State"]["Running"])
            pruned = await asyncio.to_thread(docker_daemon.prune_containers, filters=chosen)
            assert len(pruned["ContainersDeleted"]) == 1
            assert docker_daemon.prune_networks(filters=chosen)["NetworksDeleted"] == [
                docker_name(run_id)
            ]

    asyncio.run(story())
