"""One operation on its way through a client: how far it came, and how it ended.

A client that ignores its cancellation must not carry a transaction on to commit after the driver
recorded that it failed. So every phase is entered through ``Flight.enter``, which stops an
operation that is already over.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable

import attrs
import msgspec

from harness.driving.process_slots import Slot
from harness.history.records import Invoke, MicroOp, OpType, Phase, is_recordable
from harness.plugins import defined, where
from harness.protocols.client import Client, StoreError, Tx
from harness.protocols.cluster import Cluster, System
from harness.protocols.fail_or_info import ErrorMeaning, classify

MAX_TEXT = 200  # characters of a client's message in a note
INTERRUPTED = "interrupted"
CLIENT_BUG = "client-bug:"
Ops = tuple[MicroOp, ...]
Execute = Callable[[Tx, Ops], Awaitable[Ops]]


# Not tracked by the collector: of texts and tuples of them no reference cycle can be made.
class AttemptOutcome(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """How an attempt ended. ``error`` and ``text`` are the store's code and message."""

    type: OpType
    ops: tuple[MicroOp, ...] | None = None
    error: str | None = None
    text: str = ""
    commit_ts: int | None = None

    @property
    def is_client_bug(self) -> bool:
        """Whether client code raised an exception that is no ``StoreError``."""
        return self.error is not None and self.error.startswith(CLIENT_BUG)


@attrs.define(eq=False, kw_only=True)
class Flight:
    """An operation between its invocation and the moment that its slot is idle again.

    ``over`` is set once its completion is recorded: a later answer of the client is no outcome.
    ``uncertain``: this completion was an ``info``. ``timer`` is the limit of a rollback.
    """

    invoke: Invoke
    slot: Slot
    deadline_s: float
    phase: Phase = "connect"
    tx: Tx | None = None
    over: bool = False
    uncertain: bool = False
    task: asyncio.Task[None] | None = None
    timer: asyncio.TimerHandle | None = None

    def enter(self, phase: Phase) -> None:
        """Proceed to ``phase``, unless the operation is over."""
        if self.over:
            raise asyncio.CancelledError
        self.phase = phase

    @property
    def server_txn(self) -> str | None:
        """The store's identifier of the transaction, where the client knows it."""
        try:
            return self.tx.server_txn if self.tx else None
        except Exception:  # a client's property is client code: nothing it raises ends a run
            return None


async def attempt(
    flight: Flight, system: System, cluster: Cluster, execute: Execute
) -> AttemptOutcome:
    """Take ``flight`` through connect, begin, step and commit, once.

    Never raises an exception of the client: an error of the store is classified, anything else is a
    bug of the client, after which nothing is certain. A cancellation passes only when the operation
    is over.
    """
    try:
        client = flight.slot.client or await _connect(flight, system, cluster)
        flight.enter("begin")
        tx = flight.tx = await client.begin(flight.invoke.kind, flight.deadline_s)
        flight.enter("step")
        observed = _observed(flight.invoke.ops, await execute(tx, flight.invoke.ops))
        flight.enter("commit")
        committed = await tx.commit()
        return AttemptOutcome(type=OpType.OK, ops=observed, commit_ts=committed.commit_ts)
    except asyncio.CancelledError as error:
        if flight.over:
            raise
        return failed(flight.phase, error, system.errors)  # a client that cancels itself has a bug
    # A client that leaves by ``sys.exit`` would end the run, with an exit code that is a verdict.
    except (Exception, SystemExit) as error:
        code = f"{CLIENT_BUG}{WrongAnswer.__name__} at {defined(execute)}"
        ending = failed(flight.phase, error, system.errors)
        wrong = isinstance(error, WrongAnswer)
        return msgspec.structs.replace(ending, error=code) if wrong else ending


class WrongAnswer(Exception):
    """The workload's ``execute`` returned what no history can hold, or what shows nothing."""


def _observed(asked: Ops, given: object) -> Ops:
    """Return what ``execute`` has ``given``: micro-operations on the keys that it was asked for.
    Raises ``WrongAnswer``: what is not recorded as it was would break the whole history, or pass
    for an operation that saw nothing.
    """
    if given is asked:
        return asked
    if not isinstance(given, (tuple, list)):
        raise WrongAnswer(f"execute: expected the operations as a tuple (got {given!r:.100})")
    if asked and not given:
        raise WrongAnswer("execute: expected the operations with what was read (got none)")
    keys = {op.key for op in asked}
    for op in given:
        if not (is_recordable(op) and op.key in keys):
            expected = f"a MicroOp with integers of 64 bits, on a key of {sorted(keys)!r:.50}"
            raise WrongAnswer(f"execute: expected {expected} (got {op!r:.100})")
    return tuple(given)


async def _connect(flight: Flight, system: System, cluster: Cluster) -> Client:
    invoke = flight.invoke
    client = await system.connect(cluster, invoke.node, invoke.process)
    if flight.over:  # too late: the slot may have another connection by now
        await client.close()
        raise asyncio.CancelledError
    flight.slot.client = client
    return client


def failed(phase: Phase, error: BaseException, table: dict[str, ErrorMeaning]) -> AttemptOutcome:
    """How an attempt ended that raised ``error`` in ``phase``."""
    if isinstance(error, StoreError):
        type_ = classify(phase, error.code, table)
        return AttemptOutcome(type=type_, error=error.code, text=error.message[:MAX_TEXT])
    code = f"{CLIENT_BUG}{type(error).__name__}"
    if place := where(error):
        code += f" at {place}"
    return AttemptOutcome(type=OpType.INFO, error=code, text=str(error)[:MAX_TEXT])


class Deadlines:
    """Calls ``expire`` for each flight whose deadline comes before it is over.

    A timer per operation would cost as much as recording it: nearly all operations end long before
    their deadlines.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, expire: Callable[[Flight], None]) -> None:
        self._loop, self._expire = loop, expire
        self._flights: deque[Flight] = deque()
        self._timer: asyncio.TimerHandle | None = None
        self._rings_s = 0.0

    def __len__(self) -> int:
        """How many flights are watched."""
        return len(self._flights)

    def add(self, flight: Flight) -> None:
        """Watch ``flight``, whose deadline is not before the deadlines added earlier."""
        flights = self._flights
        # Else the queue would hold every operation of the last ``op_deadline_s``, ended or not.
        while flights and flights[0].over:
            flights.popleft()
        flights.append(flight)
        if self._timer is None:
            self._set()

    def clear(self) -> None:
        """Watch nothing any more."""
        self._flights.clear()
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _set(self) -> None:
        self._rings_s = self._flights[0].deadline_s
        self._timer = self._loop.call_at(self._rings_s, self._ring)

    def _ring(self) -> None:
        self._timer = None
        # A loop may wake up a little early: the time of the timer counts as reached all the same.
        now_s = max(self._loop.time(), self._rings_s)
        flights = self._flights
        while flights and (flights[0].over or flights[0].deadline_s <= now_s):
            flight = flights.popleft()
            if not flight.over:
                self._expire(flight)
        if flights and self._timer is None:
            self._set()
