"""Crashes at chosen points: in the middle of a sync, a rename or a message."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import attrs
import msgspec

from harness.errors import MissingCapability, PlanError
from harness.plan.plan import options as convert
from harness.protocols.cluster import Roles
from harness.protocols.crash_points import CrashesAtPoints, CrashPoint, Operation
from harness.protocols.fault_kinds import CRASH, FaultKind
from harness.protocols.faults import Fault, Proof, Scene, Victims
from harness.tasks import together
from nemesis.node_faults import Kill, NodeFault

_ON_DISK = (Operation.SYNC, Operation.RENAME)


def crash() -> CrashFault:
    """End the program of one of the targets at a point of its work; healing starts it again."""
    return CrashFault()


@attrs.frozen(kw_only=True)
class CrashFault:
    """A ``Fault`` that crashes the first of its targets that comes to ``point``. What that node had
    not synced is lost, or there in part.
    """

    point: CrashPoint = attrs.field(factory=CrashPoint)
    kind: FaultKind = CRASH

    def __str__(self) -> str:
        return str(self.point)

    def with_options(self, options: Mapping[str, Any], partitions: int | None, path: str) -> Fault:
        """The fault at the point of ``options``."""
        point = convert(CrashPoint, options, path)
        if point.messages is not None and point.at in _ON_DISK:
            problem = f"expected 'send' or 'receive' as 'at' beside it (got {point.at.value!r})"
            raise PlanError(f"{path}.messages", problem)
        return attrs.evolve(self, point=point)

    @property
    def _killing(self) -> NodeFault:
        return NodeFault(kind=self.kind, verbs=Kill())

    def check(self, target: str, nodes: tuple[str, ...], partitions: int | None, path: str) -> None:
        """Refuse a text that is no target here."""
        self._killing.check(target, nodes, partitions, path)

    def resolve(
        self, target: str, roles: Roles, nodes: tuple[str, ...], draw: int
    ) -> Victims | None:
        """The nodes one of which is to crash."""
        return self._killing.resolve(target, roles, nodes, draw)

    async def await_point(
        self, scene: Scene, victims: Victims, claim: Callable[[str], bool]
    ) -> None:
        """Return once one of the nodes has crashed at the point."""
        provider = scene.provider
        if not isinstance(provider, CrashesAtPoints):
            # ``needs`` is a set: the least name makes the sentence the same in every run.
            raise MissingCapability(f"fault {self.kind.name!r}", min(self.kind.needs))
        await provider.crash_at(victims.nodes, self.point, claim)

    async def inject(self, scene: Scene, victims: Victims) -> None:
        """Tell the provider that the end was meant: the node is dying already."""
        await together(scene.provider.kill(node) for node in victims.nodes)

    async def prove(self, scene: Scene, victims: Victims) -> Proof:
        """The node is down, and none answers."""
        proof = await self._killing.prove(scene, victims)
        return msgspec.structs.replace(proof, text=f"{self.point}: {proof.text}")

    async def heal(self, scene: Scene, victims: Victims) -> None:
        """Start it."""
        await self._killing.heal(scene, victims)

    async def prove_healed(self, scene: Scene, victims: Victims) -> Proof:
        """It runs as another boot, and answers."""
        return await self._killing.prove_healed(scene, victims)
