"""The links between the machines of a run: the cuts, losses and delays in force, and their
probes.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Mapping

from clusters.providers.docker.container import CONTROL_PORT, Node
from clusters.providers.remote import delays, link_probe, links, packet_rules
from clusters.providers.remote.node_threads import together
from harness.protocols.cluster import Grudge, Link, LinkQuality, LinkShape

CUT_LIMIT_S = packet_rules.APPLY_LIMIT_S + 10.0
DELAY_LIMIT_S = delays.APPLY_LIMIT_S + 10.0


class Wires:
    """The cuts, losses and delays in force between ``nodes``. A machine that can't be reached gets
    its part when it comes back: the call that brings it back then calls ``apply``, holding
    ``changing``.
    """

    def __init__(self, run_id: str, nodes: Mapping[str, Node]) -> None:
        self._run_id, self._nodes = run_id, nodes
        self._grudge: Grudge = ()
        self._shapes: tuple[LinkShape, ...] = ()
        self._probes = itertools.count(1)
        self.changing = asyncio.Lock()

    async def cut(self, grudge: Grudge) -> None:
        """Give every machine its rules. Raises ``HarnessError`` naming the machines that could not
        be reached; the others are done.
        """
        async with self.changing:
            # Kept even where a machine fails: one that comes back applies what stands here.
            self._grudge = grudge
            await self._apply_everywhere()

    async def shape(self, shapes: tuple[LinkShape, ...]) -> None:
        """As ``cut``, for loss and delay."""
        async with self.changing:
            self._shapes = shapes
            await self._apply_everywhere()

    async def apply(self, node: Node) -> None:
        """Give one machine the rules and delays that are in force when its turn comes, and not
        those of the call: a call whose caller stopped waiting must not bring back what was healed
        meanwhile.
        """
        addresses = {name: at.address for name, at in self._nodes.items()}
        await node.wiring.call("applying the cut", CUT_LIMIT_S, self._set_rules, node, addresses)
        # Most machines never have a delay: they are spared a command at every cut.
        if node.delayed or delays.delays_at(node.name, self._shapes, addresses):
            node.delayed = True  # also where only a part of it worked
            wanted = await node.wiring.call(
                "applying delays", DELAY_LIMIT_S, self._set_delays, node, addresses
            )
            node.delayed = wanted

    def _set_rules(self, node: Node, addresses: Mapping[str, str]) -> None:
        drops = packet_rules.drops_at(node.name, self._grudge, self._shapes, addresses)
        packet_rules.apply(node.session, drops, CONTROL_PORT)

    def _set_delays(self, node: Node, addresses: Mapping[str, str]) -> bool:
        """Whether any are in force now."""
        wanted = delays.delays_at(node.name, self._shapes, addresses)
        peer = next(address for name, address in addresses.items() if name != node.name)
        delays.apply(node.session, wanted, peer)
        return bool(wanted)

    async def probe(self, wanted: tuple[Link, ...]) -> dict[Link, bool]:
        """Whether datagrams sent over each of ``wanted`` arrive; links without a working control
        are left out.
        """
        return await links.probe(self._stations(), wanted, self._label(), self._shapes)

    async def measure(self, wanted: tuple[Link, ...]) -> dict[Link, LinkQuality]:
        """Send many datagrams over each of ``wanted``; count and time them."""
        longest_s = max((shape.delay_s for shape in self._shapes), default=0.0)
        return await link_probe.measure(self._stations(), wanted, self._label(), longest_s)

    async def _apply_everywhere(self) -> None:
        await together(self.apply(node) for node in self._nodes.values() if node.reachable)

    def _stations(self) -> dict[str, links.Station]:
        return {
            name: links.Station(
                lane=node.lane,
                session=node.session,
                address=node.address,
                control_port=CONTROL_PORT,
            )
            for name, node in self._nodes.items()
            if node.reachable
        }

    def _label(self) -> str:
        return f"{self._run_id}/{next(self._probes)}"
