"""How long the leader of metastorage has heard nothing of a node, tick by tick, over a metastorage
that decides at once.
"""

from __future__ import annotations

import asyncio

import attrs

from clusters.reference.node.catalog.nodes import Node
from clusters.reference.node.config import Zoned
from clusters.reference.node.events import EventLog
from clusters.reference.node.metastorage.metastorage import Metastorage
from clusters.reference.node.placement.lease_expiry import LeaseTable
from clusters.reference.node.raft.types import Entry
from clusters.reference.node.runtime.hybrid_clock import Hlc
from clusters.reference.node.topology.logical import TopologyService, logical
from clusters.reference.node.wire.messages import Join

TICK_S = 0.1


@attrs.define
class Group:
    store: Metastorage
    serving: bool = True
    leader: str | None = "n1"
    index: int = 0

    async def propose(self, data: bytes, limit_s: float) -> object:
        self.index += 1
        return self.store.apply(Entry(term=1, index=self.index, data=data))


class Lab:
    """The service at n1, which leads; n2 renews no lease."""

    def __init__(self) -> None:
        self.now_s = 100.0
        self.store = Metastorage()
        clock = Hlc(wall_ns=lambda: 10**18, monotonic_s=self.time)
        leases = LeaseTable(
            node="n1", origin="n1~1", clock=clock, monotonic_s=self.time, held=self.store.get
        )
        self.service = TopologyService(
            node="n1",
            zoned=Zoned(system_nodes=("n1",), detection_s=1.0),
            names=("n1", "n2"),
            view=self.store,
            group=Group(self.store),
            voters=lambda: ("n1",),
            leases=leases,
            connected=lambda: ("n2",),
            resume=lambda down_since: (),
            event_log=EventLog(boot="b", wall_ns=lambda: 0),
            monotonic_s=self.time,
        )

    def time(self) -> float:
        return self.now_s

    async def tick(self, count: int = 1) -> None:
        for _ in range(count):
            self.now_s += TICK_S
            self.service.tick()
            await self.service._write()

    async def join(self, name: str) -> None:
        zoned = Zoned(system_nodes=("n1",))
        await self.service.serve(Join(Node(name=name), f"{name}~1", "a", zoned.tag, zoned.version))

    def there(self) -> list[str]:
        return [member.name for member in logical(self.store)]


def test_a_start_that_was_out_and_joins_again_before_the_next_tick_is_counted_anew() -> None:
    async def scenario() -> None:
        lab = Lab()
        await lab.tick()
        await lab.join("n1")
        await lab.join("n2")
        await lab.tick(9)
        assert lab.there() == ["n1", "n2"]
        await lab.tick(3)
        assert lab.there() == ["n1"]

        await lab.join("n2")
        await lab.tick(9)
        assert lab.there() == ["n1", "n2"]
        await lab.tick(3)
        assert lab.there() == ["n1"]

    asyncio.run(scenario())
