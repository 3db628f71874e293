"""What a checker is made of: kernels, and the exchange of rows between them.

A *kernel* is a pure function from Arrow tables to Arrow tables. Executors decide where it runs; the
exchange that it declares says which rows it must see together. Nothing is decided in an executor,
so the same chain gives the same verdict in process and on Spark.

=============== ==========================================================================
``Exchange``    what the kernel is given
=============== ==========================================================================
``EARLY``       the micro-operations of some keys, all of those keys; all transactions
``KEY``         the same, and what EARLY kernels gave, concatenated over the splits
``ONE_PLACE``   every table, and what earlier kernels gave, concatenated over the splits
=============== ==========================================================================

EARLY and KEY kernels must not let their result depend on which keys share a split, nor on the order
of rows. They see only ``KEY_COLUMNS`` of the transactions: every task reads them all.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Mapping
from typing import Any, Protocol

import attrs
import msgspec
import pyarrow as pa

from harness.outcome import Outcome
from harness.plan.plan import SEARCH_LIMIT
from harness.protocols.models import Meaning
from harness.protocols.promise import Declaration
from harness.protocols.verdict import Anomaly
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


class Setting(msgspec.Struct, frozen=True, kw_only=True):
    """What a judgement depends on beside the tables.

    ``model`` is what was asked for. ``planned`` says that a plan drove the history, which set out
    to have something of everything that was tried. ``state``, ``interrupted``, ``trouble`` and
    ``phases`` are the manifest's. ``missing`` names evidence that was sealed and is gone, which
    makes the run inconclusive; ``remarks`` are told and decide nothing. ``out_of_room`` says that
    the run's disk was full. ``aimed_kinds`` are the kinds of faults that were possible and take
    nodes, ``may_end`` those that nodes may not survive. ``bank`` is what was said of
    an imported bank.
    """

    model: str
    declaration: Declaration
    planned: bool = True
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
    aimed_kinds: tuple[str, ...] = ()
    may_end: tuple[str, ...] = ()
    bank: BankRules = BankRules()


class Exchange(enum.StrEnum):
    """Which rows a kernel must see together."""

    EARLY = "early"
    KEY = "key"
    ONE_PLACE = "one place"


@attrs.frozen(kw_only=True)
class Kernel:
    """A named pure function. Kernels of one name are one kernel: checkers share their results.

    ``needed`` says of the transactions whether an EARLY kernel has anything to look for: it costs
    another pass over the history.
    """

    name: str
    exchange: Exchange
    run: Callable[[Tables, Setting], Tables]
    needed: Callable[[pa.Table], bool] = lambda transactions: True


class Lookup(Protocol):
    """Fetches the few operations that a person will read."""

    def operations(self, txns: tuple[int, ...]) -> dict[int, dict[str, Any]]:
        """The operations ``txns`` by transaction: process, times, micro-operations."""


@attrs.frozen(kw_only=True)
class Part:
    """What one checker says.

    ``outcome`` is what it decides apart from anomalies (``unknown`` where it can't tell);
    anomalies decide through the model. ``meanings`` says what those mean whose names are the
    checker's own (``breaking``, ``OBSERVED``); one that it does not mention is a
    violation, whatever model was asked for. ``tables`` are written beside the verdict.
    """

    outcome: Outcome = Outcome.VALID
    anomalies: Mapping[str, Anomaly] = attrs.field(factory=dict)
    meanings: Mapping[str, Meaning] = attrs.field(factory=dict)
    reasons: tuple[str, ...] = ()
    statistics: Mapping[str, Any] = attrs.field(factory=dict)
    availability: Mapping[str, Any] = attrs.field(factory=dict)
    coverage: Mapping[str, Any] = attrs.field(factory=dict)
    controller: Mapping[str, Any] = attrs.field(factory=dict)
    node_logs: Mapping[str, Any] = attrs.field(factory=dict)
    tables: Tables = attrs.field(factory=dict)


class Checker(Protocol):
    """One promise, or one part of the report. Found by its entry point, named ``CHECKER``."""

    @property
    def name(self) -> str:
        """The name of its entry point, or of what it says."""

    @property
    def kernels(self) -> tuple[Kernel, ...]:
        """What it needs to have run."""

    def judge(self, tables: Tables, setting: Setting, lookup: Lookup) -> Part:
        """Say it, from the tables that the kernels gave; called once, in one place."""
