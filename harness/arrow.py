"""pyarrow, without the half a second of importing pandas that its first conversion takes."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from importlib.abc import MetaPathFinder
from types import ModuleType


def without_pandas() -> None:
    """Have pyarrow decide, once and for all, not to look for pandas in what it converts. What asks
    for pandas by name imports it all the same. Idempotent.
    """
    import pyarrow as pa

    refusing = _Refusing("pandas")
    sys.meta_path.insert(0, refusing)
    try:
        pa.array([0])
    finally:
        sys.meta_path.remove(refusing)


class _Refusing(MetaPathFinder):
    """Finds no module of that name, and lets the other finders find none."""

    def __init__(self, name: str) -> None:
        self._name = name

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> None:
        """Raises ``ImportError`` for the name; ``None`` for any other."""
        if fullname == self._name:
            raise ImportError(f"{fullname} is not needed here")
