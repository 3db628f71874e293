"""Cuts that outlast whoever asked for them; the machines are stand-ins for the ends of SSH."""

from __future__ import annotations

import asyncio
import threading
from typing import Any, cast

import pytest

from clusters.providers.docker.container import Node
from clusters.providers.docker.docker_links import Wires
from clusters.providers.remote.node_threads import Lane
from clusters.providers.remote.ssh_session import Session
from harness.protocols.cluster import LinkShape

LIMIT_S = 10.0


class Machine:
    """Keeps the last rules that it was sent; its first command waits until it may go on."""

    def __init__(self) -> None:
        self.may_go_on = threading.Event()
        self.asked = threading.Event()
        self.rules = b""

    def run(self, argv: Any, *, stdin: bytes = b"", **_: Any) -> bytes:
        self.asked.set()
        assert self.may_go_on.wait(LIMIT_S)
        self.rules = stdin
        return b""


def node(name: str, address: str, machine: Machine) -> Node:
    session = cast(Session, machine)
    lanes = {which: Lane(name, threads=1) for which in ("actions", "power", "wiring")}
    return Node(name=name, address=address, lane=Lane(name), session=session, **lanes)


@pytest.mark.parametrize("healed_while", ["it waits", "it is under way"])
def test_a_cut_that_nobody_awaits_any_longer_does_not_land_after_its_heal(
    healed_while: str,
) -> None:
    machines = {"n1": Machine(), "n2": Machine()}
    nodes = {n: node(n, f"198.18.0.{i}", m) for i, (n, m) in enumerate(machines.items(), 1)}
    wires = Wires("run", nodes)
    loss = LinkShape(link=("n1", "n2"), loss=0.5)

    async def story() -> None:
        machines["n1"].may_go_on.set()
        if healed_while == "it waits":
            before = asyncio.ensure_future(wires.shape((loss,)))
            await asyncio.to_thread(machines["n2"].asked.wait, LIMIT_S)
            before.cancel()
            await asyncio.wait({before})
        cutting = asyncio.ensure_future(wires.cut((("n1", "n2"),)))
        await asyncio.to_thread(machines["n2"].asked.wait, LIMIT_S)
        cutting.cancel()
        await asyncio.wait({cutting})
        healing = asyncio.ensure_future(wires.shape(()))
        heal = asyncio.ensure_future(wires.cut(()))
        machines["n2"].may_go_on.set()
        await healing
        await heal
        for at in nodes.values():  # whatever is still under way there
            await asyncio.to_thread(at.lane.close)
            at.wiring._pool.shutdown(wait=True)
            at.lane._pool.shutdown(wait=True)

    asyncio.run(story())

    assert b"COMMIT" in machines["n2"].rules
    assert b"DROP" not in machines["n2"].rules
