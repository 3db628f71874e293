"""A trace holds every message: also those that never came, and it tells what it has no room for."""

from __future__ import annotations

import asyncio
from pathlib import Path

import msgspec
import pytest

from clusters.providers.sim import trace as traces
from clusters.providers.sim.loop import simulate
from clusters.providers.sim.network import Fabric, HostNetwork
from clusters.providers.sim.trace import Row, Trace
from clusters.reference.node.runtime import Connection


def rows_of(trace: Trace, path: Path) -> list[Row]:
    trace.write(path)
    return [msgspec.json.decode(line, type=Row) for line in path.read_bytes().splitlines()]


def test_a_message_that_a_cut_held_to_the_end_stands_in_the_trace(tmp_path: Path) -> None:
    trace = Trace(bytes.decode)

    async def serve(connection: Connection) -> None:
        await asyncio.sleep(60)

    async def main() -> None:
        fabric = Fabric(1)
        fabric.trace = trace
        await HostNetwork(fabric, "b").listen("b", 1, serve)
        open_one = await HostNetwork(fabric, "a").dial("b", 1, 5.0)
        open_one.send(b"came")
        await asyncio.sleep(1)
        fabric.links.cut((("a", "b"),))
        open_one.send(b"held")
        await asyncio.sleep(5)

    simulate(main())
    found = rows_of(trace, tmp_path / "trace.jsonl")

    assert [(row.did, row.what) for row in found] == [("message", "came"), ("never", "held")]
    assert found[1].from_s == found[1].at_s > found[0].at_s
    assert (found[1].node, found[1].to) == ("a", "b")


def test_a_trace_that_is_full_keeps_its_end_and_says_how_much_it_left_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(traces, "MAX_ROWS", 2)
    trace = Trace(bytes.decode)
    for at_s in (1.0, 2.0, 3.0, 4.0, 5.0):
        trace.add(Row(at_s=at_s, from_s=at_s, node="a", did="sync"))

    found = rows_of(trace, tmp_path / "trace.jsonl")

    assert [(row.did, row.at_s) for row in found] == [
        ("left-out", 4.0),
        ("sync", 4.0),
        ("sync", 5.0),
    ]
    assert found[0].what == "3 rows before this had no room"
