"""The records of a history as they are written while a run goes on.

A run's truth is a sequence of these, appended to CRC-checked chunks (``harness.history.chunks``)
and sealed into the tables of ``harness.history.schema`` at the end. All times are ``RunClock``
nanoseconds. Those that every operation has hold no cycles, so the collector need not look
(``gc=False``).
"""

from __future__ import annotations

import enum
from typing import Literal

import msgspec

Value = int | tuple[int, ...] | None


class MicroOp(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """One step of a transaction: ``("append", key, element)``, ``("r", key, value)``, ``("w",
    ...)``.

    A read's value is ``None`` ("not known") in an invoke; in an ok completion ``None`` or ``()``
    means "empty".
    """

    f: str
    key: int
    value: Value = None


class OpType(enum.StrEnum):
    """How an operation ended. ``fail``: it certainly did not happen; ``info``: nobody knows."""

    OK = "ok"
    FAIL = "fail"
    INFO = "info"


Phase = Literal["connect", "begin", "step", "commit"]


class Invoke(msgspec.Struct, frozen=True, kw_only=True, gc=False, tag="invoke", tag_field="record"):
    """A transaction is about to be sent; on its way to the disk before the request is."""

    index: int
    process: int
    kind: str
    node: str
    attempt: int = 0
    intended_ns: int
    at_ns: int
    wall_ns: int
    ops: tuple[MicroOp, ...]


class Complete(
    msgspec.Struct, frozen=True, kw_only=True, gc=False, tag="complete", tag_field="record"
):
    """The outcome of the invoke with index ``invoke``. ``ops`` is what was observed."""

    index: int
    invoke: int
    process: int
    type: OpType
    at_ns: int
    ops: tuple[MicroOp, ...]
    error: str | None = None
    phase: Phase | None = None
    server_txn: str | None = None
    commit_ts: int | None = None


class Note(msgspec.Struct, frozen=True, kw_only=True, tag="note", tag_field="record"):
    """Something worth keeping that is no outcome: a late answer, a reconnect, a warning."""

    at_ns: int
    process: int | None = None
    text: str


class PhaseMark(msgspec.Struct, frozen=True, kw_only=True, tag="phase", tag_field="record"):
    """The run entered ``name``: set-up, drive, heal, quiesce, final-reads, collect, seal."""

    name: str
    at_ns: int


class FaultState(enum.StrEnum):
    """The life of a fault. Each state is recorded when it is entered."""

    PLANNED = "planned"
    INJECTING = "injecting"
    INJECTED = "injected"
    EFFECTIVE = "effective"
    HEALING = "healing"
    HEALED = "healed"
    SKIPPED = "skipped"
    UNPROVEN = "unproven"
    RECORDED = "recorded"  # in an imported history: what its nemesis did, and nobody proved


class FaultTransition(msgspec.Struct, frozen=True, kw_only=True, tag="fault", tag_field="record"):
    """Fault ``fault`` entered ``state``.

    ``effective`` and ``healed`` carry the proof in words; ``skipped`` and ``unproven`` the reason.
    ``roles`` names what the targets were when they were resolved: ``leader of partition 3``.
    """

    fault: int
    kind: str
    target: str
    state: FaultState
    at_ns: int
    nodes: tuple[str, ...] = ()
    roles: tuple[str, ...] = ()
    text: str = ""


class EventKind(enum.StrEnum):
    """What stores tell about themselves: a closed list, so that anomalies can be joined to it."""

    NODE_STARTED = "node-started"
    NODE_STOPPED = "node-stopped"
    NODE_EXITED = "node-exited"
    NODE_REFUSED = "node-refused"  # by others, until its program is another one
    START_DECISION = "start-decision"
    LEADER_ELECTED = "leader-elected"
    LEADER_LOST = "leader-lost"
    LEASE_GRANTED = "lease-granted"
    LEASE_LOST = "lease-lost"
    ASSIGNMENTS_CHANGED = "assignments-changed"
    CONFIGURATION_CHANGED = "configuration-changed"
    REBALANCE_STAGE = "rebalance-stage"
    RESET = "reset"
    SNAPSHOT_INSTALLED = "snapshot-installed"
    LOG_TRUNCATED = "log-truncated"
    TORN_TAIL = "torn-tail"
    RESTORED = "restored"
    STORAGE_ERROR = "storage-error"
    EVENTS_LOST = "events-lost"


class StoreEvent(msgspec.Struct, frozen=True, kw_only=True, tag="event", tag_field="record"):
    """Something the store did, in node wall time, mapped to the axis with its uncertainty.

    Mapped time joins and explains; it never proves an anomaly.
    """

    kind: EventKind
    node: str
    wall_ns: int
    boot: str
    at_ns: int
    uncertainty_ns: int
    partition: int | None = None
    term: int | None = None
    text: str = ""


class Heartbeat(msgspec.Struct, frozen=True, kw_only=True, tag="heartbeat", tag_field="record"):
    """Everything of this writer up to ``at_ns`` is in its stream. No table holds it: it bounds what
    a stream that was cut off may lack.
    """

    at_ns: int


Record = Invoke | Complete | Note | PhaseMark | FaultTransition | StoreEvent | Heartbeat
