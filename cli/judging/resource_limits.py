"""How much memory and time judging may take, by the size of what is judged.

A run may be a stranger's: its plan sets no limits, only the user does, by options or the
environment.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path

import msgspec

from harness.errors import UsageError

# The share of the machine's memory: more would make it swap, which ends nothing and stops
# everything.
MEMORY_SHARE = 0.75
MEMORY_BASE_BYTES = 4 << 30
# A history of ten million transactions takes 4.35 GB, some 10 bytes for each of its own.
MEMORY_PER_BYTE = 64

TIME_BASE_S = 900.0
# Ten million transactions take some four minutes on two cores, under load four times that.
TIME_PER_MIB_S = 5.0
TIME_MAX_S = 24 * 3600.0  # of 17 GiB; who has more says how long it may take
# The most that may be asked for: a number for which the system's limits have room.
TIME_ASKED_MAX_S = 100 * 365 * 86_400.0
MEMORY_ASKED_MAX_MIB = 1 << 32
BLOCK_BYTES = 512  # the unit of ``st_blocks``
MEMORY_VARIABLE = "FIREDRILL_MEMORY_MIB"
TIME_VARIABLE = "FIREDRILL_JUDGING_S"


class Limits(msgspec.Struct, frozen=True, kw_only=True):
    """The limits of one analysis: address space that it can write to (each of its processes), and
    time.
    """

    memory_bytes: int
    time_s: float


class LimitOptions(msgspec.Struct, frozen=True, kw_only=True):
    """The limits that the user asked for; ``None`` for those of ``limits_of``. No plan sets them:
    it may be a stranger's.
    """

    memory_mib: int | None = None
    time_s: float | None = None


def limits_of(root: Path, asked: LimitOptions | None = None) -> Limits:
    """Return the limits of a run directory or a history file: what was asked for, else the values
    of the environment, else the need of an honest one of its size within the machine's means.

    Raises ``UsageError``.
    """
    asked = asked or LimitOptions()
    # Not the size alone: a hole of terabytes costs its sender nothing, and would lift the limits.
    size = sum(min(entry.st_size, entry.st_blocks * BLOCK_BYTES) for entry in _files(root))
    wanted = MEMORY_BASE_BYTES + MEMORY_PER_BYTE * size
    memory = min(wanted, int(MEMORY_SHARE * machine_memory_bytes()))
    seconds = min(TIME_BASE_S + TIME_PER_MIB_S * size / (1 << 20), TIME_MAX_S)
    memory_mib = _bounded(
        "--memory-mib", asked.memory_mib, MEMORY_VARIABLE, memory / (1 << 20), MEMORY_ASKED_MAX_MIB
    )
    time_s = _bounded("--time-limit", asked.time_s, TIME_VARIABLE, seconds, TIME_ASKED_MAX_S)
    return Limits(memory_bytes=int(memory_mib * (1 << 20)), time_s=time_s)


def worker_memory_bytes(workers: int) -> int:
    """Return the memory that each of ``workers`` processes may use, which simulate and judge side
    by side.
    """
    share = int(MEMORY_SHARE * machine_memory_bytes() / workers)
    return max(MEMORY_BASE_BYTES, share)


def machine_memory_bytes() -> int:
    """Return the memory of the machine, or the rest of its control group's limit."""
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    # A control group without a limit says "max", and some systems have no such file.
    with contextlib.suppress(OSError, ValueError):
        memory = min(memory, int(Path("/sys/fs/cgroup/memory.max").read_text()))
    return memory


def _files(root: Path) -> Iterator[os.stat_result]:
    """Yield the regular files of a run directory, as they are: no link is followed. A file that was
    named itself is yielded alone.
    """
    if root.is_file():
        yield root.stat()
        return
    pending = [root]
    while pending:
        with contextlib.suppress(OSError), os.scandir(pending.pop()) as entries:
            for entry in entries:
                if entry.is_dir(follow_symlinks=False):
                    pending.append(Path(entry.path))
                elif entry.is_file(follow_symlinks=False):
                    yield entry.stat(follow_symlinks=False)


def _bounded(option: str, asked: float | None, variable: str, default: float, most: float) -> float:
    """Return what was asked for by the option, else by the environment, else the default."""
    if asked:
        text: str | None = str(asked)
        name = option
    else:
        text, name = os.environ.get(variable), variable
    if text is None:
        return default
    try:
        value = float(text)
    except ValueError:
        value = 0.0
    if not 0 < value <= most:
        raise UsageError(f"{name}: expected a number > 0, at most {most:.0f} (got {text!r})")
    return value
