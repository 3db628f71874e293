"""The most memory that this process and all that it has started hold at once."""

from __future__ import annotations

import os
import threading
import time
from collections import defaultdict
from pathlib import Path
from types import TracebackType

EACH_S = 0.2
# To look at a process of gigabytes takes long, and holds up what it allocates meanwhile.
LOOKING_SHARE, SELDOM_S = 0.02, 2.0


class MemoryPeak:
    """``all_bytes``: the largest sum of proportional shares (PSS, so that a page which several map
    counts once) seen while it was entered, each fifth of a second, or each other second
    where looking would take more than ``LOOKING_SHARE`` of the time.
    """

    def __init__(self) -> None:
        """Nothing is seen before it is entered."""
        self.all_bytes = 0
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)

    def __enter__(self) -> MemoryPeak:
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._over.set()
        self._thread.join()

    def _watch(self) -> None:
        while True:
            over = self._over.is_set()  # and one look more
            begun_s = time.thread_time()
            self.all_bytes = max(self.all_bytes, sum(map(_pss_bytes, _family(os.getpid()))))
            if over:
                return
            looked_s = time.thread_time() - begun_s
            self._over.wait(min(max(EACH_S, looked_s / LOOKING_SHARE), SELDOM_S))


def _family(root: int) -> list[int]:
    children: dict[int, list[int]] = defaultdict(list)
    for entry in Path("/proc").iterdir():
        if entry.name.isdecimal() and (stat := _read(entry / "stat")):
            # The name in brackets may hold blanks and brackets.
            children[int(stat.rpartition(")")[2].split()[1])].append(int(entry.name))
    found, left = [], [root]
    while left:
        found.append(left.pop())
        left += children[found[-1]]
    return found


def _pss_bytes(process: int) -> int:
    for line in _read(Path(f"/proc/{process}/smaps_rollup")).splitlines():
        if line.startswith("Pss:"):
            return int(line.split()[1]) * 1024
    return 0


def _read(path: Path) -> str:
    try:
        return path.read_text()
    except OSError:  # it has ended
        return ""
