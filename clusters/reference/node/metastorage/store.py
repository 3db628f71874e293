"""Metastorage's state machine: revisioned keys, conditional multi-invoke, watches."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Literal

import msgspec

from clusters.reference.node.raft.types import Entry

METASTORAGE = "metastorage"  # the name of its raft group


class Versioned(msgspec.Struct, frozen=True, array_like=True):
    """A value and the revision that wrote it."""

    value: bytes
    revision: int


class Condition(msgspec.Struct, frozen=True, array_like=True):
    """Holds if ``key`` is absent, present, or has exactly this value or this revision."""

    key: str
    test: Literal["absent", "present", "value", "revision"]
    value: bytes = b""
    revision: int = 0


class Operation(msgspec.Struct, frozen=True, array_like=True):
    """Put a value, or remove the key (``None``)."""

    key: str
    value: bytes | None


class Invoke(msgspec.Struct, frozen=True, array_like=True):
    """If all conditions hold do ``success``, else ``failure``: at once, as one revision."""

    conditions: tuple[Condition, ...]
    success: tuple[Operation, ...]
    failure: tuple[Operation, ...] = ()


class Change(msgspec.Struct, frozen=True, kw_only=True):
    """What one revision changed: key to its new value, ``None`` where it was removed."""

    revision: int
    entries: dict[str, bytes | None]


class InvokeResult(msgspec.Struct, frozen=True, kw_only=True):
    """The outcome of an invoke: which branch, and the revision after it."""

    success: bool
    revision: int


Watcher = Callable[[Change], None]
_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(Invoke)


class _Whole(msgspec.Struct, frozen=True, array_like=True):
    """Everything, as a snapshot."""

    revision: int
    keys: dict[str, Versioned]


_whole_decoder = msgspec.msgpack.Decoder(_Whole)


def encode_invoke(invoke: Invoke) -> bytes:
    """The log's form of ``invoke``."""
    return _encoder.encode(invoke)


class Metastorage:
    """Applied state. A branch without operations makes no revision."""

    def __init__(self) -> None:
        self.revision = 0
        self._keys: dict[str, Versioned] = {}
        self._watchers: list[tuple[str, Watcher]] = []

    def get(self, key: str) -> Versioned | None:
        """The value of ``key`` at this revision."""
        return self._keys.get(key)

    def prefixed(self, prefix: str) -> dict[str, Versioned]:
        """All keys that begin with ``prefix``, sorted."""
        return {k: self._keys[k] for k in sorted(self._keys) if k.startswith(prefix)}

    def watch(self, prefix: str, watcher: Watcher) -> None:
        """Call ``watcher`` for every later revision that touches ``prefix``, in order, before the
        next one is applied. It must not raise.
        """
        self._watchers.append((prefix, watcher))

    def apply(self, entry: Entry) -> InvokeResult:
        """Decide and do one invoke."""
        invoke = _decoder.decode(entry.data)
        success = all(self._holds(condition) for condition in invoke.conditions)
        operations = invoke.success if success else invoke.failure
        if operations:
            self._do(operations)
        return InvokeResult(success=success, revision=self.revision)

    def snapshot(self) -> Iterator[bytes]:
        """The state of this moment as one chunk: metastorage is small."""
        return iter((_encoder.encode(_Whole(self.revision, self._keys)),))

    def restoring(self) -> SnapshotRestore:
        """The way to become what ``snapshot`` saw."""
        return SnapshotRestore(self)

    def become(self, chunks: Iterable[bytes]) -> None:
        """What ``snapshot`` saw. Watchers are told of everything that differs, as one change at its
        revision: what lay between is gone.
        """
        whole = _whole_decoder.decode(b"".join(chunks))
        before, self._keys, self.revision = self._keys, whole.keys, whole.revision
        changed: dict[str, bytes | None] = {
            key: held.value for key, held in whole.keys.items() if before.get(key) != held
        }
        changed.update({key: None for key in before if key not in whole.keys})
        self._notify(changed)

    def predict(self, entry: Entry) -> None:
        """Nothing: metastorage never answers before it applies."""

    def content(self) -> Iterable[object]:
        """Keys with value and revision."""
        return list(self._keys.items())

    def leadership_lost(self) -> None:
        """A leader keeps nothing of its own."""

    def _holds(self, condition: Condition) -> bool:
        held = self._keys.get(condition.key)
        if condition.test == "absent":
            return held is None
        if held is None:
            return False
        if condition.test == "value":
            return held.value == condition.value
        return condition.test == "present" or held.revision == condition.revision

    def _do(self, operations: tuple[Operation, ...]) -> None:
        self.revision += 1
        for operation in operations:
            if operation.value is None:
                self._keys.pop(operation.key, None)
            else:
                self._keys[operation.key] = Versioned(operation.value, self.revision)
        self._notify({operation.key: operation.value for operation in operations})

    def _notify(self, change: dict[str, bytes | None]) -> None:
        for prefix, watcher in self._watchers:
            seen = {key: value for key, value in change.items() if key.startswith(prefix)}
            if seen:
                watcher(Change(revision=self.revision, entries=seen))


class SnapshotRestore:
    """A snapshot of metastorage being read: it is small, so all of it is done at the end."""

    def __init__(self, store: Metastorage) -> None:
        self._store = store
        self._chunks: list[bytes] = []

    def feed(self, chunk: bytes) -> None:
        """Take the next chunk."""
        self._chunks.append(chunk)

    def done(self) -> None:
        """``store`` is what the chunks say."""
        self._store.become(self._chunks)
