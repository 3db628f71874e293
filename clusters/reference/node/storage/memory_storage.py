"""``PartitionStorage`` in memory: versions of a partition's keys, by commit timestamp (MVCC)."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator

from clusters.reference.node.markers import reached
from clusters.reference.node.wire.messages import Version

ABSENT = Version(None, 0)


class MemoryStorage:
    """The newest version of every key, and older ones as long as a snapshot may want them."""

    def __init__(self) -> None:
        self._newest: dict[bytes, Version] = {}
        self._older: dict[bytes, list[Version]] = {}  # ascending
        self._superseded: deque[tuple[int, bytes]] = deque()  # by which timestamp, and the key

    def __len__(self) -> int:
        return len(self._newest)

    @property
    def older(self) -> int:
        """How many versions are kept for snapshots only."""
        return len(self._superseded)

    def newest(self, key: bytes) -> Version:
        """The last committed version."""
        return self._newest.get(key, ABSENT)

    def at(self, key: bytes, ts: int) -> Version:
        """The version that a snapshot at ``ts`` sees; right unless ``ts`` is below the collected
        versions.
        """
        newest = self.newest(key)
        if newest.ts <= ts:
            return newest
        for version in reversed(self._older.get(key, ())):
            if version.ts <= ts:
                reached("older version read")
                return version
        reached("key read before its first version")
        return ABSENT

    def all_of(self, key: bytes) -> tuple[Version, ...]:
        """Every version that is kept, the newest first."""
        newest = self._newest.get(key)
        return () if newest is None else (newest, *reversed(self._older.get(key, ())))

    def install(self, key: bytes, value: bytes, ts: int) -> None:
        """Add a version above all others of ``key``."""
        before = self._newest.get(key)
        if before is not None:
            self._older.setdefault(key, []).append(before)
            self._superseded.append((ts, key))
        self._newest[key] = Version(value, ts)

    def collect(self, horizon: int) -> None:
        """Drop every version that no snapshot at ``horizon`` or later can see."""
        while self._superseded and self._superseded[0][0] <= horizon:
            reached("version collected")
            _, key = self._superseded.popleft()
            older = self._older[key]
            # Versions of a key are superseded in the order in which they were written.
            del older[0]
            if not older:
                del self._older[key]

    def dump(self) -> Iterator[tuple[bytes, tuple[Version, ...]]]:
        """Every key with its versions at the call, ascending. Versions that are collected before
        their turn are left out: no transaction can ask for them any more.
        """
        # The tables are copied, which takes milliseconds; the rows are made one at a time.
        newest, older = self._newest.copy(), self._older.copy()
        # The lists in ``older`` are still the live ones: versions
        # that came there since are left out.
        return (
            (key, (*(v for v in older.get(key, ()) if v.ts < version.ts), version))
            for key, version in newest.items()
        )

    def load(self, key: bytes, versions: tuple[Version, ...]) -> None:
        """Take in a key of a dump."""
        self._newest[key] = versions[-1]
        if versions[:-1]:
            self._older[key] = list(versions[:-1])

    def loaded(self) -> None:
        """The dump is complete."""
        self._superseded = deque(
            sorted(
                (later.ts, key)
                for key, older in self._older.items()
                for later in (*older[1:], self._newest[key])
            )
        )
