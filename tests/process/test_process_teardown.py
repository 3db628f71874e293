"""Nothing of a run outlives its teardown, whatever was under way when it began."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from process_programs import PORTS, Echo, bring_up

from clusters.providers.process.node_files import collect_log, remove_whole_log, whole_log
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


def test_of_a_log_that_grew_too_long_the_end_is_collected_and_the_program_writes_on(
    tmp_path: Path,
) -> None:
    log = tmp_path / "node.log"
    log.write_bytes(b"early" * 100 + b"late")
    with log.open("ab") as program:
        assert collect_log(log, tmp_path, 1000) == 0
        assert log.stat().st_size == 504

        assert collect_log(log, tmp_path, 9) == 495
        sealed = log.read_bytes()
        program.write(b", later")
        program.flush()

        assert log.read_bytes() == sealed == b"earlylate"
        assert whole_log(log).read_bytes().endswith(b"earlylate, later")
        assert collect_log(log, tmp_path, 9) == 502, "again, as of now"
    assert log.read_bytes() == b"te, later"

    remove_whole_log(log)
    remove_whole_log(log)
    assert list(tmp_path.iterdir()) == [log]


def test_a_log_collected_elsewhere_is_a_copy_of_its_end(tmp_path: Path) -> None:
    log = tmp_path / "node.log"
    log.write_bytes(b"early, late")

    assert collect_log(log, tmp_path / "into", 4) == 7

    assert (tmp_path / "into" / "node.log").read_bytes() == b"late"
    assert log.read_bytes() == b"early, late"


def test_a_disk_that_refuses_a_log_is_named(tmp_path: Path) -> None:
    log = tmp_path / "node.log"
    log.write_bytes(b"late")
    (tmp_path / "into").write_text("a file")

    with pytest.raises(HarnessError, match="cannot collect"):
        collect_log(log, tmp_path / "into")


def test_teardown_leaves_what_was_collected_as_it_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        "clusters.providers.process.provider.collect_log",
        lambda source, into: collect_log(source, into, 20),
    )

    async def scenario() -> None:
        provider, _ = await bring_up(tmp_path, "n1")
        log = tmp_path / "nodes" / "n1" / "node.log"
        with log.open("ab") as earlier:
            earlier.write(b"x" * 100)

        left_out = await provider.collect("n1", log.parent)
        sealed = log.read_bytes()
        await provider.teardown()

        assert left_out["node.log"] >= 80
        assert len(sealed) == 20
        assert log.read_bytes() == sealed
        assert not whole_log(log).exists()

    asyncio.run(scenario())
