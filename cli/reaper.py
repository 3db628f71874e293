"""Run as a module beside a run: ``reaper RUN_ID RUN_DIRECTORY PROVIDER CONTROLLER_PID``.

It waits for its controller. A controller that reports that nothing is left releases it; one that
dies leaves a cluster with partitioned and frozen nodes, and the reaper removes that, repeatedly
until no more appears: the daemon may be away, or may still be executing requests of the dead
controller.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from harness.errors import NotRemoved
from harness.run.directory import directory_mark

RELEASE = b"released\n"
RETRY_S = 1.0
REAP_LIMIT_S = 900.0  # a daemon that is away for longer was taken away for good
LOG_FILE = "reaper.log"
BY_HAND = "remove it by hand"  # of a plug-in's provider


class Patience(NamedTuple):
    """The number of consecutive checks that must find nothing, and the time between them."""

    looks: int
    pause_s: float


# A daemon goes on with what a dead controller asked for, on a loaded machine for some seconds.
# Processes are made by the controller alone: the second look is for what one of them had begun.
PATIENCE_DOCKER = Patience(looks=10, pause_s=1.0)
PATIENCE_PROCESS = Patience(looks=2, pause_s=0.2)


def main(argv: list[str]) -> int:
    """Wait, and clean up where that is needed; return 1 where a part could not be removed."""
    run_id, root, provider, pid = argv[0], Path(argv[1]), argv[2], int(argv[3])
    for number in (signal.SIGINT, signal.SIGHUP, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)  # what ends the controller must not end its reaper
    remove = remover(run_id, root, provider)
    if released(sys.stdin.fileno(), pid):
        return 0
    tell = teller(root)
    if remove is None:
        tell(f"the controller is gone: only provider {provider!r} knows what it made; {BY_HAND}")
        return 1
    tell("the controller is gone: removing what it left")
    failure = reap(remove, tell, patience_with(provider))
    tell(failure or "nothing is left")
    return int(bool(failure))


def released(pipe: int, pid: int) -> bool:
    """Block until the controller ``pid`` releases this process or is gone; return whether it
    released.

    The end of the pipe is not enough: a child of the controller may have inherited the other one.
    """
    waiting = select.poll()
    waiting.register(pipe, select.POLLIN)
    controller = None
    with contextlib.suppress(ProcessLookupError):
        controller = os.pidfd_open(pid)
        waiting.register(controller, select.POLLIN)
    said = b""
    while True:
        ready = [handle for handle, _ in waiting.poll()]
        if pipe in ready:
            block = os.read(pipe, 64)
            said += block
            if RELEASE in said:
                return True
            if not block:
                return False
        elif controller in ready:
            return False


def patience_with(provider: str) -> Patience:
    """Return how long to look for more remains of ``provider``."""
    return PATIENCE_DOCKER if provider == "docker" else PATIENCE_PROCESS


def reap(remove: Callable[[], list[str]], tell: Callable[[str], None], patience: Patience) -> str:
    """Call ``remove`` until it finds nothing as often as ``patience`` says; return the reason of a
    failure.

    A failed attempt is repeated, until the limit.
    """
    ends_s = time.monotonic() + REAP_LIMIT_S
    clean, failure = 0, ""
    while clean < patience.looks:
        try:
            removed = remove()
        except Exception as error:  # any error: no other process is left to try again
            if isinstance(error, NotRemoved):
                _tell_removed(error.removed, tell)
            clean, now = 0, f"{type(error).__name__}: {error}"
            if now != failure:
                tell(f"will be tried again: {now}")
            failure = now
        else:
            clean, failure = (0, "") if removed else (clean + 1, "")
            _tell_removed(removed, tell)
        if time.monotonic() > ends_s:
            return f"given up after {REAP_LIMIT_S:g} s: {failure or 'more kept appearing'}"
        if clean < patience.looks:
            time.sleep(RETRY_S if failure else patience.pause_s)
    return ""


def _tell_removed(lines: list[str], tell: Callable[[str], None]) -> None:
    for line in lines:
        tell(f"removed {line}")


def remover(run_id: str, root: Path, provider: str) -> Callable[[], list[str]] | None:
    """Return a function that attempts once to remove everything that the run in ``root`` may leave,
    and returns the removals; ``None`` for the provider of a plug-in, whose traces are its own.
    """
    if provider == "docker":
        directory = ""
        with contextlib.suppress(OSError):  # it is gone, and with it who could lay claim to it
            directory = directory_mark(root)
        return lambda: _remove_containers(run_id, directory)
    return (lambda: _end_processes(root / "undo")) if provider == "process" else None


def _remove_containers(run_id: str, directory: str) -> list[str]:
    from clusters.providers.docker.cleanup import cleanup

    # Its controller has released the run, or is dead: only this process may act for it.
    return cleanup(run_id, directory=directory, force=True)


def _end_processes(undo: Path) -> list[str]:
    from clusters.providers.process.cleanup import cleanup

    return cleanup(undo)


def prepare(provider: str) -> None:
    """Import the modules of ``remover`` ahead of it: on a loaded machine that takes a second."""
    with contextlib.suppress(Exception):  # said by the attempt itself, which is repeated
        if provider == "docker":
            import clusters.providers.docker.cleanup
        elif provider == "process":
            import clusters.providers.process.cleanup  # noqa: F401


def teller(root: Path) -> Callable[[str], None]:
    """Return a function that writes a line into the log of the run directory ``root``; a full disk
    does not stop the healing.
    """
    path = root / LOG_FILE

    def tell(text: str) -> None:
        with contextlib.suppress(OSError), path.open("a") as log:
            log.write(f"{time.strftime('%Y-%m-%dT%H:%M:%SZ', time.gmtime())} {text}\n")

    return tell


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
