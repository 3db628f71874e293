"""Links of containers that lose packets: counted where they arrive, on real networks."""

from __future__ import annotations

import asyncio

import docker
import pytest
from capabilities import lacking
from docker_runs import Run, named, running

from harness.protocols.cluster import Capability, LinkShape

pytestmark = pytest.mark.docker


def test_a_share_of_the_packets_of_one_direction_is_lost(docker_daemon: docker.APIClient) -> None:
    there, back, other = ("n1", "n2"), ("n2", "n1"), ("n1", "n3")

    async def losses(run: Run) -> list[float]:
        measured = await run.provider.measure_links((there, back, other))
        return [measured[link].loss for link in (there, back, other)]

    async def story(run: Run) -> None:
        assert await losses(run) == [0, 0, 0]

        await run.provider.shape((LinkShape(link=there, loss=0.3),))

        there_lost, back_lost, other_lost = await losses(run)
        assert 0.15 < there_lost < 0.45
        # What is not sent back because it never came does not count as lost on the way back.
        assert (back_lost, other_lost) == (0, 0)
        await run.provider.cut((other,))
        assert (await losses(run))[0] > 0.15
        assert (await losses(run))[2] == 1

        await run.provider.cut(())
        await run.provider.shape(())

        assert await losses(run) == [0, 0, 0]

    _with_run(named("loss"), story)


def test_a_machine_that_was_lost_returns_with_its_losses(docker_daemon: docker.APIClient) -> None:
    link = ("n2", "n1")

    async def story(run: Run) -> None:
        await run.provider.lose("n1")
        await run.provider.shape((LinkShape(link=link, loss=0.5),))
        assert await run.provider.measure_links((link,)) == {}

        await run.provider.restore("n1")

        assert 0.25 < (await run.provider.measure_links((link,)))[link].loss < 0.75

    _with_run(named("lossy"), story)


def test_a_lossy_link_is_told_from_one_that_is_cut(docker_daemon: docker.APIClient) -> None:
    lossy, cut, hopeless, whole = ("n1", "n2"), ("n2", "n1"), ("n3", "n1"), ("n1", "n3")

    async def story(run: Run) -> None:
        await run.provider.cut((cut,))
        await run.provider.shape(
            (
                LinkShape(link=lossy, loss=0.9),
                LinkShape(link=cut, loss=0.9),
                LinkShape(link=hopeless, loss=1.0),
            )
        )

        seen = await run.provider.probe_links((lossy, cut, hopeless, whole))

        assert seen == {lossy: True, cut: False, whole: True}

    _with_run(named("toldapart"), story)


def test_a_delayed_link_is_told_from_one_that_is_cut(docker_daemon: docker.APIClient) -> None:
    slow, cut = ("n1", "n2"), ("n2", "n1")

    async def story(run: Run) -> None:
        if Capability.DELAY not in await run.provider.capabilities():
            lacking("this kernel delays nothing", promised=False)
        await run.provider.cut((cut,))
        await run.provider.shape(tuple(LinkShape(link=a, delay_s=0.5) for a in (slow, cut)))

        assert await run.provider.probe_links((slow, cut)) == {slow: True, cut: False}

    _with_run(named("slow"), story)


def test_silence_is_no_answer_where_the_control_is_silent_too(
    docker_daemon: docker.APIClient,
) -> None:
    dead, whole = ("n1", "n2"), ("n3", "n2")

    async def story(run: Run) -> None:
        address = run.cluster.bind["n1"]["talk"].host
        rule = ["iptables", "-w", "5", "-I", "INPUT", "1", "-s", address, "-j", "DROP"]
        made = docker_daemon.exec_create(f"firedrill-{named('dead')}-n2", rule)
        docker_daemon.exec_start(made["Id"])

        assert await run.provider.probe_links((dead, whole)) == {whole: True}

    _with_run(named("dead"), story)


def _with_run(run_id: str, story) -> None:
    async def whole() -> None:
        async with running(run_id) as run:
            await story(run)

    asyncio.run(whole())
