"""The common part of faults that degrade links without cutting them: a strength, and measuring."""

from __future__ import annotations

from typing import Protocol

import attrs

from harness.clock import MS_PER_S
from harness.errors import PlanError
from harness.protocols import targets
from harness.protocols.cluster import Link, LinkQuality, LinkShape, Roles
from harness.protocols.fault_kinds import DELAY, LOSS, FaultKind
from harness.protocols.faults import Proof, Scene, Victims
from nemesis import grudges, resolution


class Spoil(Protocol):
    """How a kind degrades a link, and how the effect is measured."""

    def shape(self, link: Link, strength: float) -> LinkShape:
        """The shape of ``link`` at ``strength``."""

    def shows(self, seen: LinkQuality, shape: LinkShape) -> bool:
        """Whether the measurement shows ``shape``; clearly false where the shape is not in
        force.
        """

    def say(self, seen: LinkQuality) -> str:
        """Describe the measurement."""


@attrs.frozen(kw_only=True)
class ShapingFault:
    """A ``Fault`` that degrades the links between the targets and the rest, in both directions.

    The target may end in a strength, ``n1 at 30 %``. The nemesis keeps the union of all shapes in
    force.
    """

    kind: FaultKind
    spoil: Spoil

    def check(self, target: str, nodes: tuple[str, ...], partitions: int | None, path: str) -> None:
        """Refuse a text that is no target here, and a strength in another unit or out of range."""
        targets.checked(target, self.kind.strength, nodes, partitions, path)
        if len(nodes) < 2:
            raise PlanError(path, f"fault {self.kind.name!r} has no link to slow down among 1 node")

    def resolve(
        self, target: str, roles: Roles, nodes: tuple[str, ...], draw: int
    ) -> Victims | None:
        """The nodes that ``target`` means now, and the shapes of the links around them."""
        parsed = targets.parse(target)
        hit = resolution.resolve(parsed, roles, nodes, draw)
        links = grudges.split(hit.nodes, nodes) if hit else ()
        if hit is None or not links:
            return None
        strength = targets.strength_of(parsed, self.kind.strength)
        shapes = tuple(self.spoil.shape(link, strength) for link in links)
        return Victims(nodes=hit.nodes, roles=hit.roles, shapes=shapes)

    async def inject(self, scene: Scene, victims: Victims) -> None:
        """Nothing: the nemesis puts the union of all shapes in force."""

    async def prove(self, scene: Scene, victims: Victims) -> Proof:
        """Every shaped link shows it."""
        return await self._every_link(scene, victims, shown=True)

    async def heal(self, scene: Scene, victims: Victims) -> None:
        """Nothing: the nemesis takes the shapes out of the union."""

    async def prove_healed(self, scene: Scene, victims: Victims) -> Proof:
        """No link that was shaped shows it any more."""
        if not victims.shapes:
            return Proof(holds=True, text="other faults hold all of its links")
        return await self._every_link(scene, victims, shown=False)

    async def _every_link(self, scene: Scene, victims: Victims, *, shown: bool) -> Proof:
        seen = await scene.provider.measure_links(tuple(shape.link for shape in victims.shapes))
        asked = [shape for shape in victims.shapes if shape.link in seen]
        if not asked:
            return Proof(holds=None, text="no shaped link is between machines that can be asked")
        wrong = [s for s in asked if self.spoil.shows(seen[s.link], s) is not shown]
        source, destination = link = (wrong or asked)[0].link
        first = f"{source} to {destination}: {self.spoil.say(seen[link])}"
        held = len(asked) - len(wrong)
        as_it_should = "spoiled" if shown else "as before"
        text = f"{held} of {len(victims.shapes)} links measure {as_it_should} ({first})"
        if wrong:
            return Proof(holds=False, text=text)
        # An effect is shown by the links that can be asked, a heal only by every link.
        whole = shown or len(asked) == len(victims.shapes)
        return Proof(holds=True if whole else None, text=text)


# Of several hundred packets sent, this share of the expected loss tells both from chance: a whole
# link loses hardly any, a spoiled one rarely less than half of its mean, and less so at every look.
_SHOWN = 0.5


def loss() -> ShapingFault:
    """Drop a share of the packets: ``n1 at 30 %``."""
    return ShapingFault(kind=LOSS, spoil=Loss())


class Loss:
    """``nemesis.packet_faults.Spoil``."""

    def shape(self, link: Link, strength: float) -> LinkShape:
        """Lose ``strength`` per cent."""
        return LinkShape(link=link, loss=strength / 100)

    def shows(self, seen: LinkQuality, shape: LinkShape) -> bool:
        """Whether at least half of the expected share got lost."""
        return seen.loss >= _SHOWN * shape.loss

    def say(self, seen: LinkQuality) -> str:
        """The share of datagrams that got lost."""
        return f"{seen.loss:.1%} lost"


# A round trip is delayed twice. The shortest of several is hardly longer than that on a busy
# machine, and far below it once the delay is gone.
_DELAY_SHOWN = 1.5


def delay() -> ShapingFault:
    """Hold every packet back for a while: ``n1 at 100 ms``."""
    return ShapingFault(kind=DELAY, spoil=Delay())


class Delay:
    """``nemesis.packet_faults.Spoil``."""

    def shape(self, link: Link, strength: float) -> LinkShape:
        """Delay by ``strength`` milliseconds."""
        return LinkShape(link=link, delay_s=strength / MS_PER_S)

    def shows(self, seen: LinkQuality, shape: LinkShape) -> bool:
        """Whether the shortest round trip is longer than one delay and a half."""
        return seen.round_trip_s is not None and seen.round_trip_s >= _DELAY_SHOWN * shape.delay_s

    def say(self, seen: LinkQuality) -> str:
        """The shortest round trip."""
        if seen.round_trip_s is None:
            return "nothing came back"
        return f"there and back in {seen.round_trip_s * MS_PER_S:.0f} ms"
