"""Planted bugs: mistakes that a real engineer makes, off by default, to prove that they are found.

Each is one line, at the place where the mistake would be made; this module only knows the names.
"""

from __future__ import annotations

from collections.abc import Iterable

KNOWN = {
    "ack-before-quorum": "a leader acknowledges a commit once its own log holds it (groups.py)",
    "commit-before-quorum": "a leader commits what its own disk holds (raft/core.py)",
    "no-fsync": "the log is appended but not synced before it is acknowledged (storage/log.py)",
}


class UnknownBug(Exception):
    """A configuration asks for a bug that nobody planted."""


def check(names: Iterable[str]) -> frozenset[str]:
    """The bugs to switch on. Raises ``UnknownBug`` naming the known ones."""
    wanted = frozenset(names)
    for name in sorted(wanted):
        if name not in KNOWN:
            raise UnknownBug(f"bug {name!r} is not one of {', '.join(sorted(KNOWN))}")
    return wanted
