"""The bench that an adapter is checked on: its cluster, operations as the driver makes them, the
possible results of a check.
"""

from __future__ import annotations

import asyncio
import enum
import itertools
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterator, Mapping
from contextlib import asynccontextmanager
from typing import Any, TypeVar

import attrs
import msgspec

from harness.clock import RunClock
from harness.driving.in_flight import CLIENT_BUG, AttemptOutcome, Flight, Ops, attempt, failed
from harness.driving.process_slots import Slot
from harness.errors import FiredrillError, HarnessError
from harness.history.records import Invoke, MicroOp, OpType, Phase, StoreEvent, Value
from harness.protocols.client import READ_WRITE, Client, Tx
from harness.protocols.cluster import Capability, Cluster, Provider, Readmits, Roles, System
from harness.protocols.cluster_membership import Membership
from harness.protocols.fail_or_info import DEADLINE, unanswered
from harness.protocols.faults import Fault, Proof, Scene, Victims

T = TypeVar("T")
READ, WRITE, APPEND = "r", "w", "append"
OP_LIMIT_S = 5.0  # of one operation, where no fault is in force
CANCEL_LIMIT_S = 1.0  # a cancelled call that is still there then would hold its slot up
CLOSE_LIMIT_S = 1.0  # "never waits for the store"
LOOK_LIMIT_S = 5.0  # roles and events, also where a node is silent
PROOF_LIMIT_S = 25.0
MEND_LIMIT_S = 120.0
LATE_S = 8.0  # after a deadline of its own, which then was not kept
UNDECLARED_SETTLE_S = 30.0
LEAST_SETTLE_S = 10.0
POLL_S = 0.2
FIRST_KEY = 1_000_000  # keys from here on, which no workload touches


class CheckFailure(FiredrillError):
    """The adapter or its store breaks a rule that the harness relies on."""


class CheckHang(CheckFailure):
    """A call that was given a deadline continued long after it."""


class NotTried(FiredrillError):
    """A precondition of a check is missing here; the text names it."""


class Mark(enum.StrEnum):
    """The result of a check."""

    HOLDS = "holds"
    BROKEN = "BROKEN"
    NOT_TRIED = "not tried"


class Result(msgspec.Struct, frozen=True, kw_only=True):
    """One row of the table: ``text`` describes the observation."""

    name: str
    mark: Mark
    text: str


@attrs.frozen(kw_only=True)
class AttemptResult:
    """The end of an operation; ``values`` are those of its reads. ``error`` is the store's code."""

    type: OpType
    phase: Phase
    values: tuple[Value, ...] = ()
    error: str = ""
    text: str = ""

    @property
    def ok(self) -> bool:
        """Whether it was acknowledged."""
        return self.type is OpType.OK

    def __str__(self) -> str:
        if self.ok:
            return "ok"
        text = f": {self.text}" if self.text else ""
        return f"{self.type.value} at {self.phase} ({self.error}{text})"


@attrs.define(eq=False, kw_only=True)
class Bench:
    """One system on one cluster. ``build`` makes another adapter from ``[system]`` options;
    ``real_network``: clients dial over TCP, so that a relay can stand between.

    ``codes`` are all codes that were raised, with a phase; ``strangers`` the exceptions that were
    no ``StoreError``; ``events`` the store's events, with the time of the call that returned them;
    ``looks`` how often events were requested, and ``unheard`` the failures of that. ``stuck``: how
    ``recover`` hung, once it did.
    """

    system: System
    provider: Provider
    cluster: Cluster
    clock: RunClock
    build: Callable[[Mapping[str, object]], System]
    faults: Mapping[str, Fault] = {}
    able: frozenset[Capability] = frozenset()
    models: frozenset[str] = frozenset()
    real_network: bool = True
    ready_s: float = 60.0
    codes: dict[str, Phase] = attrs.field(factory=dict)
    strangers: list[str] = attrs.field(factory=list)
    events: list[tuple[int, StoreEvent]] = attrs.field(factory=list)
    looks: int = 0
    unheard: dict[str, None] = attrs.field(factory=dict)
    stuck: str = ""
    _numbers: Iterator[int] = attrs.field(factory=lambda: itertools.count(FIRST_KEY))

    @property
    def settle_s(self) -> float:
        """How long the store may take to serve again after a fault, by its own declaration."""
        declared = self.system.declaration.liveness_s
        if not isinstance(declared, float | int):
            return UNDECLARED_SETTLE_S
        return max(LEAST_SETTLE_S, 2 * declared)

    @property
    def scene(self) -> Scene:
        """The interfaces that a fault acts through."""
        return Scene(
            provider=self.provider,
            system=self.system,
            membership=Membership(self.cluster),
            clock=self.clock,
        )

    def number(self) -> int:
        """A key, a value or a process number that no other operation of this bench uses."""
        return next(self._numbers)

    # -- operations ------------------------------------------------------------------------------

    async def connect(self, node: str, cluster: Cluster | None = None) -> Client:
        """A connection of a process of its own. Raises ``StoreError``."""
        return await self.system.connect(cluster or self.cluster, node, self.number())

    async def transact(
        self,
        node: str,
        *steps: MicroOp,
        kind: str = READ_WRITE,
        client: Client | None = None,
        limit_s: float = OP_LIMIT_S,
    ) -> AttemptResult:
        """Run one operation as the driver does: cancelled at its limit, classified by (phase,
        code). Without ``client`` it has a connection of its own.
        """
        process = self.number()
        flight = Flight(
            invoke=Invoke(
                index=0, process=process, kind=kind, node=node, intended_ns=0, at_ns=0, wall_ns=0,
                ops=steps,
            ),
            slot=Slot(number=0, process=process, client=client),
            deadline_s=asyncio.get_running_loop().time() + limit_s,
        )  # fmt: skip
        work, ended = await _over(attempt(flight, self.system, self.cluster, perform), limit_s)
        if not work.done():
            raise CheckFailure(f"a call went on for {CANCEL_LIMIT_S:g} s after it was cancelled")
        if ended:
            done = self._noted(flight.phase, work.result())
            # As the driver does it: left open, it would keep its locks from the checks that follow.
            if not done.ok and flight.phase == "step" and flight.tx is not None:
                await self.give_up(self._rollback(flight.tx), CANCEL_LIMIT_S)
        else:
            done = AttemptResult(type=unanswered(flight.phase), phase=flight.phase, error=DEADLINE)
        if client is None and flight.slot.client is not None:
            await self.close(flight.slot.client)
        return done

    async def _rollback(self, tx: Tx) -> None:
        try:
            await tx.rollback()
        except Exception as error:
            self.judged("step", error)

    def judged(self, phase: Phase, error: Exception) -> AttemptResult:
        """Classify ``error`` as the driver does, and remember its code."""
        return self._noted(phase, failed(phase, error, self.system.errors))

    def _noted(self, phase: Phase, ending: AttemptOutcome) -> AttemptResult:
        error = ending.error or ""
        if ending.is_client_bug:  # its place in the adapter's code is for histories
            error = error.removeprefix(CLIENT_BUG).partition(" at ")[0]
        if ending.is_client_bug:
            self.strangers.append(f"{error} in {phase}: {ending.text}")
        elif error:
            self.codes.setdefault(error, phase)
        return AttemptResult(
            type=ending.type,
            phase=phase,
            values=tuple(op.value for op in ending.ops or () if op.f == READ),
            error=error,
            text=ending.text,
        )

    async def close(self, client: Client) -> None:
        """Close the connection. Raises ``CheckFailure`` where that raises or waits."""
        work = asyncio.ensure_future(client.close())
        done, _ = await asyncio.wait({work}, timeout=CLOSE_LIMIT_S)
        if not done:
            work.cancel()
            raise CheckFailure(
                f"close() took longer than {CLOSE_LIMIT_S:g} s: it waits for the store"
            )
        if error := work.exception():
            raise CheckFailure(f"close() raised {type(error).__name__}: {error}")

    async def give_up(self, work: Coroutine[Any, Any, T], limit_s: float) -> T | None:
        """The result, or ``None`` where the call was cancelled at ``limit_s``. Raises
        ``CheckFailure`` where the call continues after its cancellation.
        """
        task, _ = await _over(work, limit_s)
        if not task.done():
            raise CheckFailure(f"a call went on for {CANCEL_LIMIT_S:g} s after it was cancelled")
        return None if task.cancelled() else task.result()

    async def acknowledged(
        self, node: str, *steps: MicroOp, kind: str = READ_WRITE
    ) -> AttemptResult:
        """Repeat an operation, which must be safe to repeat, until it is acknowledged. Raises
        ``CheckFailure`` after ``settle_s``.
        """
        ends_s = asyncio.get_running_loop().time() + self.settle_s
        while True:
            done = await self.transact(node, *steps, kind=kind)
            if done.ok:
                return done
            if asyncio.get_running_loop().time() >= ends_s:
                what = " ".join(step.f for step in steps)
                raise CheckFailure(f"no {what} through {node} within {self.settle_s:g} s: {done}")
            await asyncio.sleep(POLL_S)

    # -- looking -----------------------------------------------------------------------------------

    async def roles(self, *nodes: str) -> Roles:
        """The roles that ``nodes`` (all of them by default) report. Raises ``CheckFailure`` where
        the call takes too long or raises.
        """
        cluster = attrs.evolve(self.cluster, nodes=nodes) if nodes else self.cluster
        return await self.timely("roles()", self.system.roles(cluster))

    async def timely(self, what: str, work: Awaitable[T]) -> T:
        """The result of a call that must be quick in every state of the nodes. Raises
        ``CheckFailure`` where it takes too long or raises.
        """
        task, ended = await _over(work, LOOK_LIMIT_S)
        if not ended:
            raise CheckFailure(f"{what} took longer than {LOOK_LIMIT_S:g} s")
        try:
            return task.result()
        # That of the call; the check's own cancellation would have come out of ``_over``.
        except (Exception, asyncio.CancelledError) as error:
            raise CheckFailure(f"{what} raised {type(error).__name__}: {error}") from error

    async def until(
        self, look: Callable[[], Awaitable[str]], what: str, limit_s: float | None = None
    ) -> None:
        """Repeat ``look`` until it reports nothing missing. Raises ``CheckFailure`` with the
        missing things at the limit (by default ``settle_s``).
        """
        limit_s = self.settle_s if limit_s is None else limit_s
        ends_s = asyncio.get_running_loop().time() + limit_s
        while lacking := await look():
            if asyncio.get_running_loop().time() >= ends_s:
                raise CheckFailure(f"{what}: after {limit_s:g} s still: {lacking}")
            await asyncio.sleep(POLL_S)

    # -- breaking ----------------------------------------------------------------------------------

    def kind(self, name: str) -> Fault:
        """The kind of fault. Raises ``NotTried`` where the provider does not offer it."""
        fault = self.faults.get(name)
        lacking = fault.kind.needs - self.able if fault else frozenset()
        if fault is None or lacking:
            why = f", which lacks {', '.join(sorted(lacking))}" if lacking else ""
            raise NotTried(f"provider {self.provider.name} has no fault {name!r}{why}")
        return fault

    @asynccontextmanager
    async def broken(self, kind: str, target: str) -> AsyncIterator[Victims]:
        """Within the block the fault is in force and proven; afterwards it is healed and proven
        healed.
        """
        fault = self.kind(kind)
        found = fault.resolve(target, await self.roles(), self.cluster.nodes, 0)
        if found is None:
            raise CheckFailure(f"roles() does not tell who {target!r} is")
        victims: Victims = found
        try:
            # Faults of links cut none themselves: in a run that is the nemesis's part.
            await self.provider.cut(victims.grudge)
            struck = victims = await fault.inject(self.scene, victims) or victims
            proof = await self._proven(
                lambda: fault.prove(self.scene, struck), f"{kind} of {target} has no effect"
            )
            # The proof of the heal has to show other boots than these.
            victims = attrs.evolve(victims, boots=proof.boots)
            yield victims
        finally:
            await self.provider.cut(())
            await fault.heal(self.scene, victims)
        if isinstance(self.system, Readmits):
            await self.system.readmit(self.cluster, self.provider, victims.nodes)
        await self._proven(
            lambda: fault.prove_healed(self.scene, victims), f"{kind} of {target} does not heal"
        )

    async def _proven(self, look: Callable[[], Awaitable[Proof]], what: str) -> Proof:
        ends_s = asyncio.get_running_loop().time() + PROOF_LIMIT_S
        while not (proof := await look()).holds:
            if asyncio.get_running_loop().time() >= ends_s:
                raise CheckFailure(f"{what}: {proof.text}")
            await asyncio.sleep(POLL_S)
        return proof

    async def mend(self) -> None:
        """Undo every fault that a check left in force. Raises ``CheckFailure`` where the system
        can't.
        """
        await self.provider.cut(())
        deadline_s = asyncio.get_running_loop().time() + MEND_LIMIT_S
        try:
            await on_time(
                "recover", self.system.recover(self.cluster, self.provider, deadline_s), deadline_s
            )
        except CheckHang as error:
            self.stuck = str(error)
            raise
        except HarnessError as error:
            raise CheckFailure(f"recover() does not make it whole: {error}") from error

    async def watch(self) -> None:
        """Fetch the store's events as a run does, until cancelled; failures are recorded in
        ``unheard``.
        """
        while True:
            try:
                self.events += await self.timely("events()", self._told())
            except CheckFailure as error:
                # By its text: what fails at every poll is told once.
                self.unheard[str(error)] = None
            self.looks += 1
            await asyncio.sleep(POLL_S)

    async def _told(self) -> list[tuple[int, StoreEvent]]:
        told = await self.system.events(self.cluster, self.clock)
        now_ns = self.clock.now_ns()
        return [(now_ns, event) for event in told]


async def on_time(verb: str, work: Awaitable[None], deadline_s: float) -> None:
    """Await a call that was given ``deadline_s`` (of the loop) and has to end or fail by then.
    Raises ``CheckHang`` where it continues, ``CheckFailure`` for an exception that is no
    ``FiredrillError``, and every ``FiredrillError`` of the call.
    """
    # A deadline is a promise of the adapter; only one that is far overrun is a hang.
    left_s = max(0.0, deadline_s - asyncio.get_running_loop().time())
    task, ended = await _over(work, left_s + LATE_S)
    if not ended:
        raise CheckHang(f"{verb}() went on {LATE_S:g} s after its deadline")
    try:
        task.result()
    except FiredrillError:
        raise
    except (Exception, asyncio.CancelledError) as error:
        raise CheckFailure(f"{verb}() raised {type(error).__name__}: {error}") from error


async def _over(work: Awaitable[T], limit_s: float) -> tuple[asyncio.Future[T], bool]:
    """``work`` as a task, and whether it ended by itself. At its limit it is cancelled, and awaited
    for at most ``CANCEL_LIMIT_S`` more.
    """
    task = asyncio.ensure_future(work)
    try:
        # Not ``asyncio.timeout``, which waits as long as the call ignores its cancellation.
        done, _ = await asyncio.wait({task}, timeout=limit_s)
        if not done:
            task.cancel()
            late, _ = await asyncio.wait({task}, timeout=CANCEL_LIMIT_S)
            if late and not task.cancelled():
                task.exception()  # asked for, or the loop would complain
    finally:
        # Also where the check itself was cancelled: no call goes on beside the next check.
        task.cancel()
    return task, bool(done)


async def perform(tx: Tx, steps: Ops) -> Ops:
    """Do ``steps`` without committing; they are returned with what was read."""
    observed = []
    for step in steps:
        if step.f == READ:
            observed.append(MicroOp(READ, step.key, await tx.read(step.key)))
        elif isinstance(step.value, int):
            verb = tx.write if step.f == WRITE else tx.append
            await verb(step.key, step.value)
            observed.append(step)
    return tuple(observed)
