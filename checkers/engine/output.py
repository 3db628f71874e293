"""Results of kernels, split by split and stretch by stretch, and their merging: the same for every
executor.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextvars import ContextVar

import attrs
import pyarrow as pa

from checkers.engine.plugin_contract import tables_of
from harness.errors import BrokenPlugin, FiredrillError
from harness.plugins import where
from harness.protocols.checker import Exchange, Kernel, Setting, Tables
from harness.supervisor import memory_limit_bytes

# Splits in memory at a time, and the least history that is worth the second one.
THREADS = 2
LONG = 100_000

# A callback with the name of each kernel or checker before it runs: it tells which one a process
# died of.
ENTERING: ContextVar[Callable[[str], None]] = ContextVar("ENTERING", default=lambda _name: None)

# A callback with a sentence for the user, at once.
NOTE: ContextVar[Callable[[str], None]] = ContextVar("NOTE", default=lambda _text: None)

# A callback with a sentence about how far an executor is, some times a minute.
PROGRESS: ContextVar[Callable[[str], None]] = ContextVar("PROGRESS", default=lambda _text: None)


@attrs.frozen
class Joined(Mapping[str, pa.Table]):
    """Tables of ``first``, then of ``second``. Those that ``loading`` names are read when they are
    asked for, and kept: of a long history few checkers ask for all transactions.
    """

    first: Tables
    second: Tables
    loading: Mapping[str, Callable[[], pa.Table]] = attrs.field(factory=dict)

    def __getitem__(self, name: str) -> pa.Table:
        for tables in (self.first, self.second):
            if name in tables:
                return tables[name]
        return self.loading[name]()

    def __iter__(self) -> Iterator[str]:
        return iter(dict.fromkeys((*self.first, *self.second, *self.loading)))

    def __len__(self) -> int:
        return len({*self.first, *self.second, *self.loading})


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
        there = Joined(given, tables)
        try:
            given |= tables_of(kernel, kernel.run(there, setting), frozenset(there))
        # ``SystemExit`` as well: a broken plug-in must not end the analysis.
        except (Exception, SystemExit) as error:
            broken[kernel.name] = describe(error)
    return KernelOutput(tables=given, broken=broken)


def merge(parts: Iterable[KernelOutput]) -> KernelOutput:
    """Merge the results of all splits: tables concatenated, the least complaint per kernel.

    Least, so that it does not depend on how many splits there were. Raises ``BrokenPlugin`` for a
    table that has other columns in another split.
    """
    pieces: dict[str, list[pa.Table]] = {}
    broken: dict[str, str] = {}
    for part in parts:
        for name, table in part.tables.items():
            pieces.setdefault(name, []).append(table)
        for name, why in part.broken.items():
            broken[name] = min(why, broken.get(name, why))
    tables = {name: _concatenated(name, found) for name, found in pieces.items()}
    return KernelOutput(tables=tables, broken=broken)


def _concatenated(name: str, pieces: list[pa.Table]) -> pa.Table:
    try:
        return pa.concat_tables(pieces)
    except pa.ArrowInvalid as error:
        what = "expected the same columns whichever keys a kernel is given"
        raise BrokenPlugin(f"table {name!r} of a kernel: {what}: {error}") from error


def of(kernels: Iterable[Kernel], exchange: Exchange) -> tuple[Kernel, ...]:
    """Return those of ``kernels`` that declare ``exchange``, each name once, in order."""
    return tuple({k.name: k for k in kernels if k.exchange is exchange}.values())


def describe(error: BaseException) -> str:
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
