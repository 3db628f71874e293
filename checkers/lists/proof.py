"""Who is proven to have committed: what an answer that never came would have said.

Nobody knows the fate of a crashed transaction, until a committed one reads what it wrote.
"""

from __future__ import annotations

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from checkers.columns import OK, Bools, ints
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
    writer, reader = writer[reader != NOBODY], reader[reader != NOBODY]
    while True:
        news = sure[reader] & ~sure[writer]
        if not news.any():
            return sure
        sure[writer[news]] = True
