"""The driver: logical processes that run a generator's operations against a store.

One scheduler asks the generator, and one task per running operation calls the client; all of them
run on one loop, so that the order of records is the order of events. The driver writes an invoke
before the client sends anything: all invokes of one turn of the scheduler are written with one
call, and only then may their tasks run. No operation outlives its deadline, even when its client
hangs: at the deadline the driver records the outcome, and a later answer of the client becomes a
note.

Invocations and completions never share an instant unless the invocation was recorded first, so that
an order by (time, invocations before completions) is the order of the records.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from harness import plugins
from harness.clock import Alarm, RunClock
from harness.driving.in_flight import INTERRUPTED, AttemptOutcome, Deadlines, Flight, attempt
from harness.driving.process_slots import CLOSE_LIMIT_S, Slot, Slots
from harness.errors import BrokenPlugin, FiredrillError, HarnessBug, UsageError
from harness.generators import Answer, Context, Generator, Operation, Wait
from harness.history.records import Complete, Invoke, Note, OpType, Record, is_recordable
from harness.protocols.client import StoreError
from harness.protocols.cluster import Cluster, System
from harness.protocols.fail_or_info import DEADLINE, unanswered
from harness.protocols.workload import WHOLE, Share, Workload

ROLLBACK_LIMIT_S = 1.0  # best effort: a store drops a transaction with its connection too
MAX_STUCK = 4  # cancelled calls of one slot that do not end, before it is taken out of service

# What a generator may raise: it is called outside of any await, so a cancellation is its own, too.
_OF_THE_WORKLOAD = (Exception, SystemExit, asyncio.CancelledError, GeneratorExit)


class Driver:
    """Drives one store in one run. Made and used on one running loop; ``drive`` may be called again
    (final reads) and continues with the same processes, connections and indices.
    """

    def __init__(
        self,
        *,
        clock: RunClock,
        system: System,
        cluster: Cluster,
        workload: Workload,
        write: Callable[[Sequence[Record]], None],
        concurrency: int,
        op_deadline_s: float,
        observe: Callable[[Complete], None] | None = None,
        share: Share = WHOLE,
    ) -> None:
        """``write`` hands records to the operating system before it returns; if it raises, so does
        ``drive``. ``observe`` sees every completion after it was written. ``concurrency`` counts
        the slots of the whole run, of which ``share`` are this driver's.
        """
        if not 0 <= share.number < share.of <= concurrency:
            expected = f"at least 1, and one a driver process: {share.of}"
            raise UsageError(f"driver: concurrency must be {expected} (got {concurrency})")
        if not op_deadline_s > 0:
            raise UsageError(f"driver: op_deadline_s must be more than 0 (got {op_deadline_s})")
        self._clock, self._system, self._cluster = clock, system, cluster
        self._workload, self._write, self._observe = workload, write, observe
        self._op_deadline_s = op_deadline_s
        self._loop = asyncio.get_running_loop()
        self._concurrency = concurrency
        self._slots = Slots(
            range(share.number, concurrency, share.of),
            concurrency=concurrency,
            nodes=cluster.nodes,
            note=self._note,
        )
        self._flights: dict[int, Flight] = {}  # by the index of their invoke
        self._busy: dict[int, None] = {}  # processes of flights that are not over
        self._deadlines = Deadlines(self._loop, self._expire)
        self._abandoned: dict[int, asyncio.Task[None]] = {}  # cancelled, not ended yet
        self._unwritten: list[Record] = []
        self._completed: list[Complete] = []  # not yet seen by the generator
        self._touched: dict[int, None] = {}
        self._next_index = 0
        self._last_ns = self._last_complete_ns = self._seen_ns = 0
        self._failure: Exception | None = None
        self._alarm = Alarm(clock)
        self._driving = False
        self._until_ns = 0

    async def drive(self, generator: Generator, until_ns: int) -> bool:
        """Run operations of ``generator`` until it is exhausted or the clock reads ``until_ns``,
        which ``prolong`` may put off; after the last one has completed, return whether
        ``generator`` was exhausted.

        When cancelled, operations that are still open are recorded as ``info``.
        """
        if self._driving:
            raise HarnessBug("driver: drive was called while it was driving")
        self._driving, self._until_ns = True, until_ns
        try:
            return await self._schedule(generator)
        finally:
            # A copy, since ``_abandon`` removes the flight.
            for flight in list(self._flights.values()):
                if not flight.over:
                    self._finish(flight, AttemptOutcome(type=OpType.INFO, error=INTERRUPTED))
                self._abandon(flight)
            self._deadlines.clear()
            self._show_completed()
            self._driving = False
            if self._failure is not None:  # the last records could not be written
                raise self._failure

    def prolong(self, until_ns: int) -> None:
        """Go on until the clock reads ``until_ns``, if operations are still begun."""
        self._until_ns = max(self._until_ns, until_ns)
        self._alarm.ring()

    def use_nodes(self, nodes: tuple[str, ...]) -> None:
        """Make new connections to ``nodes`` alone from now on; those that are open stay so."""
        self._slots.nodes = nodes

    def touched_keys(self) -> tuple[int, ...]:
        """Every key that an invoked operation named, ascending."""
        return tuple(sorted(self._touched))

    async def close(self) -> None:
        """Close every connection. Bounded; never raises an exception of a client."""
        # Also the abandoned: they may hold connections that no slot knows any more.
        left = [*self._slots.disconnect_all(), *self._abandoned.values()]
        for task in self._abandoned.values():
            task.cancel()
        if left:
            await asyncio.wait(left, timeout=CLOSE_LIMIT_S)

    # -- the scheduler ---------------------------------------------------------------------------

    async def _schedule(self, generator: Generator) -> bool:
        held: Operation | None = None
        exhausted = False
        while self._loop.time() < self._clock.loop_time(self._until_ns):
            generator = self._absorb(generator)
            if held is None and self._slots.any_idle:
                answer, generator = self._asked(generator, self._context())
                exhausted = answer is Wait.EXHAUSTED
                if exhausted:
                    break
                held = None if isinstance(answer, Wait) else answer
            if held is not None and self._reached(held.at_ns):
                invoke = self._launch(held)
                # With the time of the record, which may be ahead of the clock: see ``_launch``.
                generator = self._updated(generator, self._context(invoke.at_ns), invoke)
                held = None
            else:
                next_ns = self._until_ns if held is None else held.at_ns
                await self._pause(min(next_ns, self._until_ns))
        # Without a limit: each flight ends by its deadline at the latest, and that rings the alarm.
        while self._flights:
            generator = self._absorb(generator)
            await self._pause(None)
        self._absorb(generator)
        return exhausted

    def _asked(self, generator: Generator, context: Context) -> Answer:
        try:
            given: Any = generator.op(context)
        except FiredrillError:
            raise
        except _OF_THE_WORKLOAD as error:
            raise plugins.broken("workloads", self._workload.name, error) from error
        match given:
            case (Operation() | Wait() as answer, after):
                return answer, after
        expected = "op: expected an Operation or a Wait, and the Generator after it"
        what = f"the generator of workload {self._workload.name!r}"
        raise BrokenPlugin(f"{what}: {expected} (got {given!r:.100})")

    def _updated(
        self, generator: Generator, context: Context, event: Invoke | Complete
    ) -> Generator:
        try:
            return generator.update(context, event)
        except FiredrillError:
            raise
        except _OF_THE_WORKLOAD as error:
            raise plugins.broken("workloads", self._workload.name, error) from error

    def _context(self, now_ns: int | None = None) -> Context:
        self._seen_ns = self._clock.now_ns() if now_ns is None else now_ns
        return Context(
            now_ns=self._seen_ns,
            free=self._slots.idle,
            concurrency=self._concurrency,
            busy=tuple(self._busy),
        )

    def _reached(self, at_ns: int) -> bool:
        """Whether the loop's time has come. Compared on the loop's axis: rounded to nanoseconds, a
        timer that fired could look early, and on a virtual clock for ever.
        """
        return at_ns <= self._seen_ns or self._loop.time() >= self._clock.loop_time(at_ns)

    def _absorb(self, generator: Generator) -> Generator:
        """Pass completed operations to the generator and the observer."""
        if self._completed:
            completed = self._show_completed()
            context = self._context()
            for complete in completed:
                generator = self._updated(generator, context, complete)
        if self._failure is not None:
            raise self._failure
        return generator

    def _show_completed(self) -> list[Complete]:
        self._flush()
        completed, self._completed = self._completed, []
        if self._observe is not None:
            for complete in completed:
                self._observe(complete)
        return completed

    async def _pause(self, at_ns: int | None) -> None:
        """Return at ``at_ns``, or earlier as soon as the alarm rings."""
        self._flush()  # a wait here lets tasks run, and they send
        await self._alarm.wait(at_ns)

    def _fail(self, error: Exception) -> None:
        """Remember the error that ends the run; ``drive`` raises it."""
        self._failure = self._failure or error
        self._alarm.ring()

    # -- one operation ---------------------------------------------------------------------------

    def _launch(self, operation: Operation) -> Invoke:
        """Record the invocation, then start the operation's task."""
        slot = self._slots.take(operation.process)
        if slot is None:
            raise HarnessBug(f"generator chose process {operation.process}, which is not idle")
        for op in operation.ops:
            if not is_recordable(op):
                expected = "a MicroOp under a name, with integers of 64 bits"
                what = f"the generator of workload {self._workload.name!r}"
                raise BrokenPlugin(f"{what}: expected {expected} (got {op!r:.100})")
        # A timer's wake-up, rounded to nanoseconds, may read as earlier than what it waited for.
        at_ns = max(self._clock.now_ns(), operation.at_ns, self._last_ns)
        # Behind the last completion, or the two would look concurrent: see the module.
        self._last_ns = at_ns = max(at_ns, self._last_complete_ns + 1)
        invoke = Invoke(
            index=self._take_index(),
            process=slot.process,
            kind=operation.kind,
            node=self._slots.node(slot),
            intended_ns=operation.at_ns,
            at_ns=at_ns,
            wall_ns=self._clock.wall_ns(),
            ops=operation.ops,
        )
        self._record(invoke)
        for step in operation.ops:
            self._touched[step.key] = None
        deadline_s = self._clock.loop_time(at_ns) + self._op_deadline_s
        flight = Flight(invoke=invoke, slot=slot, deadline_s=deadline_s)
        self._flights[invoke.index] = flight
        self._busy[slot.process] = None
        # Before its task runs: even a client that blocks in its first step has its deadline.
        self._deadlines.add(flight)
        flight.task = self._loop.create_task(self._fly(flight))
        return invoke

    async def _fly(self, flight: Flight) -> None:
        """Run one operation. An exception of the driver itself in it ends the run."""
        if self._failure is not None:  # its invocation may not be written
            return
        try:
            ending = await attempt(flight, self._system, self._cluster, self._workload.execute)
            if flight.over:
                self._note_late(flight, ending)
                return
            self._finish(flight, ending)
            connected = ending.type is OpType.OK or await self._tidy(flight)
            # Not after a rollback that outlasted its limit: its slot is released already.
            if flight.invoke.index in self._flights:
                self._settle(flight, ending, connected)
        except Exception as error:
            self._fail(error)

    def _finish(self, flight: Flight, ending: AttemptOutcome) -> None:
        """Record the completion."""
        flight.over, flight.uncertain = True, ending.type is OpType.INFO
        del self._busy[flight.invoke.process]
        # The last invocation may have been dated a nanosecond ahead of the clock.
        now_ns = max(self._clock.now_ns(), self._last_ns)
        self._last_ns = self._last_complete_ns = now_ns
        ok = ending.type is OpType.OK
        complete = Complete(
            index=self._take_index(),
            invoke=flight.invoke.index,
            process=flight.invoke.process,
            type=ending.type,
            at_ns=now_ns,
            ops=flight.invoke.ops if ending.ops is None else ending.ops,
            error=ending.error,
            phase=None if ok else flight.phase,
            server_txn=flight.server_txn,
            commit_ts=ending.commit_ts,
        )
        self._record(complete)
        self._completed.append(complete)
        if ending.is_client_bug:
            self._note(flight.slot, f"{ending.error} in {flight.phase}: {ending.text}")
        self._alarm.ring()

    async def _tidy(self, flight: Flight) -> bool:
        """Roll back the transaction of a failed step; whether the connection is still usable."""
        # The commit was sent: nothing is left to roll back, and its answer has been read.
        if flight.phase == "commit":
            return True
        if flight.phase != "step" or flight.tx is None:
            return False
        # The outcome is recorded, so only the slot still waits; ``_expire`` takes it back.
        flight.timer = self._loop.call_later(ROLLBACK_LIMIT_S, self._expire, flight)
        try:
            await flight.tx.rollback()
        except StoreError:
            return False
        except asyncio.CancelledError:
            # ``_abandon`` cancelled it. Otherwise the client cancelled itself, which ends no run.
            if flight.invoke.index not in self._flights:
                raise
            return False
        except Exception as error:
            self._note(flight.slot, f"rollback raised {type(error).__name__}: {error}")
            return False
        finally:
            flight.timer.cancel()
        return True

    def _settle(self, flight: Flight, ending: AttemptOutcome, connected: bool) -> None:
        """Release the slot: as it is, with a new process, or after a pause to reconnect."""
        self._land(flight)
        slot = flight.slot
        if flight.uncertain:
            self._slots.end_process(slot)
        elif not connected:
            self._slots.disconnect(slot)
        if connected and not ending.is_client_bug:
            slot.losses = 0
            self._release(slot)
            return
        delay_s = self._slots.lost(slot)
        why = f"{ending.error}: {ending.text}" if ending.text else ending.error
        self._note(
            slot, f"connects to {self._slots.node(slot)} again in {delay_s:g} s, after {why}"
        )
        # A node that is down would else be asked as fast as the loop turns.
        self._loop.call_later(delay_s, self._release, slot)

    def _land(self, flight: Flight) -> None:
        del self._flights[flight.invoke.index]
        if flight.timer is not None:
            flight.timer.cancel()
        self._alarm.ring()

    def _expire(self, flight: Flight) -> None:
        """Called at the deadline of an operation, or of its rollback."""
        try:
            if not flight.over:
                # Nothing will happen later, either: ``enter`` leads an operation that is over no
                # further.
                self._finish(flight, AttemptOutcome(type=unanswered(flight.phase), error=DEADLINE))
            self._abandon(flight)
        except Exception as error:
            self._fail(error)

    def _abandon(self, flight: Flight) -> None:
        """Cancel the client's call and do not wait for its end. The call may have left its
        connection in the middle of a request, so the connection is closed.
        """
        index, slot, task = flight.invoke.index, flight.slot, flight.task
        self._land(flight)
        if flight.uncertain:
            self._slots.end_process(slot)
        self._slots.disconnect(slot)
        if task is not None and not task.done():
            task.cancel()
            # A client that ignores its cancellation still holds what it holds: it is counted, not
            # awaited.
            slot.stuck += 1
            self._abandoned[index] = task
            task.add_done_callback(partial(self._ended, index, slot))
        if slot.stuck > MAX_STUCK:
            slot.parked = True
            self._note(slot, f"out of service: {slot.stuck} cancelled calls of its client go on")
        else:
            self._release(slot)

    def _ended(self, index: int, slot: Slot, task: asyncio.Task[None]) -> None:
        """An abandoned call ended after all."""
        del self._abandoned[index]
        slot.stuck -= 1
        if slot.parked:
            slot.parked = False
            self._release(slot)

    def _release(self, slot: Slot) -> None:
        self._slots.release(slot)
        self._alarm.ring()

    # -- records ---------------------------------------------------------------------------------

    def _take_index(self) -> int:
        self._next_index += 1
        return self._next_index - 1

    def _record(self, record: Record) -> None:
        """Queue ``record``; inside a turn of the scheduler it is written at the end of the turn."""
        self._unwritten.append(record)
        if not self._driving:
            self._flush()

    def _flush(self) -> None:
        """Write the queued records; after a failed write no more are written."""
        # Taken out first: a write that fails must not be tried again with more behind it.
        records, self._unwritten = self._unwritten, []
        if records and self._failure is None:
            try:
                self._write(records)
            except Exception as error:
                self._fail(error)

    def _note(self, slot: Slot, text: str) -> None:
        self._record(Note(at_ns=self._clock.now_ns(), process=slot.process, text=text))

    def _note_late(self, flight: Flight, ending: AttemptOutcome) -> None:
        detail = ending.error or f"commit_ts={ending.commit_ts}"
        invoke = flight.invoke
        text = f"late {ending.type} ({detail}) of invoke {invoke.index}, process {invoke.process}"
        self._note(flight.slot, text)
