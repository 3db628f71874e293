"""A group under a steady load that is more than a few messages behind at any time, while its
members change.
"""

from __future__ import annotations

import asyncio

from zoned_lab import LIMIT_S, Lab, columns, now_s

from clusters.providers.sim.loop import simulate
from clusters.providers.sim.provider import SimProvider
from clusters.reference.claims.claims_reader import ReferenceClaims
from clusters.reference.node.config import loads
from clusters.reference.node.runtime import Runtime
from clusters.reference.node.runtime.concurrency import together
from clusters.reference.node.server import Life, Node
from clusters.reference.node.tx import commands
from harness.protocols.claims import Claim
from harness.protocols.cluster import LinkShape, Program

EVERY_S, AT_ONCE = 0.02, 20
DELAY_S = 0.2  # each way to the new node: 400 entries are on their way to it, or 1.5 messages
COMMAND = commands.encode(commands.Forget(0, (), 0))  # of no primary: it changes nothing
TOPOLOGY = "SELECT NODE_NAME FROM SYSTEM.LOGICAL_TOPOLOGY"
STABLE = "SELECT NODES FROM SYSTEM.ASSIGNMENTS WHERE KIND = 'stable'"


def test_a_change_of_peers_completes_under_a_load_that_never_pauses() -> None:
    committed: dict[str, int] = {}

    async def body(program: Program, runtime: Runtime) -> None:
        config = loads(program.files[program.argv[program.argv.index("--config") + 1]])
        components = await Node(config, runtime).recover()

        async def load() -> None:
            while True:
                await asyncio.sleep(EVERY_S)
                group = components.host.groups.get("p0")
                if group is not None and group.serving:
                    committed[config.node] = group.raft.commit_index
                    for _ in range(AT_ONCE):
                        components.host.propose(group, COMMAND, LIMIT_S, lambda _: None)

        await together(Life(components).run(), load())

    async def scenario() -> None:
        lab = Lab(3, ("a", "b", "c", "d"))
        lab.provider = SimProvider(seed=3, body=body, claims=ReferenceClaims())
        await lab.provision()
        await lab.provider.shape(
            tuple(
                LinkShape(link=link, delay_s=DELAY_S)
                for other in "abc"
                for link in (("d", other), (other, "d"))
            )
        )
        await lab.start(*lab.nodes)
        await lab.until_rows(TOPOLOGY, columns("a b c d"))
        await lab.done(
            'CREATE ZONE z WITH PARTITIONS = 1, REPLICAS = 3, DATA_NODES_FILTER = \'"a", "b", "c"\''
        )
        await lab.done("CREATE TABLE t WITH PRIMARY_ZONE = z")
        await asyncio.sleep(2.0)
        before, begun_s = max(committed.values()), now_s()
        await lab.done('ALTER ZONE z SET DATA_NODES_FILTER = \'"a", "b", "d"\'')
        ended_s = await lab.until_rows(STABLE, {("a,b,d",)}, limit_s=10.0)
        # The load went on all the time.
        assert max(committed.values()) - before > 0.8 * (ended_s - begun_s) * AT_ONCE / EVERY_S
        await lab.provider.teardown()
        claims = lab.provider.claims()
        assert claims is not None
        # The load changes nothing, and that it is needed is no promise of it.
        assert set(claims.broken) <= {Claim.NEEDED_ENTRIES}, claims.examples[:3]

    simulate(scenario())
