"""What must not be reached from inside a simulation, and the errors that name it.

Sockets and children are seen by an audit hook; threads, the machine's clocks and entropy are
functions, which are replaced as long as the simulation goes on. The loop's own verbs refuse by
themselves (``loop``).
"""

from __future__ import annotations

import os
import random
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from threading import Thread, get_ident
from typing import Any, NoReturn

_EVENTS = {
    "socket.__new__": "a socket",
    "socket.getaddrinfo": "a name server",
    "subprocess.Popen": "a child process",
    "os.posix_spawn": "a child process",
    "os.fork": "a child process",
}
_CLOCKS = (
    *("time", "time_ns", "monotonic", "monotonic_ns"),
    *("perf_counter", "perf_counter_ns", "sleep"),
)
_DRAWS = (
    *("random", "randint", "randrange", "choice", "choices", "shuffle", "sample", "uniform"),
    *("expovariate", "getrandbits", "seed"),
)
# They stamp what they write for people, and decide nothing by it.
_LET_PASS = frozenset({"logging", "tempfile", "threading"})

_inside: list[tuple[int, Callable[[str], NoReturn]]] = []
_hooked: list[bool] = []


@contextmanager
def sealed(refuse: Callable[[str], NoReturn]) -> Iterator[None]:
    """Within the block, on this thread, ``refuse(what)`` is called for what reaches outside."""
    if not _hooked:
        sys.addaudithook(_audit)  # there is no way to take it away; outside the block it is idle
        _hooked.append(True)
    with ExitStack() as stack:
        for owner, name, what in _replaced():
            stack.callback(setattr, owner, name, getattr(owner, name))
            setattr(owner, name, _stand_in(owner, name, what, refuse))
        _inside.append((get_ident(), refuse))
        stack.callback(_inside.pop)
        yield


def _audit(event: str, _arguments: tuple[Any, ...]) -> None:
    what = _EVENTS.get(event)
    if what is not None and _inside and _inside[-1][0] == get_ident():
        _inside[-1][1](what)


def _replaced() -> Iterator[tuple[object, str, str]]:
    """What is replaced: where it stands, its name, and what an error calls it."""
    for module, names in ((time, _CLOCKS), (random, _DRAWS), (os, ("urandom", "getrandom"))):
        for name in names:
            yield module, name, f"{module.__name__}.{name}"
    yield Thread, "start", "a thread"


def _stand_in(
    owner: object, name: str, what: str, refuse: Callable[[str], NoReturn]
) -> Callable[..., Any]:
    """``owner.name`` for others than this thread, and for those that may; refused to all else."""
    real = getattr(owner, name)
    here = get_ident()

    def call(*args: Any, **named: Any) -> Any:  # noqa: ANN401 (any of them)
        caller = sys._getframe(1).f_globals.get("__name__", "")
        if get_ident() == here and caller.partition(".")[0] not in _LET_PASS:
            refuse(what)
        return real(*args, **named)

    return call
