"""An asyncio event loop whose time is virtual: it jumps to the next timer when nothing is ready.

It touches nothing of the machine: no sockets, no threads, no child processes. So a run on it
depends on its inputs alone, and an hour of it takes as long as the work in it. A wait that would
never end on a real loop, or a call that would reach outside, is a named error here.

Tasks in whose context a ``Timeline`` is set live by it: their clock drifts, and while it stands
still none of them runs.
"""

from __future__ import annotations

import asyncio
import gc
import threading
from asyncio import Handle, TimerHandle
from collections import deque
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from contextvars import Context, ContextVar, copy_context
from heapq import heapify, heappop, heappush
from typing import Any, NoReturn, TypeVar, TypeVarTuple, Unpack, cast

from clusters.providers.sim.forbidden_calls import sealed
from harness.errors import HarnessBug

T = TypeVar("T")
Args = TypeVarTuple("Args")

DEFAULT_HORIZON_S = 24 * 3600.0  # of virtual time; a run that is still going has lost its end
MAX_TURNS_AT_ONE_INSTANT = 1_000_000  # thousands are usual; time must pass some day
LEAST_STEP_S = 1e-9  # between a drifting clock and the loop's, rounding must not eat a timer up
MIN_DEAD_TIMERS = 100  # cancelled timers are swept out once they are so many, and half of all
# Cycles are collected so rarely because a simulation makes few and allocates a lot: by default a
# tenth of its time and more went into looking.
COLLECT_AT = (50_000, 20, 20)


class SimulationError(HarnessBug):
    """Code on the virtual loop did something that can't work there."""


class Deadlock(SimulationError):
    """Nothing is ready and no timer is set: every waiting task would wait for ever."""

    def __init__(self, now_s: float) -> None:
        super().__init__(f"at {now_s:.6f} s of virtual time nothing is ready and no timer is set")


class Livelock(SimulationError):
    """Callbacks follow on callbacks and time does not pass."""

    def __init__(self, now_s: float) -> None:
        super().__init__(
            f"at {now_s:.6f} s of virtual time {MAX_TURNS_AT_ONE_INSTANT} turns of the loop "
            f"did not let time pass"
        )


class HorizonReached(SimulationError):
    """The run did not come to its end within the virtual time that it was given."""

    def __init__(self, horizon_s: float) -> None:
        super().__init__(f"the simulation did not end within {horizon_s:g} s of virtual time")


class OutsideWorld(SimulationError):
    """A call reached for the machine: a socket, a thread, an executor, a child, a signal."""

    def __init__(self, what: str) -> None:
        super().__init__(f"{what} reaches outside the simulation")


class Timeline:
    """The clock of some tasks: ahead of the loop's, faster or slower, or standing still."""

    def __init__(self, reads_s: float = 0.0) -> None:
        """``reads_s``: the reading of its clock at the loop's 0."""
        self._at_s, self._reads_s, self._rate = 0.0, reads_s, 1.0
        self.still = False
        self.held: list[Handle] = []

    @property
    def rate(self) -> float:
        """How many seconds it gains a second."""
        return self._rate

    def local(self, loop_s: float) -> float:
        """The reading of its clock at the loop's ``loop_s``."""
        return self._reads_s + (loop_s - self._at_s) * self._rate

    def true(self, local_s: float) -> float:
        """The loop's time at which its clock shows ``local_s``."""
        return self._at_s + (local_s - self._reads_s) / self._rate

    def drift(self, loop_s: float, rate: float) -> None:
        """From ``loop_s`` on, gain ``rate`` seconds a second; timers that are set stay."""
        self._reads_s, self._at_s, self._rate = self.local(loop_s), loop_s, rate


_timeline: ContextVar[Timeline | None] = ContextVar("timeline", default=None)


def live_by(timeline: Timeline) -> None:
    """Let the current context, and all tasks made in it, live by ``timeline``."""
    _timeline.set(timeline)


class _NoSelector:
    """Takes the place of the selector of a loop that waits for the machine; this loop never
    does.
    """


class _Soon(Handle):
    """A handle without the parts that only asyncio's debug mode needs: most events of a loop are
    these.
    """

    __slots__ = ()

    def __init__(
        self,
        callback: Callable[..., object],
        args: tuple[object, ...],
        loop: asyncio.AbstractEventLoop,
        context: Context,
    ) -> None:
        # Of the base class's slots, all but the one for the traceback of a debug mode.
        self._callback, self._args, self._loop, self._context = callback, args, loop, context
        self._cancelled, self._repr, self._source_traceback = False, None, None


class _Timer(TimerHandle):
    """``waits``: it is in the heap."""

    __slots__ = ("waits",)

    waits: bool


def _is_dead(timer: _Timer | Callable[[], object]) -> bool:
    return isinstance(timer, _Timer) and timer.cancelled()


class SimLoop(asyncio.BaseEventLoop):
    """The loop. ``true_time()`` starts at 0.0 and moves only when everything that is ready is done;
    ``time()`` is the same by the clock of the calling task.
    """

    _ready: deque[Handle]
    _closed: bool
    _stopping: bool

    def __init__(self, horizon_s: float = DEFAULT_HORIZON_S) -> None:
        super().__init__()
        self._now_s = 0.0
        self._horizon_s = horizon_s
        self._turns = 0
        self._any_still = False
        # Timers of one moment run in the order in which they were set.
        self._timers: list[tuple[float, int, _Timer | Callable[[], object]]] = []
        self._count = self._dead = 0
        self._owner = threading.get_ident()
        self._selector = _NoSelector()

    def true_time(self) -> float:
        """Virtual seconds since the loop was made, the same for every task."""
        return self._now_s

    def time(self) -> float:
        """Virtual seconds by the clock of the calling task."""
        timeline = _timeline.get()
        if timeline is None:
            return self._now_s
        # ``Timeline.local``, without the call: this is asked for several times a message.
        return timeline._reads_s + (self._now_s - timeline._at_s) * timeline._rate

    def call_soon(
        self,
        callback: Callable[[Unpack[Args]], object],
        *args: *Args,
        context: Context | None = None,
    ) -> Handle:
        """As any loop's."""
        if self._closed:
            raise RuntimeError("Event loop is closed")
        handle = _Soon(callback, args, self, copy_context() if context is None else context)
        self._ready.append(handle)
        return handle

    def call_at(
        self,
        when: float,
        callback: Callable[[Unpack[Args]], object],
        *args: *Args,
        context: Context | None = None,
    ) -> TimerHandle:
        """As any loop's; ``when`` is by the clock of the calling task."""
        timeline = _timeline.get()
        if timeline is not None:
            # Clock and loop round differently: a timer in the future must not fall on this very
            # moment.
            late = when > timeline.local(self._now_s)
            when = timeline.true(when)
            when = max(when, self._now_s + LEAST_STEP_S) if late else when
        return self._set(when, _Timer(when, callback, args, self, context))

    def call_truly(self, delay_s: float, callback: Callable[[], object]) -> None:
        """Call ``callback`` after ``delay_s`` of true time, outside of every process: an event of
        the world happens even if the process that caused it has ended. It must not raise.

        Most events of a simulation are these, so they do without a handle.
        """
        self._count += 1
        heappush(self._timers, (self._now_s + delay_s, self._count, callback))

    def _set(self, when_s: float, timer: _Timer) -> _Timer:
        timer.waits = True
        self._count += 1
        heappush(self._timers, (when_s, self._count, timer))
        return timer

    def halt(self, timeline: Timeline) -> None:
        """Let no task run that lives by ``timeline``; its clock goes on."""
        timeline.still = self._any_still = True

    def release(self, timeline: Timeline) -> None:
        """Let its tasks run again, those that missed their time first. Idempotent."""
        timeline.still = False
        # In the order in which they came due: a program that wakes up works off what waited.
        self._ready.extend(timeline.held)
        timeline.held.clear()

    def _run_once(self) -> None:
        """Turns, until the loop is to stop. One turn: let time pass if nothing is ready, then run
        every ready handle.
        """
        # Many turns a call, and what a handle does is done here: a turn has hardly more than one
        # handle, so that each call around it would cost as much as a simulated message.
        ready, timers = self._ready, self._timers
        while True:
            if self._dead > MIN_DEAD_TIMERS and 2 * self._dead > len(timers):
                self._sweep()
            if not ready:
                self._let_time_pass()
            # Tasks that wake each other for ever would stop time, and the campaign with it.
            elif self._turns >= MAX_TURNS_AT_ONE_INSTANT:
                raise Livelock(self._now_s)
            self._turns += 1
            now_s = self._now_s
            while timers and timers[0][0] <= now_s:
                timer = heappop(timers)[2]
                # An event of the world: it happens ahead of the tasks that this moment makes ready.
                if not isinstance(timer, _Timer):
                    timer()
                    continue
                timer.waits = False
                if timer._cancelled:
                    self._dead -= 1
                else:
                    ready.append(timer)
            # Only what was ready when the turn began: what these make ready waits, as in asyncio.
            for _ in range(len(ready)):
                handle: Any = ready.popleft()
                # Most simulations pause nothing: then no handle is asked for its process.
                if handle._cancelled or (self._any_still and self._holds(handle)):
                    continue
                try:
                    handle._context.run(handle._callback, *handle._args)
                except (SystemExit, KeyboardInterrupt):
                    raise
                except BaseException as error:
                    self._report(handle, error)
            if self._stopping:
                return

    def _report(self, handle: Handle, error: BaseException) -> None:
        """Tell the handler of exceptions what a callback raised, as ``Handle._run`` does."""
        text = f"Exception in callback {handle!r}"
        self.call_exception_handler({"message": text, "exception": error, "handle": handle})

    def _let_time_pass(self) -> None:
        timers = self._timers
        while timers:
            timer = timers[0][2]
            if not isinstance(timer, _Timer) or not timer._cancelled:
                break
            heappop(timers)
            self._dead -= 1
        if not timers:
            raise Deadlock(self._now_s)
        self._turns = 0
        # Never back: a timer of a drifting clock may lie a rounding error in the past.
        if timers[0][0] > self._now_s:
            self._now_s = timers[0][0]
            if self._now_s > self._horizon_s:
                raise HorizonReached(self._horizon_s)

    def _timer_handle_cancelled(self, handle: TimerHandle) -> None:
        """A timer was cancelled, or what had been one."""
        if isinstance(handle, _Timer) and handle.waits:
            self._dead += 1

    def _sweep(self) -> None:
        """Forget cancelled timers before they are most of all."""
        self._timers[:] = [row for row in self._timers if not _is_dead(row[2])]
        # A deadline a call, nearly all cancelled: the heap would be made of dead timers.
        heapify(self._timers)
        self._dead = 0

    def _holds(self, handle: Handle) -> bool:
        """Whether ``handle`` has to wait, since its process stands still."""
        context: Context = cast(Any, handle)._context
        timeline = context.get(_timeline)
        if timeline is None or not timeline.still:
            return False
        timeline.held.append(handle)
        return True

    def _process_events(self, event_list: list[Any]) -> None:
        """Nothing comes from outside."""

    def _write_to_self(self) -> None:
        """There is no selector that sleeps and would have to be woken."""

    def call_soon_threadsafe(
        self,
        callback: Callable[[Unpack[Args]], object],
        *args: *Args,
        context: Context | None = None,
    ) -> asyncio.Handle:
        """From the loop's own thread only (a signal handler's way in)."""
        if threading.get_ident() != self._owner:
            raise OutsideWorld("call_soon_threadsafe of another thread")
        return self.call_soon(callback, *args, context=context)


def _refusal(verb: str) -> Callable[..., NoReturn]:
    def refuse(self: SimLoop, *_args: object, **_named: object) -> NoReturn:
        raise OutsideWorld(verb)

    return refuse


for _verb in (
    "run_in_executor",
    "getaddrinfo",
    "getnameinfo",
    "create_connection",
    "create_server",
    "create_unix_connection",
    "create_unix_server",
    "create_datagram_endpoint",
    "connect_accepted_socket",
    "connect_read_pipe",
    "connect_write_pipe",
    "subprocess_exec",
    "subprocess_shell",
    "sock_recv",
    "sock_recv_into",
    "sock_recvfrom",
    "sock_sendall",
    "sock_sendto",
    "sock_connect",
    "sock_accept",
    "sock_sendfile",
    "sendfile",
    "start_tls",
    "add_reader",
    "add_writer",
    "add_signal_handler",
):
    setattr(SimLoop, _verb, _refusal(_verb))


def _outside(what: str) -> NoReturn:
    raise OutsideWorld(what)


def simulate(main: Coroutine[Any, Any, T], *, horizon_s: float = DEFAULT_HORIZON_S) -> T:
    """Run ``main`` on a new virtual loop and return its result.

    Raises ``SimulationError`` where it would wait for ever, never ends or reaches outside.
    """
    # Seldom: a simulation makes few cycles.
    usual = gc.get_threshold()
    gc.set_threshold(*COLLECT_AT)
    try:
        with (
            asyncio.Runner(loop_factory=lambda: SimLoop(horizon_s)) as runner,
            sealed(_outside),
            _known(runner.get_loop()),
        ):
            return runner.run(main)
    finally:
        gc.set_threshold(*usual)


@contextmanager
def _known(loop: asyncio.AbstractEventLoop) -> Iterator[None]:
    """Within the block ``loop`` is the running loop without a question to the system: asyncio would
    ask it each time whether this is still the process that began it, which took a tenth of a
    simulation.
    """
    usual = asyncio.get_running_loop
    asyncio.get_running_loop = asyncio.events.get_running_loop = lambda: loop
    try:
        yield
    finally:
        asyncio.get_running_loop = asyncio.events.get_running_loop = usual


def true_loop() -> SimLoop:
    """The running loop."""
    return cast(SimLoop, asyncio.get_running_loop())


def later(delay_s: float, callback: Callable[[], object]) -> None:
    """Call ``callback`` after ``delay_s``, as an event of the world and of no process."""
    true_loop().call_truly(delay_s, callback)
