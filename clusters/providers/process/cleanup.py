"""What a controller that died left running: found by its run directory, and ended."""

from __future__ import annotations

from pathlib import Path

from clusters.providers.process import ledger, procfs
from clusters.providers.process.procfs import Identity
from harness.errors import HarnessError
from harness.rundir import directory_mark

# From SIGKILL to the end of a process: its memory has to be given back first.
_KILL_LIMIT_S = 10.0
_ROUNDS_MAX = 10


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
    """Kill every process that the run of ``state_dir`` (its ``undo`` directory) left behind: those
    of its list, and what they started, also where they have ended themselves.

    The list alone gets no process killed: each must carry the run's mark (``procfs.marked``).
    Returns what was killed, ``process 4711 of n1``; a second call returns nothing. Raises
    ``HarnessError`` where one does not end, or is listed and carries no mark, ``MalformedHistory``
    for a broken list.
    """
    owned = ledger.read(state_dir)
    if owned is None:
        return []
    done = []
    if owned.boot == procfs.machine_boot():
        every = end_marked(directory_mark(state_dir.parent))
        ended = [(_whose(one, owned), one.pid) for one in every]
        done = [f"process {pid} of {whose}" for whose, pid in sorted(ended)]
        _refuse_unmarked(owned)
    ledger.forget(state_dir)
    return done


def left(state_dir: Path) -> int:
    """How many processes a controller that died left running, but for those kept on purpose.

    Raises as ``driven``.
    """
    owned = ledger.read(state_dir)
    if owned is None or owned.driven or owned.kept or owned.boot != procfs.machine_boot():
        return 0
    return len(procfs.marked(directory_mark(state_dir.parent)))


def end_marked(ours: str) -> list[Identity]:
    """Kill what carries the mark ``ours`` until nothing does any more: what is killed may have
    started another at that moment. Blocking. Raises ``HarnessError``.
    """
    done = list[Identity]()
    for _ in range(_ROUNDS_MAX):
        found = procfs.marked(ours)
        if not found:
            break
        for identity in found:
            try:
                if procfs.kill_and_wait(identity, ours, _KILL_LIMIT_S):
                    done.append(identity)
            except (TimeoutError, PermissionError) as error:
                raise HarnessError(str(error)) from error
    return done


def _whose(identity: Identity, owned: ledger.Owned) -> str:
    """The node that the process was started for; of what others started only the run is known."""
    nodes = [node for node, known in owned.processes.items() if known == identity]
    return nodes[0] if nodes else "a program of the run"


def _refuse_unmarked(owned: ledger.Owned) -> None:
    for node, identity in sorted(owned.processes.items()):
        if procfs.find(identity):
            raise HarnessError(
                f"{node} of run {owned.run_id}: process {identity.pid} carries no mark of this "
                "run, so it was left alone; if it is yours, end it yourself"
            )
