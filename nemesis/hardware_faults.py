"""The common part of faults of disks and clocks.

Each kind is its ``FaultKind`` and three verbs: break a node, show the effect, heal. A kind that
destroys acknowledged data waits until the others would still hold a majority of every partition's
voters (``majority_guard``): no store survives more.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import Protocol

import attrs

from harness.errors import MissingCapability, PlanError
from harness.protocols import targets
from harness.protocols.cluster import Roles
from harness.protocols.fault_kinds import FaultKind
from harness.protocols.faults import Proof, Scene, Victims
from harness.protocols.hardware import Hardware, Wipes
from harness.tasks import together
from nemesis import node_faults, resolution
from nemesis.majority_guard import lacking_replicas, spare_majorities


@attrs.frozen(kw_only=True)
class Hit:
    """A node under a fault: where the fault acts, its strength, and the number that decides its
    random part.
    """

    scene: Scene
    kind: FaultKind
    node: str
    strength: float
    draw: int

    @property
    def hardware(self) -> Hardware:
        """The disks and clocks of the provider. Raises ``MissingCapability``."""
        if not isinstance(self.scene.provider, Hardware):
            raise MissingCapability(self.kind.name, min(self.kind.needs))
        return self.scene.provider

    @property
    def storage(self) -> Wipes:
        """The provider that can take data away. Raises ``MissingCapability``."""
        if not isinstance(self.scene.provider, Wipes):
            raise MissingCapability(self.kind.name, min(self.kind.needs))
        return self.scene.provider


class Verbs(Protocol):
    """The verbs of a kind on one node."""

    async def inject(self, hit: Hit) -> None:
        """Break it."""

    async def effective(self, hit: Hit) -> Proof:
        """Whether a look shows it broken."""

    async def heal(self, hit: Hit) -> None:
        """Mend it. Idempotent."""

    async def healed(self, hit: Hit) -> Proof:
        """Whether a look shows it mended; that its program runs is shown apart."""


@attrs.frozen(kw_only=True)
class HardwareFault:
    """``Fault`` for ``verbs``."""

    kind: FaultKind
    verbs: Verbs

    def check(self, target: str, nodes: tuple[str, ...], partitions: int | None, path: str) -> None:
        """Refuse a text that is no target here, a strength that the kind does not have, and a
        majority where the kind destroys.
        """
        parsed = targets.checked(target, self.kind.strength, nodes, partitions, path)
        if self.kind.destroys and targets.is_majority(parsed, len(nodes)):
            left = "leave a majority whole, since no store survives the loss of one"
            raise PlanError(path, f"target of {self.kind.name} must {left} (got {target!r})")

    def resolve(
        self, target: str, roles: Roles, nodes: tuple[str, ...], draw: int
    ) -> Victims | None:
        """The nodes that ``target`` means now."""
        parsed = targets.parse(target)
        hit = resolution.resolve(parsed, roles, nodes, draw)
        if hit is None:
            return None
        strength = targets.strength_of(parsed, self.kind.strength)
        return Victims(nodes=hit.nodes, roles=hit.roles, strength=strength, draw=draw)

    async def inject(self, scene: Scene, victims: Victims) -> None:
        """Break all targets."""
        if self.kind.destroys:
            await spare_majorities(scene, victims)
        await together(map(self.verbs.inject, self._hits(scene, victims)))

    async def prove(self, scene: Scene, victims: Victims) -> Proof:
        """Every target shows the effect."""
        looks = await node_faults.probe(scene, victims)
        # A node that died of it has to come back under another boot before that is a heal.
        boots = {look.node: look.boot for look in looks if look.boot and not look.running}
        return await self._every(self.verbs.effective, scene, victims, boots)

    async def heal(self, scene: Scene, victims: Victims) -> None:
        """Mend all targets."""
        await together(map(self.verbs.heal, self._hits(scene, victims)))

    async def prove_healed(self, scene: Scene, victims: Victims) -> Proof:
        """Every target is mended, runs and answers; with all its data again, where that was
        destroyed.
        """
        mended = await self._every(self.verbs.healed, scene, victims, {})
        runs = await node_faults.prove_runs(scene, victims)
        # Whole copies elsewhere are what made the fault survivable: the next one must wait for
        # them.
        if self.kind.destroys and mended.holds and runs.holds:
            lacking = await lacking_replicas(scene)
            if lacking:
                return Proof(holds=False, text="; ".join(lacking), gone=True)
        wrong = [proof.text for proof in (mended, runs) if not proof.holds]
        both = f"{mended.text}; {runs.text}"
        gone = bool(mended.holds) and runs.gone
        return Proof(holds=not wrong, text="; ".join(wrong) or both, gone=gone)

    async def _every(
        self,
        verb: Callable[[Hit], Awaitable[Proof]],
        scene: Scene,
        victims: Victims,
        boots: Mapping[str, str],
    ) -> Proof:
        proofs = await together(map(verb, self._hits(scene, victims)))
        wrong = [proof.text for proof in proofs if not proof.holds]
        text = "; ".join(wrong or [proof.text for proof in proofs])
        return Proof(holds=not wrong, text=text, boots=dict(boots))

    def _hits(self, scene: Scene, victims: Victims) -> list[Hit]:
        return [
            Hit(
                scene=scene,
                kind=self.kind,
                node=node,
                strength=victims.strength,
                draw=victims.draw,
            )
            for node in victims.nodes
        ]
