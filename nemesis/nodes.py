"""What faults on nodes have in common: resolving a target to nodes, and looks that prove things."""

from __future__ import annotations

import attrs

from harness.cluster import NodeStatus, Roles
from harness.faults import Proof, Scene, Victims
from harness.tasks import together
from nemesis import targets


class NodeFault:
    """The half of a fault kind that says who is hit, for kinds that act on nodes."""

    aims: tuple[str, ...] = ()

    def check(self, target: str, nodes: tuple[str, ...], partitions: int | None, path: str) -> None:
        """Refuse what is no target here, and one with a strength: these kinds have none."""
        parsed = targets.parse(target, path)
        targets.check(parsed, nodes, partitions, path)
        targets.check_strength(parsed, "", path)

    def resolve(
        self, target: str, roles: Roles, nodes: tuple[str, ...], draw: int
    ) -> Victims | None:
        """The nodes that ``target`` means now."""
        hit = targets.resolve(targets.parse(target), roles, nodes, draw)
        return None if hit is None else Victims(nodes=hit.nodes, roles=hit.roles)


async def probe(scene: Scene, victims: Victims) -> list[NodeStatus]:
    """What the provider sees of every victim, in their order."""
    return await together(scene.provider.probe(node) for node in victims.nodes)


async def prove_down(scene: Scene, victims: Victims) -> Proof:
    """Whether no victim runs."""
    looks = await probe(scene, victims)
    alive = [f"{look.node} still runs (pid {look.pid})" for look in looks if look.running]
    if alive:
        return Proof(holds=False, text="; ".join(alive))
    return Proof(holds=True, text="; ".join(_ended(look) for look in looks))


async def prove_serving(scene: Scene, victims: Victims) -> Proof:
    """Whether every victim runs, is neither paused nor frozen, and answers."""
    looks = await probe(scene, victims)
    held = [_why_not(look) for look in looks if _why_not(look)]
    if held:
        return Proof(holds=False, text="; ".join(held))
    if silent := await _silent(scene, victims):
        return Proof(holds=False, text=f"{', '.join(silent)} runs but tells no roles")
    boots = (f"{look.node} runs (boot {look.boot}) and tells roles" for look in looks)
    return Proof(holds=True, text="; ".join(boots))


async def prove_silent(scene: Scene, victims: Victims) -> Proof:
    """Whether no victim answers."""
    silent = await _silent(scene, victims)
    talking = [node for node in victims.nodes if node not in silent]
    if talking:
        return Proof(holds=False, text=f"{', '.join(talking)} still answers")
    return Proof(holds=True, text=f"no answer from {', '.join(silent)}")


async def start_stopped(scene: Scene, victims: Victims) -> None:
    """Start every victim that does not run."""
    looks = await probe(scene, victims)
    down = [look.node for look in looks if not look.running]
    await together(scene.provider.start(node) for node in down)


def _ended(look: NodeStatus) -> str:
    return f"{look.node} does not run" + (f" ({look.exit_text})" if look.exit_text else "")


def _why_not(look: NodeStatus) -> str:
    """What keeps the node from serving; empty where nothing does."""
    if not look.running:
        return f"{look.node} does not run {look.exit_text}".rstrip()
    if look.frozen:
        return f"{look.node} is frozen"
    return f"{look.node} is paused (pid {look.pid})" if look.paused else ""


async def _silent(scene: Scene, victims: Victims) -> list[str]:
    answers = await together(_answers(scene, node) for node in victims.nodes)
    return [node for node, told in zip(victims.nodes, answers, strict=True) if not told]


async def _answers(scene: Scene, node: str) -> bool:
    """Whether ``node`` itself tells any role: it is asked as if it were the whole cluster."""
    alone = attrs.evolve(scene.cluster, nodes=(node,))
    return await scene.system.roles(alone) != Roles()
