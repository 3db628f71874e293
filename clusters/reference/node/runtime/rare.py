"""The rare legal paths: named points at which a simulation may let something unlikely happen.

What a point chooses could happen on any machine at any time, only that nobody would wait for it.
A real runtime never chooses it.
"""

from __future__ import annotations

from collections.abc import Callable

Rare = Callable[[str], bool]
"""Whether the rare path is taken at the named point, now."""

POINTS = {
    "early-snapshot": "a group is saved long before its log is large (saving.py)",
    "early-timeout": "a question to a peer is given up almost at once (peers.py)",
    "full-queue": "a link's send queue is full, which drops the connection (peers.py)",
    "late-tick": "the process does not get the CPU for some ticks (groups.py)",
    "short-batch": "only a part of what waits for the log goes into the next write (groups.py)",
    "slow-sync": "a write to the log takes as long as an election's patience (groups.py)",
}


def never(_point: str) -> bool:
    """What a real machine does at every point."""
    return False
