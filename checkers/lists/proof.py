"""Who is proven to have committed: what an answer that never came would have said.

Nobody knows the fate of a crashed transaction, until a committed one reads what it wrote.
"""

from __future__ import annotations

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray
from scipy.sparse import csr_array
from scipy.sparse.csgraph import breadth_first_order

from checkers.columns import OK, Bools, Ints, ints
from checkers.kernel import Tables

NOBODY = -1
OBSERVED = pa.schema([("writer", pa.int64()), ("reader", pa.int64())])
"""Writers of unknown fate and the readers that saw an element of theirs. A reader that answered ok
is written as ``NOBODY``, and proves that the writer committed; one of unknown fate does so once it
is proven itself.
"""


def committed(type_: NDArray[np.int8], tables: Tables) -> Bools:
    """Whose reads count: what answered ok, or is proven by ``lists.observed``, where that is known.

    A transaction that failed at commit without saying so may have seen anything.
    """
    sure: Bools = type_ == OK
    if "lists.observed" not in tables:
        return sure
    writer, reader = (ints(tables["lists.observed"], name) for name in ("writer", "reader"))
    sure[writer[reader == NOBODY]] = True
    told = reader != NOBODY
    _spread(sure, writer[told], reader[told])
    return sure


def _spread(sure: Bools, writer: Ints, reader: Ints) -> None:
    """Let whoever is ``sure`` prove the writers that it read, these those that they read, and so
    on: a walk over the pairs, each once, however long the chains are.
    """
    if not len(reader):
        return
    named, place = np.unique(np.concatenate([writer, reader]), return_inverse=True)
    first = np.flatnonzero(sure[named])
    begin = np.full(len(first), len(named))  # a node more, from which the walk begins
    source = np.concatenate([place[len(writer) :], begin])
    target = np.concatenate([place[: len(writer)], first])
    shape = (len(named) + 1, len(named) + 1)
    steps = csr_array((np.ones(len(source), dtype=np.int8), (source, target)), shape=shape)
    reached = breadth_first_order(steps, len(named), return_predecessors=False)
    sure[named[reached[reached < len(named)]]] = True
