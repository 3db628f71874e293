"""Deadlines of the nemesis, and its treatment of calls that fail or don't return in time."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import TypeVar

import attrs

from harness.errors import HarnessError
from harness.protocols.faults import Proof

T = TypeVar("T")


@attrs.frozen(kw_only=True)
class Limits:
    """How long the nemesis waits for others, in seconds."""

    # One verb of a fault or provider: a container's SSH answers in well under a second, a node's
    # start may replay a log first.
    verb_s: float = 15.0
    # Until an injected fault shows: beyond it the fault has no effect. Two of the slowest looks.
    proof_s: float = 20.0
    # For a system that takes thrown out nodes back: each is restarted.
    readmit_s: float = 25.0
    # Until a healed fault is gone: a restarted node has to recover and rejoin. With verb_s (twice:
    # cut and heal) and readmit_s it stays below what the life cycle grants to heal everything.
    healed_s: float = 25.0
    # Asking for the roles; a cluster in trouble is slow to answer, and counting targets need none.
    roles_s: float = 2.0
    # A target without an answer, or busy with another fault, is tried for this long.
    wait_s: float = 5.0
    # One look of a proof. A machine that froze meanwhile would hold it up beyond all of them; one
    # that ten others share took seven seconds to try eight links.
    look_s: float = 10.0
    # Between two looks of a proof, or two tries of a target.
    poll_s: float = 0.2


class Failed(Exception):
    """A verb did not do its work; the text says why."""


async def call(what: str, work: Awaitable[T], limit_s: float) -> T:
    """The result of ``work`` within a deadline. Raises ``Failed`` for any exception: a fault may
    come from a user's package, and its bug must not keep the others from healing.
    """
    try:
        async with asyncio.timeout(limit_s) as timeout:
            return await work
    except Exception as error:
        # A TimeoutError of the verb's own is a failure of it, not the end of this deadline.
        if isinstance(error, TimeoutError) and timeout.expired():
            raise Failed(f"{what} did not answer within {limit_s:g} s") from error
        raise Failed(f"{what} failed: {reason(error)}") from error


async def until(look: Callable[[], Awaitable[Proof]], limit_s: float, limits: Limits) -> Proof:
    """Probe until the proof holds or ``limit_s`` passed; the last proof that was completed."""
    last = Proof(holds=None, text="no look at it came to an end")
    try:
        async with asyncio.timeout(limit_s):
            while True:
                last = await _look(look, limits.look_s)
                if last.holds:
                    return last
                await asyncio.sleep(limits.poll_s)
    except TimeoutError:
        return Proof(holds=last.holds, text=f"{last.text} (after {limit_s:g} s)")


async def _look(look: Callable[[], Awaitable[Proof]], limit_s: float) -> Proof:
    """One probe; one that fails or takes too long proves nothing."""
    try:
        return await call("a look", look(), limit_s)
    except Failed as failure:
        return Proof(holds=None, text=str(failure))


def reason(error: Exception) -> str:
    """The reason of ``error`` in a few words: our own errors are sentences; of others the type is
    half of what there is to know.
    """
    text = str(error)
    return text if text and isinstance(error, HarnessError) else f"{type(error).__name__}: {text}"
