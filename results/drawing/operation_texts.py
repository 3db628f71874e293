"""Micro-operations as short texts, in the field's notation: ``append 7 31``, ``r 7 [1 2 31]``."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import Any

import attrs

from harness.history.parquet import read_key_names
from harness.history.run_directory import Manifest, RunDirectory

SHORT = 4  # micro-operations that are shown whole
STEPS_MAX = 16  # micro-operations of one transaction
ELEMENTS_MAX = 14  # of one list that was read, its end
NAME_CHARS = 40  # of a key that is no integer

Row = Mapping[str, Any]


@attrs.frozen
class Step:
    """A micro-operation; ``hot`` where its key is one of the anomaly's."""

    text: str
    hot: bool = False


@attrs.frozen(kw_only=True)
class MicroOpFormat:
    """The format of an example's micro-operations.

    ``keys`` are the anomaly's, ``parts`` the positions where lists of them contradict each other,
    ``names`` the names of keys that were no integers.
    """

    keys: Collection[int] = ()
    parts: Mapping[int, int] = attrs.Factory(dict)
    names: Mapping[int, str] = attrs.Factory(dict)

    def key(self, key: int) -> str:
        """Format a key as its history names it."""
        name = self.names.get(key)
        return str(key) if name is None else name[:NAME_CHARS]

    def step(self, step: Row) -> str:
        """Format one micro-operation."""
        return self._told(step, lambda elements, part: shortened(elements, part))

    def brief(self, step: Row, elements_max: int) -> str:
        """Format one micro-operation for a drawing: of a list only so many elements, its end."""
        return self._told(step, lambda elements, part: _brief(elements, part, elements_max))

    def _told(self, step: Row, listed: Callable[[Sequence[int], int | None], str]) -> str:
        f, value, elements = step["f"], step["value"], step["elements"]
        key = self.key(step["key"])
        if f == "cas" and elements is not None:
            found = ["nil"] if len(elements) == 1 else []  # it was never written
            return f"cas {key} {' → '.join([*found, *map(str, elements)])}"
        if elements is not None:
            return f"{f} {key} {listed(elements, self.parts.get(step['key']))}"
        if value is None:
            return f"{f} {key} ?" if f == "r" else f"{f} {key}"
        return f"{f} {key} {value}"

    def steps(self, ops: Sequence[Row]) -> Iterator[Step]:
        """Format the micro-operations; of a long transaction only those on the anomaly's keys."""
        hot = [step for step in ops if step["key"] in self.keys]
        shown = hot if hot and len(ops) > SHORT else ops
        yield from (Step(self.step(s), s["key"] in self.keys) for s in shown[:STEPS_MAX])
        rest = len(ops) - len(shown[:STEPS_MAX])
        if rest:
            yield Step(f"… and {rest} more")


def parting(rows: Sequence[Row]) -> dict[int, int]:
    """Return for each key of which ``rows`` read lists that contradict each other, the first
    position where they do: a reader must see that part of long lists.
    """
    longest: dict[int, Sequence[int]] = {}
    found: dict[int, int] = {}
    for step in (step for row in rows for step in row["ops"] if step["elements"] is not None):
        key, elements = step["key"], step["elements"]
        other = longest.setdefault(key, elements)
        pairs = enumerate(zip(elements, other, strict=False))
        differs = next((at for at, (a, b) in pairs if a != b), None)
        if differs is not None:
            found[key] = min(differs, found.get(key, differs))
        # A prefix contradicts nothing; the longer list shows more of what the next one may
        # contradict.
        elif len(elements) > len(other):
            longest[key] = elements
    return found


def shortened(elements: Sequence[int], part: int | None) -> str:
    """Format a list, or of a long one its end; around ``part`` where it parts from another."""
    start, shown, after = _window(elements, part, ELEMENTS_MAX)
    before = f"… {start} before, " if start else ""
    behind = f", … {after} after" if after else ""
    return f"[{before}{' '.join(map(str, shown))}{behind}]"


def _brief(elements: Sequence[int], part: int | None, limit: int) -> str:
    start, shown, after = _window(elements, part, limit)
    return f"[{'… ' if start else ''}{' '.join(map(str, shown))}{' …' if after else ''}]"


def _window(
    elements: Sequence[int], part: int | None, limit: int
) -> tuple[int, Sequence[int], int]:
    """Return the number of elements before the window, in it, and after it."""
    start = max(0, len(elements) - limit)
    if part is not None:
        start = min(start, max(0, part - limit // 2))
    shown = elements[start : start + limit]
    return start, shown, len(elements) - start - len(shown)


def key_names(run: RunDirectory, manifest: Manifest) -> dict[int, str]:
    """Return the names by key; empty where all keys were integers.

    Raises ``MalformedHistory`` where the file is not the one that was sealed.
    """
    rows = read_key_names(run, manifest.checksums).to_pylist()
    return {row["key"]: row["name"] for row in rows}
