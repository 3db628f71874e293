"""Results of kernels, split by split, and their merging: the same for every executor."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from contextvars import ContextVar

import attrs
import pyarrow as pa

from checkers.engine.arrays import cells
from checkers.engine.source import Source
from checkers.engine.transactions import OBSERVED_TABLE, PREPARED, prepared, proven
from harness.errors import FiredrillError
from harness.plugins import where
from harness.protocols.checker import KEY_COLUMNS, Exchange, Kernel, Setting, Tables
from harness.supervisor import memory_limit_bytes

# A callback with the name of each kernel or checker before it runs: it tells which one a process
# died of.
ENTERING: ContextVar[Callable[[str], None]] = ContextVar("ENTERING", default=lambda _name: None)

# A callback with a sentence about how far an executor is, some times a minute.
PROGRESS: ContextVar[Callable[[str], None]] = ContextVar("PROGRESS", default=lambda _text: None)


@attrs.frozen(kw_only=True)
class KernelOutput:
    """Tables by name, and for each kernel that broke, the reason."""

    tables: Tables
    broken: dict[str, str] = attrs.field(factory=dict)


def apply(kernels: Sequence[Kernel], tables: Tables, setting: Setting) -> KernelOutput:
    """Run ``kernels`` one after another, each with the tables of those before it.

    A kernel that raises is broken and gives nothing; the others' results stand.
    """
    given: dict[str, pa.Table] = {}
    broken: dict[str, str] = {}
    for kernel in kernels:
        ENTERING.get()(kernel.name)
        try:
            given |= kernel.run({**tables, **given}, setting)
        except Exception as error:  # a broken plugin must not end the analysis
            broken[kernel.name] = describe(error)
    return KernelOutput(tables=given, broken=broken)


def merge(parts: Iterable[KernelOutput]) -> KernelOutput:
    """Merge the results of all splits: tables concatenated, the least complaint per kernel.

    Least, so that it does not depend on how many splits there were.
    """
    pieces: dict[str, list[pa.Table]] = {}
    broken: dict[str, str] = {}
    for part in parts:
        for name, table in part.tables.items():
            pieces.setdefault(name, []).append(table)
        for name, why in part.broken.items():
            broken[name] = min(why, broken.get(name, why))
    return KernelOutput(
        tables={name: pa.concat_tables(tables) for name, tables in pieces.items()}, broken=broken
    )


def on_split(
    kernels: Sequence[Kernel], source: Source, split: int, setting: Setting, early: Tables
) -> KernelOutput:
    """Run EARLY or KEY kernels over one split of ``source``, KEY ones with the tables of the EARLY
    ones: the work of a Spark task, and of the process executor.
    """
    # What a reset cut off in other partitions is told by numbers that a split may not have.
    alone = all(name == OBSERVED_TABLE or not table.num_rows for name, table in early.items())
    able = tuple(k for k in kernels if alone and k.numbers is not None)
    there = source.split(split)
    given = KernelOutput(tables={})
    if able:
        tables = {"transactions": there.transactions, **early, **there.early(early)}
        local = _on_cells(able, tables, there.micro_ops, setting)
        columns = {name: columns for k in able for name, columns in (k.numbers or {}).items()}
        # The words of an error may name transactions, so those that broke break again below.
        given = KernelOutput(tables=there.named(local.tables, columns))
        able = tuple(k for k in able if k.name not in local.broken)
    rest = [k for k in kernels if k not in able]
    if not rest:
        return given
    # Only what a Spark task reads: a kernel must not find more in process than there.
    tables = {"transactions": source.transactions.select(KEY_COLUMNS), **early}
    at = there.micro_ops.column_names.index("txn")
    steps = there.micro_ops.set_column(
        at, "txn", pa.array(there.number).take(there.micro_ops["txn"])
    )
    whole = _on_cells(rest, tables, steps, setting)
    return KernelOutput(tables={**given.tables, **whole.tables}, broken=whole.broken)


def _on_cells(
    kernels: Sequence[Kernel], tables: Tables, micro_ops: pa.Table, setting: Setting
) -> KernelOutput:
    tables = {**tables, PREPARED: prepared(tables, setting)}
    return merge(
        apply(kernels, {**tables, "micro_ops": cell}, setting) for cell in cells(micro_ops)
    )


def on_all_splits(
    kernels: Iterable[Kernel],
    source: Source,
    over_splits: Callable[[tuple[Kernel, ...], Tables], KernelOutput],
) -> KernelOutput:
    """Run the EARLY and then the KEY kernels, by an executor's ``over_splits(kernels, early)``."""
    kernels = tuple(kernels)
    first = [k for k in of(kernels, Exchange.EARLY) if k.needed(source.transactions)]
    early = over_splits(tuple(first), {}) if first else KernelOutput(tables={})
    known = dict(early.tables)
    if OBSERVED_TABLE in known:
        known[OBSERVED_TABLE] = proven(known[OBSERVED_TABLE])
    given = over_splits(of(kernels, Exchange.KEY), known)
    return KernelOutput(tables={**known, **given.tables}, broken=early.broken | given.broken)


def of(kernels: Iterable[Kernel], exchange: Exchange) -> tuple[Kernel, ...]:
    """Return those of ``kernels`` that declare ``exchange``, each name once, in order."""
    return tuple({k.name: k for k in kernels if k.exchange is exchange}.values())


def describe(error: Exception) -> str:
    """Describe an exception as a reason: with class, file and line, unless it is a sentence of this
    package's.
    """
    if isinstance(error, FiredrillError):
        return str(error)
    if isinstance(error, MemoryError):
        limit = memory_limit_bytes()
        bound = "" if limit is None else f" than the {limit >> 20} MiB allowed"
        return f"it needs more memory{bound}"
    return f"{type(error).__name__}: {error} ({where(error)})"


def run_by_key(kernels: Iterable[Kernel], source: Source, setting: Setting) -> KernelOutput:
    """Run the EARLY and KEY kernels over every split of ``source``, one in memory at a time."""

    def over_splits(chain: tuple[Kernel, ...], early: Tables) -> KernelOutput:
        every = range(source.splits)
        return merge(on_split(chain, source, split, setting, early) for split in every)

    return on_all_splits(kernels, source, over_splits)
