"""The protocol of checkers: kernels, and the exchange of rows between them.

A *kernel* is a pure function from Arrow tables to Arrow tables. An executor decides where a kernel
runs; the kernel's declared exchange decides which rows it must see together. Executors decide
nothing else, so the same chain of kernels gives the same verdict in process and on Spark.

=============== ==========================================================================
``Exchange``    rows that the kernel receives
=============== ==========================================================================
``EARLY``       every micro-operation of some keys; all transactions
``KEY``         the same, and the output of EARLY kernels, concatenated over the splits
``STRETCH``     the transactions of a stretch of time, numbered anew from 0, and what KEY kernels
                gave of them (``Kernel.takes``), which is nowhere in one place
``ONE_PLACE``   every table, and the output of earlier kernels, concatenated over the splits
=============== ==========================================================================

The result of an EARLY or KEY kernel must not depend on which keys share a split, nor on the order
of rows. Such a kernel sees only ``KEY_COLUMNS`` of the transactions: all of them, or, where it
declares ``Kernel.numbers``, only those of its split, which the split itself tells.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Protocol

import attrs
import msgspec
import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from harness.exit_codes import Outcome
from harness.plan.plan import SEARCH_LIMIT, PromisePlan
from harness.protocols.consistency_models import Meaning
from harness.protocols.fault_kinds import FaultKind
from harness.protocols.faults import PlannedFault
from harness.protocols.finding import RecordedOperation
from harness.protocols.generations import Reset
from harness.protocols.promise import Declaration
from harness.protocols.verdict import (
    Anomaly,
    Availability,
    ControllerLoad,
    Coverage,
    JudgedLimit,
    LogLines,
)
from harness.protocols.windows import Windows
from harness.run.directory import BankRules

Tables = Mapping[str, pa.Table]
"""Tables by name: ``transactions``, ``micro_ops``, ``faults``, ``events`` and kernels' outputs."""

KEY_COLUMNS = (
    "txn",
    "process",
    "kind",
    "type",
    "error",
    "invoke_ns",
    "complete_ns",
)

EXAMPLES_MAX = 5
"""Anomalies of one name that a verdict shows in full; the count is of all of them."""


# Attempts of a run, by the labels that sentences of its trouble begin with.
QUIESCE, COLLECT_STATES = "quiesce", "collect states"
TO_REST = (QUIESCE, COLLECT_STATES)


class Setting(msgspec.Struct, frozen=True, kw_only=True):
    """The inputs of a judgement beside the tables.

    ``model`` is the consistency model that the user asked for. ``planned``: a plan drove the
    history, and it aimed to record something of every feature that it tried; ``rate_per_s`` is the
    rate of an open loop that it asked for, ``op_deadline_s`` the deadline of each of its operations
    (0 where no plan tells one). ``state``, ``interrupted``, ``trouble`` and ``phases`` are the
    manifest's. ``missing`` names evidence that is not what was sealed (gone, or added since), which
    makes the run inconclusive; ``remarks`` are reported and decide nothing. ``logs_unproven``: what
    the nodes' logs hold is no evidence. ``out_of_room``: the run's disk was full.
    ``fault_kinds`` are the kinds of faults that were possible, as the manifest
    records them. ``bank`` holds the rules given for an imported bank history, ``limits`` what the
    plan promises of the service, ``schedule`` its faults, by whose place they are numbered.
    ``resets`` are the forced resets among the events; ``judge`` sets them.
    """

    model: str
    declaration: Declaration
    planned: bool = True
    rate_per_s: float | None = None
    op_deadline_s: float = 0.0
    min_ok: int = 100
    search_limit: int = SEARCH_LIMIT
    state: str = "sealed"
    interrupted: bool = False
    trouble: tuple[str, ...] = ()
    missing: tuple[str, ...] = ()
    remarks: tuple[str, ...] = ()
    phases: tuple[tuple[str, int], ...] = ()
    cut_ns: int | None = None
    out_of_room: bool = False
    logs_unproven: bool = False
    fault_kinds: tuple[FaultKind, ...] = ()
    bank: BankRules = BankRules()
    limits: PromisePlan = PromisePlan()
    schedule: tuple[PlannedFault, ...] = ()
    resets: tuple[Reset, ...] = ()

    @property
    def restless(self) -> bool:
        """Whether the cluster may not have come to rest: what did not end is named in ``trouble``
        by the attempt that failed.
        """
        return any(text.startswith(f"{label}: ") for label in TO_REST for text in self.trouble)

    @property
    def may_lose(self) -> bool:
        """Whether one of ``resets`` may have cost acknowledged writes."""
        return any(map(self.permits, self.resets))

    def permits(self, reset: Reset) -> bool:
        """Whether ``reset`` may cost acknowledged writes, inside its envelope: by the mode, or
        since an operator has asked for it.
        """
        return self.declaration.may_lose or reset.asked


class Exchange(enum.StrEnum):
    """The rows that a kernel must see together."""

    EARLY = "early"
    KEY = "key"
    STRETCH = "stretch"
    ONE_PLACE = "one place"


@attrs.frozen(kw_only=True)
class Kernel:
    """A named pure function. Kernels with equal names are one kernel: checkers share its result.

    ``needed`` decides from the transactions whether an EARLY kernel has anything to search for;
    running one costs another pass over the history.

    ``numbers``, of an EARLY or KEY kernel, tells for each table that it gives the columns that hold
    numbers of transactions (or lists of them). With it the kernel is given the transactions of its
    split alone, numbered anew in the same order, and those columns are translated; without it a
    task has to read the transactions of the whole history.

    ``takes``, of a STRETCH kernel, names tables of KEY kernels with the columns by which a row
    is of a stretch: numbers of transactions that lie in it, all of them. Such tables stay where
    they were made, and no other kernel sees them. ``leads_back`` tells from those of a split
    which rows lead back in time: pairs of transactions, the later and the earlier of each. The
    history is cut only where none leads over, and a stretch in which none does is not given to
    the kernel. ``windows`` tells how a stretch is judged that is too long for one task.
    """

    name: str
    exchange: Exchange
    run: Callable[[Tables, Setting], Tables]
    needed: Callable[[pa.Table], bool] = lambda transactions: True
    numbers: Mapping[str, tuple[str, ...]] | None = None
    takes: Mapping[str, tuple[str, ...]] = attrs.field(factory=dict)
    leads_back: Callable[[Tables], tuple[NDArray[np.int64], NDArray[np.int64]]] | None = None
    windows: Windows | None = None


class Lookup(Protocol):
    """Fetches the few operations that an explanation shows in full, and transactions a part at a
    time.
    """

    def operations(self, txns: tuple[int, ...]) -> dict[int, RecordedOperation]:
        """Return the operations ``txns`` by transaction."""

    def pieces(self, columns: tuple[str, ...]) -> Iterator[pa.Table]:
        """Yield ``columns`` of the transactions in their order, a part in memory at a time and at
        least one: a table of them all grows with the history.
        """


@attrs.frozen(kw_only=True)
class Part:
    """The result of one checker.

    ``outcome`` is the checker's decision apart from its anomalies (``unknown`` where it can't
    tell); the anomalies decide through the model. ``meanings`` gives the meaning (``breaking``,
    ``OBSERVED``) of each anomaly whose name is the checker's own; an anomaly without an entry is a
    violation under every model. ``tables`` are written beside the verdict.
    """

    outcome: Outcome = Outcome.VALID
    anomalies: Mapping[str, Anomaly] = attrs.field(factory=dict)
    meanings: Mapping[str, Meaning] = attrs.field(factory=dict)
    reasons: tuple[str, ...] = ()
    statistics: Mapping[str, Any] = attrs.field(factory=dict)
    limits: tuple[JudgedLimit, ...] = ()
    availability: Availability | None = None
    coverage: Coverage | None = None
    controller: ControllerLoad | None = None
    node_logs: Mapping[str, dict[str, LogLines]] = attrs.field(factory=dict)
    tables: Tables = attrs.field(factory=dict)


class Checker(Protocol):
    """Checks one promise or computes one part of the report. Found by its entry point, named
    ``CHECKER``.
    """

    @property
    def name(self) -> str:
        """The name of the entry point, or of the part that the checker computes."""

    @property
    def kernels(self) -> tuple[Kernel, ...]:
        """The kernels whose outputs ``judge`` needs."""

    def judge(self, tables: Tables, setting: Setting, lookup: Lookup) -> Part:
        """Compute the part from the kernels' outputs; called once, in one process."""
