"""One cell of a campaign, the unit that is run, judged and recorded once; and its result."""

from __future__ import annotations

import enum
import hashlib
from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Any

import attrs
import msgspec

from harness.exit_codes import Outcome
from harness.plan.plan import Plan, dumps
from harness.protocols.consistency_models import OF_NODES, OF_SERVICE

CELL_LIMIT_S = 120.0  # of a core, for a simulated one; usual ones take a few seconds
WALL_TIMES = 10  # so many times as long may it wait for cores that others keep busy
SIMULATED_WALL_S = CELL_LIMIT_S * WALL_TIMES
MAX_REASONS = 8  # of one cell, in the ledger; the run directory has them all
MAX_REASON_CHARS = 500
# Anomalies that do not count in a search for a cause: that a node dies of a bug, or stands still,
# says nothing about its effect on data.
CRASHES = OF_NODES | OF_SERVICE


class Failure(enum.StrEnum):
    """How a cell came to no verdict: its wall time or its CPU time was over, its process died, it
    raised an error, or the code was changed meanwhile.
    """

    LATE = "late"
    CPU = "cpu"
    DIED = "died"
    RAISED = "raised"
    STALE = "stale"


@attrs.frozen(kw_only=True)
class Cell:
    """One plan, with its seed, to be run once.

    ``options`` are what the campaign does beside the plan (a mutant of the node, an oracle), by
    name; ``repetition`` tells apart runs of one plan that are meant to be repeated. ``limit_s`` is
    its wall time, ``limit_cpu_s`` its CPU time where that is not ``None``; neither is part of what
    it is.
    """

    plan: Plan
    options: Mapping[str, str] = attrs.field(factory=dict)
    repetition: int = 0
    limit_s: float = CELL_LIMIT_S
    limit_cpu_s: float | None = None

    @cached_property  # a plan's text takes longer to write than a pool to begin a cell
    def key(self) -> str:
        """The identity of the cell: equal keys are equal plans, options and repetitions."""
        text = dumps(self.plan)
        if self.options or self.repetition:
            # Not of a plain cell, whose key names its plan alone.
            text += f"\n# {sorted(self.options.items())} {self.repetition}"
        return key_of(text.encode())


def simulated_cell(
    plan: Plan, *, options: Mapping[str, str] | None = None, limit_s: float = CELL_LIMIT_S
) -> Cell:
    """Return the cell of a simulated ``plan``, which may take ``limit_s`` of a core: how long that
    is depends on what else the machine does.
    """
    wall_s = limit_s * WALL_TIMES
    return Cell(plan=plan, options=options or {}, limit_s=wall_s, limit_cpu_s=limit_s)


def key_of(text: bytes) -> str:
    """Return the key of the cell whose plan is written as ``text``, without options."""
    # 64 bits: of a million cells two are alike by chance in one of 37 million campaigns.
    return hashlib.sha256(text).hexdigest()[:16]


class CalmCounts(msgspec.Struct, frozen=True, kw_only=True):
    """Operations of the drive that were begun and ended while no fault was in force nor had been a
    moment before: those that succeeded, those that ended in a conflict, and all others.
    """

    ok: int = 0
    conflicts: int = 0
    failures: int = 0

    @property
    def operations(self) -> int:
        """All of them."""
        return self.ok + self.conflicts + self.failures


class RunStats(msgspec.Struct, frozen=True, kw_only=True):
    """Figures of a sealed run for the sums of a campaign.

    ``ok``, ``conflicts``, ``fail`` and ``info`` count transactions by how they ended: those that
    gave way to another (``harness.protocols.conflicts``) are no failures. ``changes`` counts
    primaries that changed during the drive, ``open_changes`` those of them under open transactions
    on their partition; ``tried`` are the kinds of its faults, ``hits`` counts those proven
    effective by kind and role of their target; ``markers`` says how often each marker of the nodes
    was reached; ``rebalances`` counts what rebalances came to, by kind; ``topology_changes``
    the revisions of the drive that changed the members of the cluster, or its zones; ``resets``
    the forced resets that were told, and ``lost_by_resets`` the writes that they lost inside their
    envelopes. ``full_restarts`` counts those that were proven, ``chained_restarts`` those of them
    that began while the chain of a partition had several links; ``start_decisions`` what nodes told
    that they did with their copies, by outcome.
    """

    ok: int = 0
    conflicts: int = 0
    fail: int = 0
    info: int = 0
    changes: int = 0
    open_changes: int = 0
    tried: tuple[str, ...] = ()
    hits: dict[str, dict[str, int]] = {}
    markers: dict[str, int] = {}
    rebalances: dict[str, int] = {}
    topology_changes: int = 0
    resets: int = 0
    lost_by_resets: int = 0
    full_restarts: int = 0
    chained_restarts: int = 0
    start_decisions: dict[str, int] = {}
    calm: CalmCounts = CalmCounts()
    simulated_s: float = 0.0

    @property
    def operations(self) -> int:
        """All that were begun."""
        return self.ok + self.conflicts + self.fail + self.info

    @property
    def ok_share(self) -> float:
        """The share that succeeded, 0 to 1, of the operations that gave way to no other."""
        served = self.operations - self.conflicts
        return self.ok / served if served else 0.0


class CellResult(msgspec.Struct, frozen=True, kw_only=True):
    """The result of one cell.

    ``key`` is the cell's; ``run`` is the directory, empty where it was not kept; ``digest`` stands
    for the recorded history and events: equal digests are equal bytes. ``anomalies`` are those that
    decided, by name. ``interrupted``: the user ended it. ``coverage`` is a map of what the run
    reached, in the form of the campaign that asked for it. ``cpu_s`` is the cell's CPU time,
    ``wall_s`` its wall time beside others. ``failure`` is set where it came to no verdict.
    """

    key: str
    seed: int
    name: str
    workload: str
    outcome: Outcome
    run: str = ""
    digest: str = ""
    anomalies: dict[str, int] = {}
    reasons: tuple[str, ...] = ()
    stats: RunStats = RunStats()
    interrupted: bool = False
    coverage: bytes = b""
    wall_s: float = 0.0
    cpu_s: float = 0.0
    failure: Failure | None = None

    @property
    def judged(self) -> bool:
        """Whether it came to a verdict."""
        return self.outcome is not Outcome.HARNESS_ERROR and not self.interrupted


def result_of(
    cell: Cell,
    outcome: Outcome,
    reasons: Sequence[str] = (),
    **fields: Any,  # noqa: ANN401 (the other fields of a result)
) -> CellResult:
    """Return the result of ``cell``, its ``reasons`` cut to what a ledger keeps."""
    return CellResult(
        key=cell.key,
        seed=cell.plan.seed,
        name=cell.plan.name,
        workload=cell.plan.workload.name,
        outcome=outcome,
        reasons=tuple(text[:MAX_REASON_CHARS] for text in reasons[:MAX_REASONS]),
        **fields,
    )


def failed(
    cell: Cell,
    reason: str,
    *,
    run: str = "",
    wall_s: float = 0.0,
    failure: Failure = Failure.RAISED,
) -> CellResult:
    """Return the result of a cell that came to no verdict."""
    figures: dict[str, Any] = {"run": run, "wall_s": round(wall_s, 3), "failure": failure}
    return result_of(cell, Outcome.HARNESS_ERROR, (reason,), **figures)
