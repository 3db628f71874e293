"""The facilities of the machine that a simulation must not reach, and the errors that name them.

Sockets and children are seen by an audit hook; threads, the machine's clocks and entropy are
functions, which are replaced as long as the simulation goes on. The loop's own verbs refuse by
themselves (``loop``).

Some ways stay open, since no stand-in can take their place: ``datetime.now()`` and its like, which
read the clock in C, generators that a library keeps in C (``numpy.random``), and a function of the
machine that was taken out of its module before (``from time import time``). In the project's own
sources a test looks for the first and the last.
"""

from __future__ import annotations

import _thread
import os
import random
import sys
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from threading import Thread, get_ident
from types import FrameType, ModuleType
from typing import Any, NoReturn

_EVENTS = {
    "socket.__new__": "a socket",
    "socket.getaddrinfo": "a name server",
    "socket.gethostbyname": "a name server",
    "socket.gethostbyaddr": "a name server",
    "socket.getnameinfo": "a name server",
    "subprocess.Popen": "a child process",
    "os.posix_spawn": "a child process",
    "os.fork": "a child process",
    "os.forkpty": "a child process",
    "os.system": "a child process",
    "os.exec": "another program",
}
CLOCKS = frozenset(
    {"time", "time_ns", "monotonic", "monotonic_ns", "perf_counter", "perf_counter_ns", "sleep"}
    | {"process_time", "process_time_ns", "thread_time", "thread_time_ns"}
    | {"clock_gettime", "clock_gettime_ns"}
)
# With so many arguments they only compute; with fewer they ask the clock.
CALENDAR = {"gmtime": 1, "localtime": 1, "ctime": 1, "asctime": 1, "strftime": 2}
# Functions that draw from the one generator that the module shares among all callers.
DRAWS = frozenset(
    name
    for name in dir(random)
    if isinstance(getattr(getattr(random, name), "__self__", None), random.Random)
)
ENTROPY = frozenset({"urandom", "getrandom"})
IDENTIFIERS = frozenset({"uuid1", "uuid4", "getnode"})
# They stamp their output for people, and decide nothing by it.
_LET_PASS = frozenset({"logging", "tempfile", "threading"})
_LOOP, _IMPORT = "clusters.providers.sim.loop", "importlib._bootstrap"
_BETWEEN = frozenset({"random", "secrets"})  # they pass on the requests of their callers

# What a call with these arguments reaches outside, if anything.
Stand = Callable[[tuple[Any, ...], dict[str, Any]], str | None]

_inside: list[tuple[int, Callable[[str], NoReturn]]] = []
_hooked: list[bool] = []


@contextmanager
def sealed(refuse: Callable[[str], NoReturn]) -> Iterator[None]:
    """Within the block, on this thread, ``refuse(what)`` is called for each call that reaches
    outside.
    """
    if not _hooked:
        sys.addaudithook(_audit)  # there is no way to take it away; outside the block it is idle
        _hooked.append(True)
    with ExitStack() as stack:
        for owner, name, reached in list(_replaced()):
            stack.callback(setattr, owner, name, getattr(owner, name))
            setattr(owner, name, _stand_in(owner, name, reached, refuse))
        _inside.append((get_ident(), refuse))
        stack.callback(_inside.pop)
        yield


def _audit(event: str, _arguments: tuple[Any, ...]) -> None:
    what = _EVENTS.get(event)
    if what is not None and _inside and _inside[-1][0] == get_ident():
        _inside[-1][1](what)


def _replaced() -> Iterator[tuple[object, str, Stand]]:
    """The functions to replace: the owner, the name, and the test whether a call reaches
    outside.
    """
    families: tuple[tuple[ModuleType, frozenset[str]], ...] = (
        (time, CLOCKS),
        (random, DRAWS),
        (os, ENTROPY),
        (uuid, IDENTIFIERS),
    )
    for module, names in families:
        for name in sorted(names):
            if hasattr(module, name):
                yield module, name, _always(f"{module.__name__}.{name}")
    for name, count in CALENDAR.items():
        yield time, name, _unless_given(f"time.{name}", count)
    yield random, "_urandom", _always("os.urandom")  # of SystemRandom, and of secrets
    yield random.Random, "seed", _unseeded
    yield Thread, "start", _always("a thread")
    yield _thread, "start_new_thread", _always("a thread")


def _always(what: str) -> Stand:
    return lambda arguments, named: what


def _unless_given(what: str, count: int) -> Stand:
    """For a function that asks the clock where the time, its last argument, is not given."""

    def reached(arguments: tuple[Any, ...], named: dict[str, Any]) -> str | None:
        return None if len(arguments) >= count and arguments[count - 1] is not None else what

    return reached


def _unseeded(arguments: tuple[Any, ...], named: dict[str, Any]) -> str | None:
    """A stream without a seed takes it from the machine. The first argument is the stream."""
    seed = arguments[1] if len(arguments) > 1 else named.get("a")
    return "random.Random() without a seed" if seed is None else None


def _stand_in(
    owner: object, name: str, reached: Stand, refuse: Callable[[str], NoReturn]
) -> Callable[..., Any]:
    """``owner.name`` for others than this thread, and for those that may; refused to all else."""
    real = getattr(owner, name)
    here = get_ident()

    def call(*args: Any, **named: Any) -> Any:  # noqa: ANN401 (any of them)
        what = reached(args, named)
        if what is not None and get_ident() == here and not _let_pass(sys._getframe(1)):
            refuse(what)
        return real(*args, **named)

    return call


def _let_pass(frame: FrameType | None) -> bool:
    """Whether the caller of a stand-in, at ``frame``, may reach the machine: because of its
    package, or since a module is being loaded, which seeds a generator or asks for the year once
    and for all (``numpy.random``, ``dateutil``: the table writers load them late).
    """
    while _package(frame) in _BETWEEN:
        frame = frame.f_back if frame else None
    if _package(frame) in _LET_PASS:
        return True
    while frame is not None and _module(frame) != _LOOP:
        if _module(frame) == _IMPORT:
            return True
        frame = frame.f_back
    return False


def _package(frame: FrameType | None) -> str:
    return _module(frame).partition(".")[0]


def _module(frame: FrameType | None) -> str:
    return str(frame.f_globals.get("__name__", "")) if frame else ""
