"""When a transaction counts as a conflict, and how transactions ended: the one definition for
displays, reports and limits.

A conflict is a transaction that gave way to another: the store's concurrency control aborted it,
and told so with an error code that the system declares for that (``Declaration.conflicts``). It
certainly did not happen (``fail``), and its client may try again: it is part of a healthy store's
work, and no failure of the service. The same code on a transaction whose outcome is open (``info``)
makes no conflict, and neither its type nor its code counts a conflict.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

import attrs
import msgspec
import pyarrow as pa
import pyarrow.compute as pc

from harness.history.records import OpType
from harness.protocols.promise import REFUSED, Declaration
from harness.text import inert

CODE_CHARS = 60  # of an error code in a line: the store may invent it


def conflict_codes(declaration: Declaration) -> tuple[str, ...]:
    """Return the declared codes; none where the system declares nothing."""
    declared = declaration.conflicts
    return () if isinstance(declared, msgspec.UnsetType) else declared


def is_conflict(declaration: Declaration, type: OpType, error: str | None) -> bool:
    """Tell whether a transaction that ended so was a conflict."""
    return type is OpType.FAIL and error in conflict_codes(declaration)


def conflicts(declaration: Declaration, transactions: pa.Table) -> pa.ChunkedArray:
    """Tell the same of each of ``transactions``, of which ``type`` and ``error`` are read; never
    null.
    """
    codes = pa.array(conflict_codes(declaration), pa.string())
    # ``is_in`` of a null is false.
    declared = pc.is_in(transactions["error"].cast(pa.string()), value_set=codes)
    failed = pc.equal(transactions["type"].cast(pa.string()), OpType.FAIL.value)
    return pc.and_(declared, failed)


@attrs.frozen(kw_only=True)
class Ends:
    """How many transactions ended in which way. ``errors`` counts the codes of those that failed,
    and of those with an unknown outcome.
    """

    ok: int
    conflicts: int
    fail: int
    info: int
    errors: Mapping[str, int]

    @property
    def counts(self) -> dict[str, int]:
        """The ways by their names, in the order in which they are shown."""
        return {
            OpType.OK.value: self.ok,
            REFUSED: self.conflicts,
            OpType.FAIL.value: self.fail,
            OpType.INFO.value: self.info,
        }

    @property
    def indefinite_share(self) -> float | None:
        """The share of those whose outcome is not known, without conflicts; ``None`` of none."""
        total = self.ok + self.fail + self.info
        return self.info / total if total else None

    def commonest(self, limit: int) -> dict[str, int]:
        """Return the ``limit`` commonest of ``errors``, those of one count by their names."""
        ordered = sorted(self.errors.items(), key=lambda item: (-item[1], item[0]))
        return dict(ordered[:limit])

    def commonest_text(self, limit: int) -> str:
        """Return the same in words, and how many more there are; empty where there is none."""
        shown = self.commonest(limit)
        text = ", ".join(f"{inert(code, CODE_CHARS)} {count:,}" for code, count in shown.items())
        rest = len(self.errors) - len(shown)
        return f"{text} and {rest:,} more" if rest > 0 else text

    def text(self, limit: int, of_ok: str = "") -> str:
        """Return all in a line: conflicts where there are any, and the ``limit`` commonest errors;
        ``of_ok`` is said of those that are ok.
        """
        told = [
            f"{count:,} {name}{f' ({of_ok})' if of_ok and name == OpType.OK else ''}"
            for name, count in self.counts.items()
            if count or name != REFUSED
        ]
        errors = self.commonest_text(limit)
        return f"{', '.join(told)} ({errors})" if errors else ", ".join(told)


def ends(declaration: Declaration, transactions: pa.Table) -> Ends:
    """Count ``transactions``, of which ``type`` and ``error`` are read."""
    gave_way = conflicts(declaration, transactions)
    others = transactions.select(["type", "error"]).filter(pc.invert(gave_way))
    types = _counted(others["type"])
    return Ends(
        ok=types[OpType.OK],
        conflicts=transactions.num_rows - others.num_rows,
        fail=types[OpType.FAIL],
        info=types[OpType.INFO],
        errors=_counted(others["error"].drop_null()),
    )


def _counted(column: pa.ChunkedArray) -> Counter[str]:
    """Count the values without making an object of each row."""
    found = pc.value_counts(column.cast(pa.string()))
    return Counter(dict(zip(*(found.field(at).to_pylist() for at in (0, 1)), strict=True)))
