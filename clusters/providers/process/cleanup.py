"""What a controller that died left running: found by its run directory, and ended."""

from __future__ import annotations

from pathlib import Path

from clusters.providers.process import ledger, procfs
from harness.errors import HarnessError

# From SIGKILL to the end of a process: its memory has to be given back first.
_KILL_LIMIT_S = 10.0


def driven(state_dir: Path) -> bool:
    """Whether the controller of the run lives. Raises ``MalformedHistory`` for a broken list."""
    owned = ledger.read(state_dir)
    return owned is not None and owned.driven


def kept(state_dir: Path) -> bool:
    """Whether the run was left up on purpose and something of it runs. Raises as ``driven``."""
    owned = ledger.read(state_dir)
    if owned is None or not owned.kept or owned.boot != procfs.machine_boot():
        return False
    return any(procfs.find(identity) for identity in owned.processes.values())


def cleanup(state_dir: Path) -> list[str]:
    """Kill every process that the run of ``state_dir`` (its ``undo`` directory) left behind.

    Only processes that are still the same are killed: the id and the start time must match, on the
    same boot of the machine. Returns what was killed, ``process 4711 of n1``; a second call returns
    nothing. Raises ``HarnessError`` where one does not end, ``MalformedHistory`` for a broken list.
    """
    owned = ledger.read(state_dir)
    if owned is None:
        return []
    done = []
    if owned.boot == procfs.machine_boot():
        for node, identity in sorted(owned.processes.items()):
            try:
                if procfs.kill_and_wait(identity, _KILL_LIMIT_S):
                    done.append(f"process {identity.pid} of {node}")
            except (TimeoutError, PermissionError) as error:
                raise HarnessError(f"{node} of run {owned.run_id}: {error}") from error
    ledger.forget(state_dir)
    return done
