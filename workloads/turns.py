"""The order of turns: every slot in a circle, each with random draws of its own."""

from __future__ import annotations

from random import Random

import msgspec

from harness.clock import substream
from harness.generators import Context, next_process
from workloads.keys import replaced


class Turn(msgspec.Struct, frozen=True, kw_only=True):
    """The ``count``-th operation of ``slot``, by ``process``; ``draw`` is for it alone."""

    process: int
    slot: int
    count: int
    draw: Random


class Turns(msgspec.Struct, frozen=True, kw_only=True):
    """Operations begun so far, by slot. Draws are keyed by (slot, the slot's own count), so that
    one slot's draws do not depend on the others' progress.
    """

    seed: int
    begun: tuple[int, ...]
    last_slot: int = -1

    @staticmethod
    def of(seed: int, concurrency: int) -> Turns:
        """Return the turns before the first operation."""
        return Turns(seed=seed, begun=(0,) * concurrency)

    def next(self, context: Context) -> tuple[Turn, Turns]:
        """Return the next turn among the idle processes, and the turns after it."""
        process = next_process(context, self.last_slot)
        slot = process % context.concurrency
        count = self.begun[slot]
        turn = Turn(
            process=process, slot=slot, count=count, draw=substream(self.seed, "ops", slot, count)
        )
        after = Turns(seed=self.seed, begun=replaced(self.begun, slot, count + 1), last_slot=slot)
        return turn, after
