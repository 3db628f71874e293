"""An asyncio event loop whose time is virtual: it jumps to the next timer when nothing is ready.

It touches nothing of the machine: no sockets, no threads, no child processes. So a run on it
depends on its inputs alone, and an hour of it takes as long as the work in it. What would make a
real loop wait for ever, or reach outside, is a named error here.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Coroutine
from contextvars import Context
from typing import Any, NoReturn, TypeVar, TypeVarTuple, Unpack

from harness.errors import HarnessBug

T = TypeVar("T")
Args = TypeVarTuple("Args")

DEFAULT_HORIZON_S = 24 * 3600.0  # of virtual time; a run that is still going has lost its end
MAX_TURNS_AT_ONE_INSTANT = 1_000_000  # thousands are usual; time must pass some day


class SimulationError(HarnessBug):
    """What runs on the virtual loop did what can't work there."""


class Deadlock(SimulationError):
    """Nothing is ready and no timer is set: whoever waits, waits for ever."""

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
    """Something reached for the machine: a socket, a thread, an executor, a child, a signal."""

    def __init__(self, what: str) -> None:
        super().__init__(f"{what} reaches outside the simulation")


class _NullSelector:
    """Stands where a loop waits for the machine; waiting is what lets virtual time pass."""

    def __init__(self, wait: Callable[[float | None], None]) -> None:
        self._wait = wait

    def select(self, timeout: float | None = None) -> list[Any]:
        """No event ever comes; ``timeout`` is how long a real loop would sleep."""
        self._wait(timeout)
        return []


class SimLoop(asyncio.BaseEventLoop):
    """The loop. ``time()`` starts at 0.0 and moves only when everything that is ready is done."""

    def __init__(self, horizon_s: float = DEFAULT_HORIZON_S) -> None:
        super().__init__()
        self._now_s = 0.0
        self._horizon_s = horizon_s
        self._turns = 0
        self._owner = threading.get_ident()
        self._selector = _NullSelector(self._let_time_pass)

    def time(self) -> float:
        """Virtual seconds since the loop was made."""
        return self._now_s

    def _let_time_pass(self, timeout_s: float | None) -> None:
        if timeout_s is None:
            raise Deadlock(self._now_s)
        if timeout_s <= 0:
            self._turns += 1
            if self._turns > MAX_TURNS_AT_ONE_INSTANT:
                raise Livelock(self._now_s)
            return
        self._turns = 0
        self._now_s += timeout_s
        if self._now_s > self._horizon_s:
            raise HorizonReached(self._horizon_s)

    def _process_events(self, event_list: list[Any]) -> None:
        """Nothing comes from outside."""

    def _write_to_self(self) -> None:
        """Nobody sleeps in a selector that would have to be woken."""

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


def simulate(main: Coroutine[Any, Any, T], *, horizon_s: float = DEFAULT_HORIZON_S) -> T:
    """Run ``main`` on a new virtual loop and return its result.

    Raises ``SimulationError`` where it would wait for ever, never ends or reaches outside.
    """
    with asyncio.Runner(loop_factory=lambda: SimLoop(horizon_s)) as runner:
        return runner.run(main)
