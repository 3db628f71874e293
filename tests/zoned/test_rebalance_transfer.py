"""A partition of many bytes that moves to a node whose link is cut again and again, under load.
FIREDRILL_TRANSFER_MIB says how large it is.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from typing import Any

import pytest
from timed_writer import Writer, write
from zoned_lab import Lab, columns, now_s

from clusters.providers.sim.loop import simulate
from clusters.providers.sim.provider import SimProvider
from clusters.reference.claims.claims_reader import ReferenceClaims
from clusters.reference.client import ReferenceClient, connect
from clusters.reference.node.groups.snapshot_manager import SnapshotManager
from clusters.reference.node.raft import Chunk, Message
from harness.protocols.cluster import LinkShape

MIB = 2**20
SIZE = int(os.environ.get("FIREDRILL_TRANSFER_MIB", "8")) * MIB
VALUE_BYTES = 2**18
VALUES = 2 * SIZE // VALUE_BYTES  # of half as many bytes on average
LIMIT_S = SIZE / MIB * 5
CUTS, CUT_S = 5, 0.7
DELAY_S = 0.08  # each way to the new node: a piece takes a round trip, which limits the transfer
BEFORE_S = 4.0
MAX_RESENT, MAX_SLOWER = 1.2, 3.0
TOPOLOGY = "SELECT NODE_NAME FROM SYSTEM.LOGICAL_TOPOLOGY"
STABLE = "SELECT NODES FROM SYSTEM.ASSIGNMENTS WHERE KIND = 'stable'"


Send = Callable[[str, tuple[tuple[str, Message], ...]], None]


async def dial(lab: Lab, node: str, padding_bytes: int) -> ReferenceClient:
    """A client whose values have so many bytes."""
    address, network = lab.cluster.client[node]["client"], lab.provider.client_network
    return await connect(
        network,
        address.host,
        address.port,
        1.0,
        padding_bytes=padding_bytes,
        table_of=lambda _: "T",
    )


def test_a_transfer_whose_link_is_cut_again_and_again_goes_on_where_it_was(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    sent: list[Chunk] = []
    init = SnapshotManager.__init__

    def counting(manager: SnapshotManager, *, send: Send, **rest: Any) -> None:
        def counted(to: str, messages: tuple[tuple[str, Message], ...]) -> None:
            sent.extend(each for _, each in messages if isinstance(each, Chunk))
            send(to, messages)

        init(manager, send=counted, **rest)

    monkeypatch.setattr(SnapshotManager, "__init__", counting)

    def sent_bytes() -> int:
        return sum(len(chunk.data) for chunk in sent)

    async def scenario() -> None:
        lab = Lab(31, ("a", "b", "c", "d"))
        lab.provider = SimProvider(seed=31, claims=ReferenceClaims())
        await lab.provision()
        slow = [link for other in "abc" for link in (("d", other), (other, "d"))]
        await lab.provider.shape(tuple(LinkShape(link=link, delay_s=DELAY_S) for link in slow))
        await lab.start(*lab.nodes)
        await lab.until_rows(TOPOLOGY, columns("a b c d"))
        await lab.done(
            'CREATE ZONE z WITH PARTITIONS = 1, REPLICAS = 3, DATA_NODES_FILTER = \'"a", "b", "c"\''
        )
        await lab.done("CREATE TABLE t WITH PRIMARY_ZONE = z")
        client = await dial(lab, "a", VALUE_BYTES)
        for key in range(VALUES):
            await write(client, key)
        await client.close()
        assert not sent

        writer = Writer()
        work = [
            asyncio.ensure_future(writer.run(await dial(lab, n, 0), VALUES + i))
            for i, n in enumerate("abc", start=1)
        ]
        begun_s = now_s()
        await asyncio.sleep(BEFORE_S)
        moves_s = now_s()
        await lab.done('ALTER ZONE z SET DATA_NODES_FILTER = \'"a", "b", "d"\'')
        for number in range(1, CUTS + 1):
            while sent_bytes() < number * SIZE // (2 * CUTS):
                assert now_s() < moves_s + LIMIT_S, sent_bytes()
                await asyncio.sleep(0.02)
            await lab.provider.cut(tuple(sorted(slow)))
            await asyncio.sleep(CUT_S)
            await lab.provider.cut(())
        ended_s = await lab.until_rows(STABLE, {("a,b,d",)}, limit_s=LIMIT_S)
        writer.over = True
        await asyncio.gather(*work)

        before_s, during_s = writer.p99_s(begun_s, moves_s), writer.p99_s(moves_s, ended_s)
        size = max(chunk.offset + len(chunk.data) for chunk in sent)
        resent = sent_bytes() / size
        print(
            f"{size / MIB:.1f} MiB in {ended_s - moves_s:.1f} s, {CUTS} cuts of {CUT_S} s: "
            f"{resent:.2f} x its bytes sent; p99 {1e3 * before_s:.1f} -> {1e3 * during_s:.1f} ms"
        )
        assert size > SIZE / 2
        assert len({chunk.mark for chunk in sent}) == 1
        assert resent <= MAX_RESENT
        assert during_s <= MAX_SLOWER * before_s
        claims = lab.provider.claims()
        assert claims is not None
        assert not claims.broken, claims.examples[:3]
        await lab.provider.teardown()

    simulate(scenario())
