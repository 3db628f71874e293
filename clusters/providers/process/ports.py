"""Ports for nodes on loopback: free now, and outside of the range that the kernel hands out
later.
"""

from __future__ import annotations

import hashlib
import socket
from pathlib import Path

from clusters.providers.process.proxy import LOOPBACK
from harness.errors import HarnessError, PlanError

_FIRST_PORT = 10_000
_LAST_PORT = 65_535
_KERNEL_RANGE = Path("/proc/sys/net/ipv4/ip_local_port_range")


class Claims:
    """Ports that one run alone uses among the runs of this machine.

    Between the choice of a port and its first use, and while a node is down, another run would find
    it free. A claim is a name that only one process can have; it ends with the process, however
    that ends.
    """

    def __init__(self) -> None:
        self._names: list[socket.socket] = []

    def take(self, port: int) -> bool:
        """Whether ``port`` is now this run's; no where another run has it."""
        name = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            name.bind(f"\0firedrill/port/{port}")  # no file: the kernel forgets it with us
        except OSError:
            name.close()
            return False
        self._names.append(name)
        return True

    def let_go(self) -> None:
        """Give all of them back. Idempotent."""
        while self._names:
            self._names.pop().close()


def is_free(port: int, *, reuse: bool) -> bool:
    """Whether ``port`` can be bound now.

    ``reuse`` lets a port pass that only old connections still hold: what a server that is started
    again may bind.
    """
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as attempt:
        attempt.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, int(reuse))
        try:
            attempt.bind((LOOPBACK, port))
        except OSError:
            return False
    return True


def choose(run_id: str, count: int, claims: Claims) -> tuple[int, ...]:
    """``count`` free ports, ascending from a place that ``run_id`` decides, so that runs side by
    side rarely want the same ones; a port that is taken, or claimed by another run, is passed over.

    None is from the kernel's range for outgoing connections: while a node is down, any connection
    could be given its port. Raises ``HarnessError`` where there are too few.
    """
    candidates = _candidates()
    at = int.from_bytes(hashlib.sha256(run_id.encode()).digest()[:4], "big") % len(candidates)
    chosen: list[int] = []
    for port in (*candidates[at:], *candidates[:at]):
        if len(chosen) == count:
            break
        if is_free(port, reuse=False) and claims.take(port):
            chosen.append(port)
    if len(chosen) < count:
        raise HarnessError(f"nodes need {count} free ports (found {len(chosen)} on {LOOPBACK})")
    return tuple(chosen)


def given(first: int, count: int, claims: Claims) -> tuple[int, ...]:
    """The ``count`` ports from ``first`` on. Raises ``PlanError`` where there are not as many,
    ``HarnessError`` naming one that is taken.
    """
    if first + count - 1 > _LAST_PORT:
        highest = _LAST_PORT - count + 1
        raise PlanError(
            "cluster.options.first_port",
            f"expected at most {highest}, since the nodes need {count} ports (got {first})",
        )
    for port in range(first, first + count):
        mine = claims.take(port)
        if not mine or not is_free(port, reuse=True):
            claims.let_go()
            raise HarnessError(
                f"port {port} on {LOOPBACK} is taken by another {'process' if mine else 'run'} "
                f"(first_port {first} needs {count} free ports; leave it out to have them chosen)"
            )
    return tuple(range(first, first + count))


def _candidates() -> tuple[int, ...]:
    low, high = (int(bound) for bound in _KERNEL_RANGE.read_text().split())
    every = range(_FIRST_PORT, _LAST_PORT + 1)
    outside = tuple(port for port in every if not low <= port <= high)
    # Where the kernel was given nearly all ports, there is nothing better than any.
    return outside if len(outside) > len(every) // 20 else tuple(every)
