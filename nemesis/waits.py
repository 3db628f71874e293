"""Deadlines of the nemesis, its treatment of calls that fail or don't return in time, and the end
of its tasks.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar, copy_context
from typing import TypeVar

import attrs

from harness import plugins
from harness.errors import DeadlineExceeded, HarnessError, InvariantError
from harness.protocols.faults import Proof

T = TypeVar("T")
CUT_S = 1.0  # for a task that is cut off to note that; a plug-in's verb may refuse to end


@attrs.frozen(kw_only=True)
class Limits:
    """How long the nemesis waits for others, in seconds."""

    # One verb of a fault or provider: a container's SSH answers in well under a second, a node's
    # start may replay a log first.
    verb_s: float = 15.0
    # A verb that breaks something. Longer than what providers give one (25 s in containers), so
    # that it ends by itself: cut off it goes on, on its thread or machine, and may act at any time.
    inject_s: float = 30.0
    # Until an injected fault shows: beyond it the fault has no effect. Two of the slowest looks.
    proof_s: float = 20.0
    # For a system that takes thrown out nodes back: each is restarted.
    readmit_s: float = 25.0
    # Until a healed fault is gone: a restarted node has to recover and rejoin. With inject_s,
    # verb_s (twice: cut and heal) and readmit_s it stays below what the life cycle grants.
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


class CutOff(Failed):
    """A verb had not ended at its deadline: it may still act."""


async def call(what: str, work: Awaitable[T], limit_s: float) -> T:
    """The result of ``work`` within a deadline. Raises ``CutOff`` where that or the provider's own
    passed, and ``Failed`` for any other exception: a fault may come from a user's package, and its
    bug must not keep the others from healing.
    """
    try:
        async with asyncio.timeout(limit_s) as timeout:
            return await work
    except asyncio.CancelledError as error:
        task = asyncio.current_task()
        if task is None or task.cancelling():
            raise
        # The verb's own: nothing has asked this task to end.
        raise Failed(f"{what} failed: {type(error).__name__}") from error
    # Code that is made to be a program leaves by ``sys.exit``.
    except (Exception, SystemExit) as error:
        # A TimeoutError of the verb's own is a failure of it, not the end of this deadline.
        if isinstance(error, TimeoutError) and timeout.expired():
            raise CutOff(f"{what} did not answer within {limit_s:g} s") from error
        kind = CutOff if isinstance(error, DeadlineExceeded) else Failed
        raise kind(f"{what} failed: {reason(error)}") from error


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


# The task of a fault, also in those that it makes for verbs side by side: they have its context.
_OF_FAULT: ContextVar[asyncio.Task[None] | None] = ContextVar("task of a fault", default=None)


def _begun(fault: Coroutine[None, None, None]) -> asyncio.Task[None]:
    context = copy_context()
    task = asyncio.create_task(fault, context=context)
    context.run(_OF_FAULT.set, task)
    return task


class FaultTasks:
    """The tasks of a schedule, one a fault. A verb that breaks something and is cut off might still
    take effect, behind the heal: where the tasks are ended one with verbs within ``uncut`` goes on
    to the end of these.
    """

    def __init__(self) -> None:
        # By the fault's task: of the verbs that it has under way side by side, each counts.
        self._uncut = Counter[asyncio.Task[None]]()
        self._ended = False

    async def run(self, faults: Iterable[Coroutine[None, None, None]]) -> None:
        """Run ``faults`` side by side until all are over, one fails, or this is cancelled; end the
        others. Raises ``HarnessError`` for those that failed.
        """
        tasks = [_begun(fault) for fault in faults]
        if not tasks:
            return
        try:
            await asyncio.wait(tasks, return_when=asyncio.FIRST_EXCEPTION)
        finally:
            self._ended = True
            left = [task for task in tasks if not task.done() and task not in self._uncut]
            for task in left:
                task.cancel()
            if left:
                await asyncio.wait(left)
        over = (task for task in tasks if task.done() and not task.cancelled())
        failed = [error for task in over if isinstance(error := task.exception(), Exception)]
        if failed:
            reasons = dict.fromkeys(map(reason, failed))  # faults fail for one reason
            raise HarnessError("; ".join(reasons)) from failed[0]

    @contextmanager
    def uncut(self) -> Iterator[None]:
        """Within the block the end of the tasks leaves the fault's alone; it comes behind."""
        task = _OF_FAULT.get()
        if task is None:
            raise InvariantError("a verb of a fault runs in its task, or in one made there")
        self._uncut[task] += 1
        try:
            yield
        finally:
            self._uncut[task] -= 1
            if not self._uncut[task]:
                del self._uncut[task]
            if self._ended and task not in self._uncut:
                # Behind its present step: a deadline that cut the verb off is told as such.
                asyncio.get_running_loop().call_soon(task.cancel)

    async def settle(self, limit_s: float) -> None:
        """Wait for the tasks that went on, and cut them off at the limit."""
        if self._uncut:
            _, stuck = await asyncio.wait(self._uncut, timeout=limit_s)
            for task in stuck:
                task.cancel()
            if stuck:
                await asyncio.wait(stuck, timeout=CUT_S)


def reason(error: BaseException) -> str:
    """The reason of ``error`` in a few words: our own errors are sentences; of others, which may be
    a plug-in's, type, file and line are what there is to know.
    """
    text = str(error)
    return text if text and isinstance(error, HarnessError) else plugins.told(error)
