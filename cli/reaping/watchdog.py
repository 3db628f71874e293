"""Run as a module beside a run: ``watchdog RUN_ID RUN_DIRECTORY PROVIDER CONTROLLER REAPER`` (the
last two are process ids).

It holds the lease of the faults that a machine can't end by itself: its own freezing, its loss, a
stopped local process. They are in force as long as the controller lives, or the reaper that heals
after it. Where both are gone this process does the reaper's work. It shares nothing with them that
could end it as well: it has a session of its own, no terminal, and no pipe but the one that
releases it.
"""

from __future__ import annotations

import select
import signal
import sys
from pathlib import Path

from cli.reaping.reaper import (
    PATIENCE,
    Remains,
    forget_node_addresses,
    handle,
    healed,
    lives,
    prepare,
    reap,
    released,
    remains_of,
    teller,
)


def main(argv: list[str]) -> int:
    """Wait for controller and reaper, then end faults that are still in force; return 1 where that
    failed.
    """
    run_id, root, provider = argv[0], Path(argv[1]), argv[2]
    for number in (signal.SIGINT, signal.SIGHUP, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)  # what ends the controller must not end this as well
    # The handles at once: later the numbers could be other processes'.
    reaper = handle(int(argv[4]))
    controller = handle(int(argv[3]))
    remains = remains_of(run_id, root, provider, controller)
    prepare(provider)
    if released(sys.stdin.fileno(), controller):
        return 0
    if remains is None:  # the reaper says so
        return 1
    wait_for(reaper)
    # The reaper came to its end, and left nothing.
    if healed(root).exists():
        return 0
    tell = teller(root)
    found: list[str] = []

    def remove() -> list[str]:
        removed = remains.remove()
        if removed and not found:
            both = "the reaper is gone" if lives(controller) else "controller and reaper are gone"
            tell(f"{both}: the lease of what they broke is over")
        found.extend(removed)
        return removed

    failure = reap(Remains(remove, remains.expected, remains.settle), tell, PATIENCE)
    if failure:
        tell(failure)
        return 1
    forget_node_addresses(root)
    if found:
        tell("nothing is left")
    return 0


def wait_for(process: int | None) -> None:
    """Block until the process of the handle has ended."""
    if process is None:
        return
    ended = select.poll()
    ended.register(process, select.POLLIN)
    ended.poll()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
