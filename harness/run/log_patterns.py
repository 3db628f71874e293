"""Log lines that match a declared pattern, in one dialect: RE2 (Arrow's), both for validating a
pattern and for searching with it. RE2 matches in linear time for every pattern.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from harness.protocols.promise import LogPattern


def matches(lines: Sequence[bytes], pattern: LogPattern) -> list[int]:
    """The indices of the lines that match ``pattern``. Raises the exceptions that ``unusable``
    reports.
    """
    # As bytes: a node's log need not be UTF-8.
    found = pc.match_substring_regex(pa.array(lines, pa.binary()), pattern=pattern.regex)
    places: list[int] = np.flatnonzero(np.asarray(found)).tolist()
    return places


def unusable(pattern: LogPattern) -> str:
    """Why ``pattern`` can't be searched for; empty where it can."""
    try:
        # Arrow compiles a pattern only in order to search with it.
        matches([b""], pattern)
    except (pa.ArrowInvalid, UnicodeEncodeError) as error:
        return str(error)
    return ""
