"""The records of a history as they are written during a run.

The evidence of a run is a sequence of these, appended to CRC-checked chunks
(``harness.history.chunks``) and sealed into the tables of ``harness.history.schema`` at the end.
All times are ``RunClock`` nanoseconds. The records that every operation has hold no cycles, so the
garbage collector skips them (``gc=False``).
"""

from __future__ import annotations

import enum
from typing import Literal

import msgspec

Value = int | tuple[int, ...] | None


class MicroOp(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """One step of a transaction: ``("append", key, element)``, ``("r", key, value)``, ``("w",
    ...)``.

    A compare-and-set has ``(old, new)``, or ``(new,)`` where it expects a register without a write.
    A read's value is ``None`` ("not known") in an invoke; in an ok completion ``None`` or ``()``
    means "empty".
    """

    f: str
    key: int
    value: Value = None


INT64_MIN, INT64_MAX = -(1 << 63), (1 << 63) - 1
_INTEGERS = frozenset((int,))


def is_recordable(op: object) -> bool:
    """Whether a history can hold ``op``: a micro-operation whose key and values are integers of 64
    bits, under a name that is text.
    """
    # Of types that are exactly so: to Python a boolean is an integer, and no reader takes one.
    # Asked three times of every operation, so in the fewest steps.
    if type(op) is not MicroOp or type(op.f) is not str or type(key := op.key) is not int:
        return False
    value = op.value
    if not INT64_MIN <= key <= INT64_MAX:
        return False
    if value is None:
        return True
    if type(value) is int:
        return INT64_MIN <= value <= INT64_MAX
    if not isinstance(value, tuple) or not _INTEGERS.issuperset(map(type, value)):
        return False
    return not value or INT64_MIN <= min(value) <= max(value) <= INT64_MAX


class OpType(enum.StrEnum):
    """The outcome of an operation. ``fail``: it certainly had no effect; ``info``: its outcome is
    unknown.
    """

    OK = "ok"
    FAIL = "fail"
    INFO = "info"


Phase = Literal["connect", "begin", "step", "commit"]


class Invoke(msgspec.Struct, frozen=True, kw_only=True, gc=False, tag="invoke", tag_field="record"):
    """A transaction is about to be sent; the record is written before the request."""

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
    """The outcome of the invoke with index ``invoke``. ``ops`` holds the observed values."""

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
    """A remark that is no outcome: a late answer, a reconnect, a warning. ``fault`` is the number
    of the fault that it is about.
    """

    at_ns: int
    process: int | None = None
    fault: int | None = None
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
    # The moment or point that it waited for did not come, or not to a node that it could strike:
    # nothing was tried.
    MISSED = "missed"
    UNPROVEN = "unproven"
    RECORDED = "recorded"  # in an imported history: an act of its nemesis, without a proof


class FaultTransition(msgspec.Struct, frozen=True, kw_only=True, tag="fault", tag_field="record"):
    """Fault ``fault`` entered ``state``.

    ``effective`` and ``healed`` carry the proof in words; ``skipped``, ``missed`` and ``unproven``
    the reason.
    ``roles`` names the roles of the targets when they were resolved: ``leader of partition 3``.
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
    """The kinds of events that stores report, and the harness of their nodes: a closed list, so
    that anomalies can be joined to it.
    """

    NODE_STARTED = "node-started"
    NODE_STOPPED = "node-stopped"
    NODE_EXITED = "node-exited"
    NODE_REFUSED = "node-refused"  # by others, until its program is another one
    # What a node does with its copy and why, before the first comma; the particulars behind it.
    START_DECISION = "start-decision"
    LEADER_ELECTED = "leader-elected"
    LEADER_LOST = "leader-lost"
    LEASE_GRANTED = "lease-granted"
    LEASE_LOST = "lease-lost"
    ASSIGNMENTS_CHANGED = "assignments-changed"
    CATALOG_CHANGED = "catalog-changed"
    DATA_NODES_CHANGED = "data-nodes-changed"
    TOPOLOGY_CHANGED = "topology-changed"
    CONFIGURATION_CHANGED = "configuration-changed"
    REBALANCE_STAGE = "rebalance-stage"
    RESET = "reset"
    PARTITION_RESET = "partition-reset"  # with a ``PartitionReset``: all that a reset is
    SNAPSHOT_INSTALLED = "snapshot-installed"
    LOG_TRUNCATED = "log-truncated"
    TORN_TAIL = "torn-tail"
    RESET_ASKED = "reset-asked"  # by an operator: the reset of that generation
    RESTORED = "restored"
    STORAGE_ERROR = "storage-error"
    LOST_LOG = "lost-log"  # seen by another: the node has lost what it had acknowledged as durable
    EVENTS_LOST = "events-lost"
    # Of a procedure of the nemesis (``harness.protocols.procedures``), about the node of the step.
    STEP_BEGUN = "step-begun"
    STEP_DOWN = "step-down"
    STEP_UP = "step-up"
    STEP_OVER = "step-over"


class PartitionReset(msgspec.Struct, frozen=True, kw_only=True):
    """A forced reset of a partition: ``generation`` begins, whose log is that of
    ``previous_generation`` up to ``base_index``, an entry of ``base_term``, and goes on without
    regard to the majority before. Its entries begin at ``base_index`` + 1. ``survivors`` are the
    nodes whose copies it goes on with, the one that begins it first.
    """

    generation: int
    previous_generation: int
    base_index: int
    base_term: int
    survivors: tuple[str, ...]


class StartDecision(enum.StrEnum):
    """What a node does with its copy of a partition, where a ``START_DECISION`` tells it."""

    STARTS = "starts"
    ERASES = "erases"


class StoreEvent(msgspec.Struct, frozen=True, kw_only=True, tag="event", tag_field="record"):
    """An event of the store, in node wall time, mapped to the axis with its uncertainty.

    Mapped time joins and explains; it never proves an anomaly. ``generation`` of the partition,
    where the store tells one; a ``PARTITION_RESET`` has its ``reset``, of that generation, a
    ``START_DECISION`` its ``decision``. ``about``: the node that it speaks of, where that is not
    the one that tells it.
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
    generation: int | None = None
    reset: PartitionReset | None = None
    decision: StartDecision | None = None
    about: str | None = None


class Heartbeat(msgspec.Struct, frozen=True, kw_only=True, tag="heartbeat", tag_field="record"):
    """Every record of this writer up to ``at_ns`` is in its stream. No table holds it: it bounds
    the records that a stream may lack where it was cut off.
    """

    at_ns: int


Record = Invoke | Complete | Note | PhaseMark | FaultTransition | StoreEvent | Heartbeat
