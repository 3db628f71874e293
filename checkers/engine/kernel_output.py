"""Results of kernels, split by split and stretch by stretch, and their merging: the same for every
executor.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextvars import ContextVar

import attrs
import pyarrow as pa

from checkers.engine.arrays import Ints
from checkers.engine.plugin_contract import tables_of
from checkers.engine.split import named
from harness.errors import FiredrillError, InvariantError
from harness.plugins import where
from harness.protocols.checker import Exchange, Kernel, Tables
from harness.protocols.setting import Setting
from harness.supervisor import memory_limit_bytes

# A callback with the name of each kernel or checker before it runs: it tells which one a process
# died of. Empty once all have judged, since no checker is to blame for what comes then.
ENTERING: ContextVar[Callable[[str], None]] = ContextVar("ENTERING", default=lambda _name: None)

# Entered where several kernels run at the same time: which one a process died of can't be told.
SIDE_BY_SIDE = "kernels side by side"
# Whether kernels are to run one by one, so that it can.
ONE_BY_ONE: ContextVar[bool] = ContextVar("ONE_BY_ONE", default=False)

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
    """Tables by name, for each kernel that broke, the reason, and the kernel that gave each table:
    those that tasks add have none. ``starved``: one broke for lack of memory.
    """

    tables: Tables
    broken: dict[str, str] = attrs.field(factory=dict)
    makers: Mapping[str, str] = attrs.field(factory=dict)
    starved: bool = False


def apply(kernels: Sequence[Kernel], tables: Tables, setting: Setting) -> KernelOutput:
    """Run ``kernels`` one after another, each with the tables of those before it.

    A kernel that raises is broken and gives nothing; the others' results stand.
    """
    given: dict[str, pa.Table] = {}
    broken: dict[str, str] = {}
    makers: dict[str, str] = {}
    starved = False
    for kernel in kernels:
        ENTERING.get()(kernel.name)
        there = Joined(given, tables)
        try:
            own = tables_of(kernel, kernel.run(there, setting), frozenset(there))
        # ``SystemExit`` as well: a broken plug-in must not end the analysis.
        except (Exception, SystemExit) as error:
            broken[kernel.name] = describe(error)
            starved |= isinstance(error, MemoryError)
            continue
        given |= own
        makers |= dict.fromkeys(own, kernel.name)
    return KernelOutput(tables=given, broken=broken, makers=makers, starved=starved)


def renumbered(given: KernelOutput, kernels: Iterable[Kernel], number: Ints) -> KernelOutput:
    """Return ``given`` by ``kernels`` with the history's ``number`` of each transaction in the
    columns that they declare. A kernel that names transactions it was not given is broken.
    """
    declared = {kernel.name: kernel.numbers or {} for kernel in kernels}
    tables: dict[str, pa.Table] = {}
    broken = dict(given.broken)
    for name, table in given.tables.items():
        maker = given.makers[name]
        try:
            tables[name] = named(table, declared[maker].get(name, ()), number)
        except (IndexError, pa.ArrowInvalid):
            why = "expected numbers of transactions that the kernel was given"
            broken[maker] = f"kernel {maker!r}: table {name!r}: {why}"
    kept = {name: table for name, table in tables.items() if given.makers[name] not in broken}
    return attrs.evolve(given, tables=kept, broken=broken)


def merge(parts: Iterable[KernelOutput]) -> KernelOutput:
    """Merge the results of all splits: tables concatenated, the least complaint per kernel.

    Least, so that it does not depend on how many splits there were. A kernel that gives a table
    other columns in another split is broken, too. Of a broken kernel there are no tables.
    """
    pieces: dict[str, list[pa.Table]] = {}
    broken: dict[str, str] = {}
    makers: dict[str, str] = {}
    starved = False
    for part in parts:
        starved |= part.starved
        for name, table in part.tables.items():
            pieces.setdefault(name, []).append(table)
        for name, why in part.broken.items():
            broken[name] = min(why, broken.get(name, why))
        makers |= part.makers
    tables: dict[str, pa.Table] = {}
    for name, found in pieces.items():
        try:
            tables[name] = pa.concat_tables(found)
        except pa.ArrowInvalid as error:
            why = f"table {name!r} of a kernel: {_differing(found)}"
            if name not in makers:
                raise InvariantError(why) from error
            broken[makers[name]] = min(why, broken.get(makers[name], why))
    kept = {name: table for name, table in tables.items() if makers.get(name) not in broken}
    return KernelOutput(tables=kept, broken=broken, makers=makers, starved=starved)


def _differing(pieces: Sequence[pa.Table]) -> str:
    """Tell that columns differ, without the places of the pieces: an executor may cut a table."""
    first, *others = sorted({", ".join(map(_column, piece.schema)) for piece in pieces})
    told = f" and {others[0]:.200}" if others else ""
    what = "expected the same columns whichever keys a kernel is given"
    return f"{what} (got {first:.200}{told})"


def _column(field: pa.Field) -> str:
    return f"{field.name}: {field.type}" + ("" if field.nullable else " not null")


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
