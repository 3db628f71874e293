"""Lines of logs in which a declared pattern is found: one dialect, RE2 (Arrow's), for whoever tries
a pattern and whoever looks with it. It matches in linear time, whatever the pattern is.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from harness.protocols.promise import LogPattern


def matches(lines: Sequence[bytes], pattern: LogPattern) -> list[int]:
    """The places of the lines in which ``pattern`` is found. Raises what ``unusable`` tells."""
    found = pc.match_substring_regex(pa.array(lines, pa.binary()), pattern=pattern.regex)
    places: list[int] = np.flatnonzero(np.asarray(found)).tolist()
    return places


def unusable(pattern: LogPattern) -> str:
    """Why nothing can be looked for with ``pattern``; empty where it can."""
    try:
        matches([b""], pattern)
    except (pa.ArrowInvalid, UnicodeEncodeError) as error:
        return str(error)
    return ""
