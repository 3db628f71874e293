"""Packets between the targets and the rest take longer, in both directions."""

from __future__ import annotations

from harness.capability import Capability
from harness.cluster import Link, LinkQuality, LinkShape
from nemesis import shaping

MS_PER_S = 1000
# A round trip is delayed twice. The shortest of several is hardly longer than that on a busy
# machine, and far below it once the delay is gone.
_SHOWN = 1.5


def delay() -> shaping.ShapingFault:
    """Hold every packet back for a while: ``n1 at 100 ms``."""
    needs = frozenset({Capability.DELAY})
    return shaping.ShapingFault(
        kind="delay", needs=needs, spoil=Delay(), unit="ms", usual=100.0, least=5.0
    )


class Delay:
    """``nemesis.shaping.Spoil``."""

    def shape(self, link: Link, strength: float) -> LinkShape:
        """Delay by ``strength`` milliseconds."""
        return LinkShape(link=link, delay_s=strength / MS_PER_S)

    def shows(self, seen: LinkQuality, shape: LinkShape) -> bool:
        """Whether the shortest round trip is longer than one delay and a half."""
        return seen.round_trip_s is not None and seen.round_trip_s >= _SHOWN * shape.delay_s

    def say(self, seen: LinkQuality) -> str:
        """The shortest round trip."""
        if seen.round_trip_s is None:
            return "nothing came back"
        return f"there and back in {seen.round_trip_s * MS_PER_S:.0f} ms"
