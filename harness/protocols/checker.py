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
import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from harness.exit_codes import Outcome
from harness.protocols.consistency_models import Meaning
from harness.protocols.finding import RecordedOperation
from harness.protocols.setting import Setting
from harness.protocols.verdict import (
    Anomaly,
    Availability,
    ControllerLoad,
    Coverage,
    JudgedLimit,
    LogLines,
)
from harness.protocols.windows import Windows

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
