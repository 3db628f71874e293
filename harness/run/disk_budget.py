"""The disk space of a run: an estimate before it, its use, and the free space."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

from harness.errors import HarnessError
from harness.plan.plan import Plan

MIB = 1 << 20
BASE_BYTES = 48 * MIB  # the reserve of the history, its tables, a report
NODE_BYTES = 8 * MIB  # data and logs of a node, in the run directory or beside it
RECORDS_BYTES = 700  # of one transaction: both records, its rows in the tables, events around it
CLOSED_LOOP_PER_S = 60.0  # transactions of one client that waits for each, on a quick store
USUAL_PER_S = 4_000.0  # more than that one driver hardly does, however many clients it has


def estimate_bytes(plan: Plan) -> int:
    """About the bytes that a run of ``plan`` takes; at most its cap. Closed loops are assumed to be
    quick.
    """
    drive = plan.drive
    rate = drive.rate_per_s or min(drive.concurrency * CLOSED_LOOP_PER_S, USUAL_PER_S)
    history = int((drive.duration_s + drive.overtime_s) * rate * RECORDS_BYTES)
    return min(
        BASE_BYTES + (plan.cluster.nodes + plan.cluster.spares) * NODE_BYTES + history,
        plan.limits.disk_mib * MIB,
    )


def require_room(plan: Plan, store: Path) -> None:
    """Refuse a run that will hardly fit. Raises ``HarnessError`` with the needed and the free
    bytes.
    """
    # The store may be made only by its first run.
    place = next(p for p in (store, *store.resolve().parents) if p.is_dir())
    needed, free = estimate_bytes(plan), shutil.disk_usage(place).free
    if free < needed:
        raise HarnessError(
            f"the run may need {_mib(needed)} in {store}, and {_mib(free)} are free: make room "
            "(firedrill runs prune), give another directory with --runs-dir, or lower the bound "
            "with --set limits.disk_mib=N"
        )


def used_bytes(root: Path) -> int:
    """The bytes that the files below ``root`` take on the disk. Files that vanish meanwhile count
    0.
    """
    total, waiting = 0, [str(root)]
    while waiting:
        try:
            with os.scandir(waiting.pop()) as entries:
                for entry in entries:
                    if entry.is_dir(follow_symlinks=False):
                        waiting.append(entry.path)
                    else:
                        total += _blocks_bytes(entry)
        except OSError:
            continue
    return total


def _blocks_bytes(entry: os.DirEntry[str]) -> int:
    try:
        # Blocks, not the size: files may have holes. Their unit is 512 bytes.
        return entry.stat(follow_symlinks=False).st_blocks * 512
    except OSError:  # it vanished, and no other file of its directory with it
        return 0


def over_cap(plan: Plan, root: Path) -> str:
    """Why a run in ``root`` has to end now: it holds more than its plan allows. Empty while it does
    not.
    """
    used = used_bytes(root)
    if used <= plan.limits.disk_mib * MIB:
        return ""
    cap = f"limits.disk_mib allows {plan.limits.disk_mib} MiB"
    return f"ended early: the run directory holds {_mib(used)}, {cap}"


def _mib(size_bytes: int) -> str:
    return f"{size_bytes / MIB:,.0f} MiB"
