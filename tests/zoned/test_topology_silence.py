"""How long the leader of metastorage has heard nothing of a node, tick by tick, over a metastorage
that decides at once.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import attrs
import msgspec
import pytest

from clusters.reference.node.catalog.nodes import Node
from clusters.reference.node.config import Zoned
from clusters.reference.node.events import EventLog
from clusters.reference.node.metastorage.metastorage import (
    Invoke,
    Metastorage,
    Operation,
    encode_invoke,
)
from clusters.reference.node.placement.lease_expiry import LEASE, Lease, LeaseTable, encode
from clusters.reference.node.raft.types import Entry
from clusters.reference.node.runtime.hybrid_clock import Hlc
from clusters.reference.node.topology.logical import ALIVE, RESUMED, TopologyService, logical
from clusters.reference.node.wire.messages import Join

TICK_S = 0.1
written = msgspec.msgpack.Decoder(Invoke).decode


@attrs.define
class Group:
    store: Metastorage
    serving: bool = True
    leader: str | None = "n1"
    index: int = 0
    # By key: what comes into the log before the first write of it that is proposed.
    before: dict[str, Callable[[], object]] = attrs.field(factory=dict)

    async def propose(self, data: bytes, limit_s: float) -> object:
        for operation in written(data).success:
            self.before.pop(operation.key, lambda: None)()
        return self.apply(data)

    def apply(self, data: bytes) -> object:
        self.index += 1
        return self.store.apply(Entry(term=1, index=self.index, data=data))


class Lab:
    """The service at n1, which leads; n2 renews no lease."""

    def __init__(self) -> None:
        self.now_s, self.store = 100.0, Metastorage()
        self.group = Group(self.store)
        self.start(1)

    def start(self, number: int) -> None:
        """The start of that ``number`` of n1; the one before it is over."""
        self.number = number
        clock = Hlc(wall_ns=lambda: 10**18, monotonic_s=self.time)
        leases = LeaseTable(
            node="n1",
            origin=f"n1~{number}",
            clock=clock,
            monotonic_s=self.time,
            held=self.store.get,
        )
        self.store.observe(LEASE, leases.changed)
        self.service = TopologyService(
            node="n1",
            zoned=Zoned(system_nodes=("n1",), detection_s=1.0),
            names=("n1", "n2"),
            view=self.store,
            group=self.group,
            voters=lambda: ("n1",),
            leases=leases,
            connected=lambda: ("n2",),
            resume=lambda down_since: (),
            event_log=EventLog(boot="b", wall_ns=lambda: 0),
            monotonic_s=self.time,
        )
        self.store.observe(LEASE, self.service.observed)

    def time(self) -> float:
        return self.now_s

    async def tick(self, count: int = 1) -> None:
        for _ in range(count):
            self.now_s += TICK_S
            self.service.tick()
            await self.service._write()

    async def join(self, name: str, start: int = 1) -> None:
        zoned, origin = Zoned(system_nodes=("n1",)), f"{name}~{start}"
        await self.service.serve(Join(Node(name=name), origin, "a", zoned.tag, zoned.version))

    def renew(self, name: str, number: int) -> None:
        lease = encode(Lease(f"{name}~1", number, 10**18 + number))
        self.group.apply(encode_invoke(Invoke((), (Operation(f"{LEASE}{name}", lease),))))

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


@pytest.mark.parametrize("key", [ALIVE, RESUMED, None])
def test_a_renewal_that_is_in_the_log_by_then_says_that_the_cluster_was_not_down(
    key: str | None,
) -> None:
    async def scenario() -> None:
        lab = Lab()
        await lab.tick()
        await lab.join("n1")
        await lab.join("n2")
        await lab.tick()
        lab.renew("n2", 1)

        lab.start(2)
        lab.renew("n2", 2)
        lab.now_s += TICK_S
        lab.service.tick()
        await lab.join("n1", 2)

        def late() -> None:
            # It was sent in time, and the disk of the leader was slow.
            lab.now_s += 2.0
            lab.renew("n2", 3)

        if key is not None:
            lab.group.before[key] = late
        await lab.tick(9)
        assert lab.service.settled == (key == ALIVE)
        await lab.tick(5)

        assert lab.service.settled
        assert not lab.group.before
        assert (lab.store.get(RESUMED) is None) == (key is not None)

    asyncio.run(scenario())
