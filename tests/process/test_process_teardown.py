"""Nothing of a run outlives its teardown, whatever was under way when it began."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from process_programs import PORTS, Echo, bring_up

from clusters.providers.process.node_files import cut_log
from clusters.providers.process.provider import build
from harness.errors import HarnessError


@pytest.mark.parametrize("turns", [0, 1, 2, 4, 8])
def test_a_start_under_way_does_not_survive_teardown(tmp_path: Path, turns: int) -> None:
    async def scenario() -> None:
        provider = build("run", {}, tmp_path / "undo")
        cluster = await provider.provision(("n1",), PORTS)
        await provider.install("n1", Echo().program("n1", cluster))
        start = asyncio.ensure_future(provider.start("n1"))
        for _ in range(turns):
            await asyncio.sleep(0)

        await provider.teardown()

        await asyncio.wait({start})
        assert not (await provider.probe("n1")).running
        assert not (tmp_path / "undo" / "processes.json").exists()

    asyncio.run(scenario())


def test_nothing_starts_after_teardown(tmp_path: Path) -> None:
    async def scenario() -> None:
        provider, _ = await bring_up(tmp_path, "n1")
        await provider.teardown()

        with pytest.raises(HarnessError, match=r"n1: can't start, run '.*' is torn down"):
            await provider.start("n1")
        await provider.teardown()
        assert not (await provider.probe("n1")).running

    asyncio.run(scenario())


def test_teardown_does_not_wait_for_a_stop_that_takes_its_time(tmp_path: Path) -> None:
    async def scenario() -> None:
        provider, _ = await bring_up(tmp_path, "n1", DEAF="yes")
        stop = asyncio.ensure_future(provider.stop("n1"))
        await asyncio.sleep(0)

        async with asyncio.timeout(5):
            await provider.teardown()

        assert (await stop).exit_text == "killed by SIGKILL"

    asyncio.run(scenario())


def test_of_a_log_that_grew_too_long_the_end_is_kept(tmp_path: Path) -> None:
    log = tmp_path / "node.log"
    log.write_bytes(b"early" * 100 + b"late")

    cut_log(log, 1000)
    assert log.stat().st_size == 504

    cut_log(log, 9)
    assert log.read_bytes() == b"earlylate"
    assert list(tmp_path.iterdir()) == [log]
