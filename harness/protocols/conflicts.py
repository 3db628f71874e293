"""When a transaction counts as a conflict: the one definition for displays, reports and limits.

A conflict is a transaction that gave way to another: the store's concurrency control aborted it,
and told so with an error code that the system declares for that (``Declaration.conflicts``). It
certainly did not happen (``fail``), and its client may try again: it is part of a healthy store's
work, and no failure of the service. The same code on a transaction whose outcome is open (``info``)
makes no conflict.
"""

from __future__ import annotations

import msgspec
import pyarrow as pa
import pyarrow.compute as pc

from harness.history.records import OpType
from harness.protocols.promise import Declaration


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
