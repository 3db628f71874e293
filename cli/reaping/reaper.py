"""Run as a module beside a run: ``reaper RUN_ID RUN_DIRECTORY PROVIDER CONTROLLER_PID``.

It waits for its controller. A controller that reports that nothing is left releases it; one that
dies leaves a cluster with partitioned and frozen nodes, and the reaper removes that, repeatedly
until nothing more can appear: the daemon may be away, or may still be executing a request of the
dead controller, which announced it.
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
from typing import TYPE_CHECKING, NamedTuple

import attrs

from harness.errors import NotRemoved
from harness.history.durable_files import append_plain
from harness.history.run_directory import directory_mark

if TYPE_CHECKING:
    from clusters.providers.docker.cleanup import Requests

RELEASE = b"released\n"
RETRY_S = 1.0
REAP_LIMIT_S = 900.0  # a daemon that is away for longer was taken away for good
LOG_FILE = "reaper.log"
BY_HAND = "remove it by hand"  # of a plug-in's provider


class Patience(NamedTuple):
    """The number of consecutive checks that must find nothing, and the time between them.
    ``expected_s``: how long that goes on while more is expected.
    """

    looks: int
    pause_s: float
    expected_s: float


# The second look is for what a node was beginning. A daemon that is asked for a container makes it
# within some seconds, also on a loaded machine.
PATIENCE = Patience(looks=2, pause_s=0.2, expected_s=10.0)


@attrs.frozen
class Remains:
    """What a run may leave. ``remove`` attempts once to remove everything of it, and returns the
    removals; ``expected`` returns the names of what may still appear; ``settle``: a name of these
    did not.
    """

    remove: Callable[[], list[str]]
    expected: Callable[[], tuple[str, ...]] = tuple
    settle: Callable[[str], None] = lambda _: None


def main(argv: list[str]) -> int:
    """Wait, and clean up where that is needed; return 1 where a part could not be removed."""
    run_id, root, provider, pid = argv[0], Path(argv[1]), argv[2], int(argv[3])
    for number in (signal.SIGINT, signal.SIGHUP, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)  # what ends the controller must not end its reaper
    # The handle at once: later the number could be another process's.
    controller = handle(pid)
    remains = remains_of(run_id, root, provider, controller)
    prepare(provider)
    if released(sys.stdin.fileno(), controller):
        return 0
    tell = teller(root)
    why = "the controller hands the rest over" if lives(controller) else "the controller is gone"
    if remains is None:
        tell(f"{why}: only provider {provider!r} knows what it made; {BY_HAND}")
        return 1
    tell(f"{why}: removing what it left")
    failure = reap(remains, tell, PATIENCE)
    tell(failure or "nothing is left")
    if not failure:
        with contextlib.suppress(OSError):  # the watchdog looks for itself then
            healed(root).touch()
        forget_node_addresses(root)
    return int(bool(failure))


def released(pipe: int, controller: int | None) -> bool:
    """Block until the controller of the handle releases this process or is gone (``None``: it was
    from the start); return whether it released.

    The end of the pipe is not enough: a child of the controller may have inherited the other one.
    """
    waiting = select.poll()
    waiting.register(pipe, select.POLLIN)
    if controller is not None:
        waiting.register(controller, select.POLLIN)
    said = b""
    while True:
        ready = [handle for handle, _ in waiting.poll(0 if controller is None else None)]
        # The pipe first: the word may have been written just before the controller ended.
        if pipe in ready:
            block = os.read(pipe, 64)
            said += block
            if RELEASE in said:
                return True
            if not block:
                return False
        else:  # the controller is gone
            return False


def handle(pid: int) -> int | None:
    """Return a handle of the process ``pid``; ``None`` where it is gone already."""
    with contextlib.suppress(ProcessLookupError):
        return os.pidfd_open(pid)
    return None


def lives(process: int | None) -> bool:
    """Return whether the process of the handle has not ended."""
    if process is None:
        return False
    ended = select.poll()
    ended.register(process, select.POLLIN)
    # A pidfd is readable once its process has ended.
    return not ended.poll(0)


def reap(remains: Remains, tell: Callable[[str], None], patience: Patience) -> str:
    """Remove what remains until that finds nothing as often as ``patience`` says, and no more is
    expected; return the reason of a failure.

    A failed attempt is repeated, until the limit.
    """
    ends_s = time.monotonic() + REAP_LIMIT_S
    clean, failure, found_s = 0, "", time.monotonic()
    expected: tuple[str, ...] = ()
    while True:
        try:
            removed = remains.remove()
            _tell_removed(removed, tell)
            expected = remains.expected()
        except Exception as error:  # any error: no other process is left to try again
            if isinstance(error, NotRemoved):
                _tell_removed(error.removed, tell)
            # A failed attempt found nothing out, so the time for what is expected begins again.
            clean, now, found_s = 0, f"{type(error).__name__}: {error}", time.monotonic()
            if now != failure:
                tell(f"will be tried again: {now}")
            failure = now
        else:
            clean, failure = (0, "") if removed else (clean + 1, "")
            found_s = time.monotonic() if removed else found_s
        awaited = expected and time.monotonic() - found_s < patience.expected_s
        if clean >= patience.looks and not awaited:
            break
        if time.monotonic() > ends_s:
            return f"given up after {REAP_LIMIT_S:g} s: {failure or 'more kept appearing'}"
        time.sleep(RETRY_S if failure else patience.pause_s)
    for name in expected:
        tell(f"{name} did not appear within {patience.expected_s:g} s")
        remains.settle(name)
    return ""


def _tell_removed(lines: list[str], tell: Callable[[str], None]) -> None:
    for line in lines:
        tell(f"removed {line}")


def remains_of(run_id: str, root: Path, provider: str, controller: int | None) -> Remains | None:
    """Return what the run in ``root`` may leave, whose controller is that of the handle; ``None``
    for the provider of a plug-in, whose traces are its own.
    """
    if provider == "docker":
        return _containers(run_id, root, controller)
    return Remains(lambda: _end_processes(root / "undo")) if provider == "process" else None


def _containers(run_id: str, root: Path, controller: int | None) -> Remains:
    directory = ""
    with contextlib.suppress(OSError):  # it is gone, and with it who could lay claim to it
        directory = directory_mark(root)

    def remove() -> list[str]:
        from clusters.providers.docker.cleanup import cleanup

        # Its controller has released the run, or is dead: only this process may act for it.
        return cleanup(run_id, directory=directory, force=True, requests=_requests(root))

    def expected() -> tuple[str, ...]:
        # Work may be handed over while the controller lives, which may still be making containers.
        asked = ("what the controller makes",) if lives(controller) else ()
        return asked + _requests(root).open()

    return Remains(remove, expected, lambda name: _requests(root).settle(name))


def _requests(root: Path) -> Requests:
    from clusters.providers.docker.cleanup import Requests

    return Requests(root / "undo")


def _end_processes(undo: Path) -> list[str]:
    from clusters.providers.process.cleanup import cleanup

    return cleanup(undo)


def forget_node_addresses(root: Path) -> None:
    """Remove the addresses of nodes that are gone: other programs may have them by now."""
    from harness.history.run_directory import RunDirectory
    from harness.run.addresses import forget_addresses

    forget_addresses(RunDirectory(root))


def prepare(provider: str) -> None:
    """Import the modules of ``remains_of`` ahead of it: on a loaded machine that takes seconds."""
    with contextlib.suppress(Exception):  # said by the attempt itself, which is repeated
        if provider == "docker":
            import clusters.providers.docker.cleanup
        elif provider == "process":
            import clusters.providers.process.cleanup  # noqa: F401


def healed(root: Path) -> Path:
    """Return the file that exists once the reaper of the run in ``root`` left nothing."""
    return root / "undo" / "healed"


def teller(root: Path) -> Callable[[str], None]:
    """Return a function that writes a line into the log of the run directory ``root``; a full disk
    does not stop the healing, nor does a link or a pipe in the log's place, which gets nothing.
    """

    def tell(text: str) -> None:
        line = f"{time.strftime('%Y-%m-%dT%H:%M:%SZ', time.gmtime())} {text}\n"
        with contextlib.suppress(OSError):
            append_plain(root / LOG_FILE, line.encode())

    return tell


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
