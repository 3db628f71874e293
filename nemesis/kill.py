"""kill -9 of the store's program, and its start. The machine stays, so peers see resets."""

from __future__ import annotations

import asyncio

import attrs

from harness.capability import Capability
from harness.cluster import NodeStatus, Roles
from harness.faults import Proof, Scene, Victims
from nemesis import targets


class Kill:
    """SIGKILL the program on the targets; healing starts it again."""

    kind: str = "kill"
    needs: frozenset[Capability] = frozenset({Capability.KILL})

    def resolve(
        self, target: str, roles: Roles, nodes: tuple[str, ...], draw: int
    ) -> Victims | None:
        """The nodes that ``target`` means now."""
        hit = targets.resolve(targets.parse(target), roles, nodes, draw)
        return None if hit is None else Victims(nodes=hit.nodes, roles=hit.roles)

    async def inject(self, scene: Scene, victims: Victims) -> None:
        """Kill all at once: one after the other would let the store react in between."""
        await asyncio.gather(*(scene.provider.kill(node) for node in victims.nodes))

    async def prove(self, scene: Scene, victims: Victims) -> Proof:
        """A probe shows no running program on any target."""
        looks = await _probe(scene, victims)
        alive = [f"{look.node} still runs (pid {look.pid})" for look in looks if look.running]
        if alive:
            return Proof(holds=False, text="; ".join(alive))
        ends = [
            f"{look.node} does not run" + (f" ({look.exit_text})" if look.exit_text else "")
            for look in looks
        ]
        return Proof(holds=True, text="; ".join(ends))

    async def heal(self, scene: Scene, victims: Victims) -> None:
        """Start what does not run."""
        looks = await _probe(scene, victims)
        down = [look.node for look in looks if not look.running]
        await asyncio.gather(*(scene.provider.start(node) for node in down))

    async def prove_healed(self, scene: Scene, victims: Victims) -> Proof:
        """Every target runs, as another boot than the one that was seen dead, and answers."""
        looks = await _probe(scene, victims)
        down = [f"{look.node} does not run {look.exit_text}".rstrip() for look in looks
                if not look.running]  # fmt: skip
        if down:
            return Proof(holds=False, text="; ".join(down))
        answers = await asyncio.gather(*(_answers(scene, node) for node in victims.nodes))
        silent = [node for node, told in zip(victims.nodes, answers, strict=True) if not told]
        if silent:
            return Proof(holds=False, text=f"{', '.join(silent)} runs but tells no roles")
        boots = (f"{look.node} runs (boot {look.boot}) and tells roles" for look in looks)
        return Proof(holds=True, text="; ".join(boots))


async def _probe(scene: Scene, victims: Victims) -> list[NodeStatus]:
    return list(await asyncio.gather(*(scene.provider.probe(node) for node in victims.nodes)))


async def _answers(scene: Scene, node: str) -> bool:
    """Whether ``node`` itself tells any role: it is asked as if it were the whole cluster."""
    alone = attrs.evolve(scene.cluster, nodes=(node,))
    return await scene.system.roles(alone) != Roles()
