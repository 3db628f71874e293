"""Clocks that jump, or that gain or lose time."""

from __future__ import annotations

import attrs

from harness.clock import MS_PER_S
from harness.protocols.fault_kinds import CLOCK_FAST, CLOCK_JUMP, CLOCK_SLOW
from harness.protocols.faults import Proof
from harness.protocols.hardware import ClockLook, ClockTrouble
from nemesis.hardware_faults import HardwareFault, Hit

_RIGHT_S = 0.05  # a clock that is closer to the controller's counts as right
_SAME_RATE = 0.001


def clock_jump() -> HardwareFault:
    """The wall clock jumps ahead (``n1 at 20000 ms``), and back at the heal."""
    return HardwareFault(kind=CLOCK_JUMP, verbs=Jump())


def clock_fast() -> HardwareFault:
    """Both clocks gain time (``n1 at 2 %``); the heal sets the wall clock."""
    return HardwareFault(kind=CLOCK_FAST, verbs=Drift(1))


def clock_slow() -> HardwareFault:
    """Both clocks lose time (``n1 at 2 %``); the heal sets the wall clock."""
    return HardwareFault(kind=CLOCK_SLOW, verbs=Drift(-1))


class Jump:
    """``nemesis.hardware_faults.Verbs``."""

    async def inject(self, hit: Hit) -> None:
        """Jump ahead."""
        await hit.hardware.set_clock(hit.node, ClockTrouble(jump_s=hit.strength / MS_PER_S))

    async def effective(self, hit: Hit) -> Proof:
        """The wall clock is ahead."""
        look = await hit.hardware.look_at_clock(hit.node)
        ahead = look.ahead_s >= hit.strength / MS_PER_S - _RIGHT_S
        return Proof(holds=ahead, text=_said(hit.node, look))

    async def heal(self, hit: Hit) -> None:
        """Jump to where it should be."""
        await _set_right(hit)

    async def healed(self, hit: Hit) -> Proof:
        """The wall clock is right."""
        return await _is_right(hit)


@attrs.frozen
class Drift:
    """``hardware_faults.Verbs``; ``sign`` is 1 for a clock that gains, -1 for one that loses."""

    sign: int

    async def inject(self, hit: Hit) -> None:
        """Begin to drift."""
        rate = 1 + self.sign * hit.strength / 100
        await hit.hardware.set_clock(hit.node, ClockTrouble(rate=rate))

    async def effective(self, hit: Hit) -> Proof:
        """At least half of the drift is seen."""
        look = await hit.hardware.look_at_clock(hit.node)
        seen = self.sign * (look.rate - 1) >= hit.strength / 200
        return Proof(holds=seen, text=_said(hit.node, look))

    async def heal(self, hit: Hit) -> None:
        """Stop drifting, and jump to where it should be."""
        await _set_right(hit)

    async def healed(self, hit: Hit) -> Proof:
        """The clock is right and stays so."""
        return await _is_right(hit)


async def _set_right(hit: Hit) -> None:
    # The drift ends first: else the reading would be old again by the time of the jump.
    await hit.hardware.set_clock(hit.node, ClockTrouble())
    look = await hit.hardware.look_at_clock(hit.node)
    await hit.hardware.set_clock(hit.node, ClockTrouble(jump_s=-look.ahead_s))


async def _is_right(hit: Hit) -> Proof:
    look = await hit.hardware.look_at_clock(hit.node)
    right = abs(look.ahead_s) < _RIGHT_S and abs(look.rate - 1) < _SAME_RATE
    return Proof(holds=right, text=_said(hit.node, look))


def _said(node: str, look: ClockLook) -> str:
    return f"{node} is {look.ahead_s:.3f} s ahead and gains {(look.rate - 1) * 100:.2f} %"
