"""Metastorage's state machine: revisioned keys with their history, invokes that compare and branch,
watches from a revision.

Every invoke that writes makes one revision. The history keeps the changes of each revision, so that
a watch may begin at any revision that is not compacted, and misses none, sees none twice and none
merged with another, over restarts and snapshots. Keys that are rewritten all the time and whose
past tells nothing (``WITHOUT_HISTORY``) have their newest value alone.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Generic, Literal, Protocol, TypeVar

import msgspec

from clusters.reference.node.markers import reached
from clusters.reference.node.raft.types import Entry

METASTORAGE = "metastorage"  # the name of its raft group
WITHOUT_HISTORY = ("lease/",)  # several revisions a second, of which only the last one counts
MAX_HISTORY = 10_000  # revisions; the oldest are compacted beyond it
T = TypeVar("T")


class Versioned(msgspec.Struct, frozen=True, array_like=True):
    """A value and the revision that wrote it."""

    value: bytes
    revision: int


class Condition(msgspec.Struct, frozen=True, array_like=True):
    """Holds if ``key`` is absent or present, or if it is present and its value or its revision is
    equal to, or less than, the one here. Values compare as bytes do.
    """

    key: str
    test: Literal["absent", "present", "value", "revision", "value<", "revision<"]
    value: bytes = b""
    revision: int = 0


def unchanged(key: str, held: Versioned | None) -> Condition:
    """``key`` is as it was read: ``held``, or absent."""
    if held is None:
        return Condition(key, "absent")
    return Condition(key, "revision", revision=held.revision)


class Operation(msgspec.Struct, frozen=True, array_like=True):
    """Put a value, or remove the key (``None``)."""

    key: str
    value: bytes | None


class Invoke(msgspec.Struct, frozen=True, array_like=True):
    """If all conditions hold do ``success``, else the invoke ``otherwise``, or ``failure`` without
    one: at once, as one revision. So several invokes are a chain of if, else-if and else.

    ``following`` are decided after it in their order, each as a revision of its own: they share its
    commit and nothing else (``together``).
    """

    conditions: tuple[Condition, ...]
    success: tuple[Operation, ...]
    failure: tuple[Operation, ...] = ()
    otherwise: Invoke | None = None
    following: tuple[Invoke, ...] = ()


def together(invokes: Sequence[Invoke]) -> Invoke:
    """``invokes``, at least one, in one commit."""
    return msgspec.structs.replace(invokes[0], following=tuple(invokes[1:]))


class Change(msgspec.Struct, frozen=True, kw_only=True):
    """The changes of one revision: key to its new value, ``None`` where it was removed."""

    revision: int
    entries: dict[str, bytes | None]


class InvokeResult(msgspec.Struct, frozen=True, kw_only=True):
    """The outcome of an invoke and the revision after it. ``branch`` is the place in the chain of
    the invoke that was done, from 0 on; ``success``: its conditions held. ``following``: the
    outcomes of the invokes that followed in the same commit.
    """

    success: bool
    revision: int
    branch: int = 0
    following: tuple[InvokeResult, ...] = ()


class Compacted(Exception):
    """The history does not reach back to the revision that was asked for."""

    def __init__(self, revision: int, compacted: int) -> None:
        super().__init__(
            f"metastorage: changes after revision {revision} were asked for, those up to "
            f"{compacted} are compacted"
        )
        self.revision, self.compacted = revision, compacted


Observer = Callable[[Change], None]
Prefix = str | tuple[str, ...]  # of several, a key has one


class Watcher(Protocol):
    """The callbacks of a watch; neither may raise."""

    def changed(self, change: Change) -> None:
        """A revision above the last one touched the prefix."""

    def compacted(self, revision: int) -> None:
        """A snapshot brought this replica to ``revision``, and its history does not reach back to
        the last revision that this watch has seen: from here on the watcher must use the present
        state. Later revisions follow one by one.
        """


class View(Protocol):
    """One state of metastorage, for readers."""

    def get(self, key: str) -> Versioned | None:
        """The value of ``key``."""

    def prefixed(self, prefix: str) -> Mapping[str, Versioned]:
        """All keys that begin with ``prefix``."""


class Group(Protocol):
    """The raft group of metastorage, as services at its leader use it."""

    @property
    def serving(self) -> bool:
        """Whether this node leads it, and has applied everything of earlier terms."""

    @property
    def leader(self) -> str | None:
        """The node that leads, where it is known."""

    async def propose(self, data: bytes, limit_s: float) -> object:
        """The result of ``Metastorage.apply``, or ``Failed``."""


_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(Invoke)


class _Whole(msgspec.Struct, frozen=True, array_like=True):
    """Everything, as a snapshot: ``history`` as (revision, its changes), the oldest first."""

    revision: int
    keys: dict[str, Versioned]
    compacted: int | None = None
    history: list[tuple[int, dict[str, bytes | None]]] = []


_whole_decoder = msgspec.msgpack.Decoder(_Whole)


def encode_invoke(invoke: Invoke) -> bytes:
    """The log's form of ``invoke``."""
    if invoke.otherwise is None and not invoke.following:
        return _encoder.encode((invoke.conditions, invoke.success, invoke.failure))
    return _encoder.encode(invoke)


class Watch:
    """One watch: it has delivered everything of ``prefix`` up to ``revision``."""

    def __init__(self, prefix: Prefix, revision: int, watcher: Watcher) -> None:
        self.prefix, self.revision, self._watcher = prefix, revision, watcher

    def deliver(self, change: Change) -> None:
        """Hand ``change`` on as far as it is new and about ``prefix``."""
        if change.revision <= self.revision:
            return
        self.revision = change.revision
        seen = _about(self.prefix, change.entries)
        if seen:
            self._watcher.changed(Change(revision=change.revision, entries=seen))

    def restored(self, revision: int, compacted: int) -> None:
        """A snapshot at ``revision`` was restored, whose history begins behind ``compacted``."""
        if self.revision < compacted:
            self.revision = revision
            self._watcher.compacted(revision)


class Metastorage:
    """Applied state. A branch without operations makes no revision."""

    def __init__(self, max_history: int | None = None) -> None:
        """By default ``MAX_HISTORY`` revisions are kept."""
        self._max_history = max_history or MAX_HISTORY
        self.revision = 0
        self.compacted = 0  # the last revision that the history does not hold any more
        self._keys: dict[str, Versioned] = {}
        self._history: deque[Change] = deque()
        self._observers: list[tuple[str, Observer]] = []
        self._watches: list[Watch] = []

    def get(self, key: str) -> Versioned | None:
        """The value of ``key`` at this revision."""
        return self._keys.get(key)

    def prefixed(self, prefix: str) -> dict[str, Versioned]:
        """All keys that begin with ``prefix``, sorted."""
        return {k: self._keys[k] for k in sorted(self._keys) if k.startswith(prefix)}

    def changes(self, prefix: Prefix, after: int) -> tuple[Change, ...]:
        """The changes of each revision above ``after`` under ``prefix``, the oldest first. Raises
        ``Compacted``.
        """
        if after < self.compacted:
            raise Compacted(after, self.compacted)
        later = (change for change in self._history if change.revision > after)
        touching = ((change.revision, _about(prefix, change.entries)) for change in later)
        return tuple(Change(revision=r, entries=entries) for r, entries in touching if entries)

    def observe(self, prefix: str, observer: Observer) -> None:
        """Call ``observer`` for every later revision that touches ``prefix``, in order, before the
        next one is applied. A restored snapshot comes as one change: an observer follows the state,
        not its history. It must not raise.
        """
        self._observers.append((prefix, observer))

    def watch(self, prefix: Prefix, after: int, watcher: Watcher) -> Watch:
        """Call ``watcher`` for every revision above ``after`` that touches ``prefix``, each once,
        in order and by itself: those that are here before the return, each later one before the
        next is applied. ``after`` may be a revision that this replica has yet to reach, as after a
        restart. ``prefix`` must not be one without history. Raises ``Compacted``.
        """
        prefixes = (prefix,) if isinstance(prefix, str) else prefix
        if any(one.startswith(p) or p.startswith(one) for one in prefixes for p in WITHOUT_HISTORY):
            raise ValueError(f"metastorage: keys under {prefix!r} have no history to watch")
        past = self.changes(prefix, min(after, self.revision))
        watch = Watch(prefix, after, watcher)
        self._watches.append(watch)
        for change in past:
            watch.deliver(change)
        watch.revision = max(after, self.revision)
        return watch

    def unwatch(self, watch: Watch) -> None:
        """Call the watcher of ``watch`` no more."""
        self._watches = [other for other in self._watches if other is not watch]

    def apply(self, entry: Entry) -> InvokeResult:
        """Decide and do the invoke, and those that follow it."""
        invoke = _decoder.decode(entry.data)
        first = self._decide(invoke)
        if not invoke.following:
            return first
        return msgspec.structs.replace(
            first, following=tuple(self._decide(each) for each in invoke.following)
        )

    def _decide(self, invoke: Invoke) -> InvokeResult:
        branch = 0
        success = self._hold(invoke)
        while not success and invoke.otherwise is not None:
            invoke, branch = invoke.otherwise, branch + 1
            success = self._hold(invoke)
        operations = invoke.success if success else invoke.failure
        if operations:
            self._do(operations)
        return InvokeResult(success=success, revision=self.revision, branch=branch)

    def read(self, data: bytes) -> InvokeResult | None:
        """The result that an encoded invoke has here, if none of its branches writes;
        ``None`` where one may.
        """
        invoke: Invoke | None = _decoder.decode(data)
        result, branch = None, 0
        while invoke is not None:
            if invoke.success or invoke.failure or invoke.following:
                return None
            success = self._hold(invoke)
            if result is None or not result.success:
                result = InvokeResult(success=success, revision=self.revision, branch=branch)
            invoke, branch = invoke.otherwise, branch + 1
        return result

    def snapshot(self) -> Iterator[bytes]:
        """The state of this moment as one chunk: metastorage is small."""
        history = [(change.revision, change.entries) for change in self._history]
        return iter((_encoder.encode(_Whole(self.revision, self._keys, self.compacted, history)),))

    def restoring(self) -> SnapshotRestore:
        """A restore to the state that ``snapshot`` captured."""
        return SnapshotRestore(self)

    def become(self, chunks: Iterable[bytes]) -> None:
        """Take over the state that a snapshot captured. Observers see all differences as one
        change; watches see each revision that they have not seen.
        """
        whole = _whole_decoder.decode(b"".join(chunks))
        reached("metastorage restored from a snapshot")
        before, self._keys, self.revision = self._keys, whole.keys, whole.revision
        # A snapshot of an earlier version of the store has no history at all.
        self.compacted = whole.revision if whole.compacted is None else whole.compacted
        self._history = deque(Change(revision=r, entries=entries) for r, entries in whole.history)
        # Revisions are compared, too: a key that was written again with its value has changed.
        changed: dict[str, bytes | None] = {
            key: held.value for key, held in whole.keys.items() if before.get(key) != held
        }
        changed.update({key: None for key in before if key not in whole.keys})
        self._notify(Change(revision=self.revision, entries=changed))
        for watch in self._watches:
            watch.restored(self.revision, self.compacted)
            for change in self._history:
                watch.deliver(change)

    def predict(self, entry: Entry) -> None:
        """Nothing: metastorage never answers before it applies."""

    def content(self) -> Iterable[object]:
        """Keys with value and revision, and how far back the history goes."""
        oldest = self._history[0].revision if self._history else 0
        head = (self.revision, self.compacted, oldest, len(self._history))
        return [head, *self._keys.items()]

    def leadership_lost(self) -> None:
        """Nothing: a leader of metastorage keeps no state of its own."""

    def _hold(self, invoke: Invoke) -> bool:
        return all(self._holds(condition) for condition in invoke.conditions)

    def _holds(self, condition: Condition) -> bool:
        held = self._keys.get(condition.key)
        if held is None:
            return condition.test == "absent"
        match condition.test:
            case "absent":
                return False
            case "present":
                return True
            case "value":
                return held.value == condition.value
            case "revision":
                return held.revision == condition.revision
            case "value<":
                return held.value < condition.value
            case "revision<":
                return held.revision < condition.revision

    def _do(self, operations: tuple[Operation, ...]) -> None:
        self.revision += 1
        for operation in operations:
            if operation.value is None:
                self._keys.pop(operation.key, None)
            else:
                self._keys[operation.key] = Versioned(operation.value, self.revision)
        change = Change(
            revision=self.revision,
            entries={operation.key: operation.value for operation in operations},
        )
        self._remember(change)
        self._notify(change)
        for watch in self._watches:
            watch.deliver(change)

    def _remember(self, change: Change) -> None:
        kept = {k: v for k, v in change.entries.items() if not k.startswith(WITHOUT_HISTORY)}
        if kept:
            self._history.append(Change(revision=change.revision, entries=kept))
        # Every replica applies the same commands, so every one compacts the same.
        while len(self._history) > self._max_history:
            reached("history of metastorage compacted")
            self.compacted = self._history.popleft().revision

    def _notify(self, change: Change) -> None:
        for prefix, observer in self._observers:
            seen = _about(prefix, change.entries)
            if seen:
                observer(Change(revision=change.revision, entries=seen))


class ObservedKeys:
    """The keys as an observer knows them: what it was told of must come to what ``store`` has."""

    def __init__(self, store: Metastorage) -> None:
        """To be made before anything of ``store`` is applied."""
        self._store = store
        self._keys: dict[str, bytes] = {}
        store.observe("", self._changed)

    def problem(self) -> str | None:
        """The first key of which observers know something else; ``None`` where there is none."""
        held = self._store.prefixed("")
        if len(held) == len(self._keys) and all(
            self._keys.get(key) == value.value for key, value in held.items()
        ):
            return None
        apart = {*held, *self._keys}
        wrong = min(k for k in apart if k not in held or self._keys.get(k) != held[k].value)
        return f"observers were not told what metastorage holds under {wrong!r}"

    def _changed(self, change: Change) -> None:
        for key, value in change.entries.items():
            if value is None:
                self._keys.pop(key, None)
            else:
                self._keys[key] = value


class Derived(Generic[T]):
    """A value that follows from the keys under one prefix, computed once for each change of them:
    for callers that ask every tick.
    """

    def __init__(self, store: Metastorage, prefix: str, compute: Callable[[View], T]) -> None:
        self._store, self._compute = store, compute
        self._value: T | None = None
        store.observe(prefix, self._changed)

    def __call__(self) -> T:
        """The value at the revision that is applied."""
        if self._value is None:
            self._value = self._compute(self._store)
        return self._value

    def _changed(self, change: Change) -> None:
        self._value = None


class SnapshotRestore:
    """A snapshot of metastorage being read: it is small, so all of it is done at the end."""

    def __init__(self, store: Metastorage) -> None:
        self._store = store
        self._chunks: list[bytes] = []

    def feed(self, chunk: bytes) -> None:
        """Take the next chunk."""
        self._chunks.append(chunk)

    def done(self) -> None:
        """The ``store`` takes over the state in the chunks."""
        self._store.become(self._chunks)


def _about(prefix: Prefix, entries: dict[str, bytes | None]) -> dict[str, bytes | None]:
    return {key: value for key, value in entries.items() if key.startswith(prefix)}
