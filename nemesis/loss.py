"""Packets get lost at random between the targets and the rest, in both directions."""

from __future__ import annotations

from harness.capability import Capability
from harness.cluster import Link, LinkQuality, LinkShape
from nemesis import shaping

# Of several hundred packets sent, this share of the expected loss tells both from chance: a whole
# link loses hardly any, a spoiled one rarely less than half of its mean, and less so at every look.
_SHOWN = 0.5


def loss() -> shaping.ShapingFault:
    """Drop a share of the packets: ``n1 at 30 %``."""
    needs = frozenset({Capability.PACKET_LOSS})
    return shaping.ShapingFault(
        kind="loss", needs=needs, spoil=Loss(), unit="%", usual=30.0, least=2.0
    )


class Loss:
    """``nemesis.shaping.Spoil``."""

    def shape(self, link: Link, strength: float) -> LinkShape:
        """Lose ``strength`` per cent."""
        return LinkShape(link=link, loss=strength / 100)

    def shows(self, seen: LinkQuality, shape: LinkShape) -> bool:
        """Whether at least half of the expected share got lost."""
        return seen.loss >= _SHOWN * shape.loss

    def say(self, seen: LinkQuality) -> str:
        """The share that got lost."""
        return f"{seen.loss:.1%} lost"
