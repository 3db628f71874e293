"""Transactions as flat arrays, in which the inferences over single keys and over
all keys look up.
"""

from __future__ import annotations

import attrs
import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from checkers.engine.arrays import OK, TYPES, Bools, Ints, codes, ints
from harness.clock import NS_PER_S
from harness.protocols.checker import Tables
from harness.protocols.consistency_models import promises_sessions
from harness.protocols.setting import Setting

NOBODY = -1
# Pairs of a writer of unknown fate and a reader that saw one of its elements. The reader is -1
# where it answered ok, which proves that the writer committed; a reader of unknown fate does so
# once it is proven itself.
OBSERVED = pa.schema([("writer", pa.int64()), ("reader", pa.int64())])
OBSERVED_TABLE = "lists.observed"


def committed(type_: NDArray[np.int8], tables: Tables) -> Bools:
    """Return the transactions whose reads count: those that answered ok, or that ``lists.observed``
    proves committed, where that table is given.

    A transaction that failed at commit without reporting it may have seen anything.
    """
    sure: Bools = type_ == OK
    if OBSERVED_TABLE not in tables:
        return sure
    writer, reader = (ints(tables[OBSERVED_TABLE], name) for name in ("writer", "reader"))
    sure[writer[reader == NOBODY]] = True
    told = reader != NOBODY
    _spread(sure, writer[told], reader[told])
    return sure


def proven(observed: pa.Table) -> pa.Table:
    """Return rows of ``OBSERVED`` that prove the same transactions committed, each by one that
    answered ok: what is observed in one split may prove what was in another.
    """
    writer, reader = (ints(observed, name) for name in ("writer", "reader"))
    sure = np.zeros(int(max(writer.max(initial=-1), reader.max(initial=-1))) + 1, dtype=np.bool_)
    sure[writer[reader == NOBODY]] = True
    told = reader != NOBODY
    _spread(sure, writer[told], reader[told])
    known = np.flatnonzero(sure)
    return pa.Table.from_arrays(
        [pa.array(known), pa.array(np.full(len(known), NOBODY))], schema=OBSERVED
    )


def _spread(sure: Bools, writer: Ints, reader: Ints) -> None:
    """Propagate proof from the ``sure`` transactions to the writers that they read, and from these
    on: a walk over the pairs, each once, however long the chains are.
    """
    if not len(reader):
        return
    # Half a second to import, which most histories don't need.
    from scipy.sparse import csr_array
    from scipy.sparse.csgraph import breadth_first_order

    named, place = np.unique(np.concatenate([writer, reader]), return_inverse=True)
    first = np.flatnonzero(sure[named])
    begin = np.full(len(first), len(named))  # a node more, from which the walk begins
    source = np.concatenate([place[len(writer) :], begin])
    target = np.concatenate([place[: len(writer)], first])
    shape = (len(named) + 1, len(named) + 1)
    steps = csr_array((np.ones(len(source), dtype=np.int8), (source, target)), shape=shape)
    reached = breadth_first_order(steps, len(named), return_predecessors=False)
    sure[named[reached[reached < len(named)]]] = True


# The table that ``prepared`` gives. With it, ``transactions_of`` costs nothing.
PREPARED = "transactions.arrays"


@attrs.frozen(kw_only=True, eq=False)
class Transactions:
    """Row i is transaction i. ``start`` and ``finish`` are nanoseconds of the run (or an import's
    order of the records); ``moment`` is the earliest as of which it may read: ``start``, less the
    staleness that its kind may have. ``real_time`` says that the transaction's kind promises to see
    everything acknowledged before it, ``in_session`` that it promises to see what its process saw
    and did before (as each does that promises real time); ``committed`` says that it answered ok or
    is proven to have committed.
    """

    type: NDArray[np.int8]
    process: Ints
    start: Ints
    finish: Ints
    moment: Ints
    real_time: Bools
    in_session: Bools
    committed: Bools


def transactions_of(tables: Tables, setting: Setting) -> Transactions:
    """Return the transactions as arrays."""
    if PREPARED in tables:
        return _unpacked(tables[PREPARED])
    table = tables["transactions"]
    stale = [p for p in setting.declaration.promises if p.staleness_s is not None]
    # Those of sessions first, so that one code tells both.
    stale.sort(key=lambda promise: not promises_sessions(promise.model))
    sessions = sum(promises_sessions(promise.model) for promise in stale)
    kind = codes(table, "kind", tuple(promise.kind for promise in stale))
    past_ns = [round(float(promise.staleness_s or 0.0) * NS_PER_S) for promise in stale]
    type_, start = codes(table, "type", TYPES), ints(table, "invoke_ns")
    return Transactions(
        type=type_,
        process=ints(table, "process"),
        start=start,
        finish=ints(table, "complete_ns"),
        # The last place is that of the code -1.
        moment=start - np.asarray([*past_ns, 0], dtype=np.int64)[kind] if stale else start,
        # A kind without a staleness has no code here (-1): it promises real time.
        real_time=kind < 0,
        in_session=kind < sessions,
        committed=committed(type_, tables),
    )


def prepared(tables: Tables, setting: Setting) -> pa.Table:
    """Return ``transactions_of`` as a table of ``PREPARED``: computed once for many kernels and
    cells, since it goes over all transactions and a cell mentions few.
    """
    txns = transactions_of(tables, setting)
    columns = {
        # Arrow keeps booleans as bits, which each cell would have to unpack again.
        name: column.view(np.int8) if column.dtype == np.bool_ else column
        for name, column in attrs.asdict(txns, recurse=False).items()
    }
    return pa.table(columns)


def _unpacked(table: pa.Table) -> Transactions:
    columns = {name: table.column(name).chunk(0).to_numpy() for name in table.column_names}
    for name in ("real_time", "in_session", "committed"):
        columns[name] = columns[name].view(np.bool_)
    return Transactions(**columns)
