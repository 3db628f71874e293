"""The runs that one side of a comparison names: a run, a campaign, a store, conditions, dates."""

from __future__ import annotations

import re
from collections.abc import Sequence
from datetime import date, timedelta
from pathlib import Path

import attrs

from harness.campaigns.cell_table import CAMPAIGNS, TABLE, read_table
from harness.errors import UsageError
from results.store.index import OPERATORS, Condition, Query, opened
from results.store.run_entry import RunEntry
from results.store.run_tags import split_tag
from results.store.store import RunStore, is_run_id

_DAYS = re.compile(r"(\d{4}-\d\d-\d\d)?(\.\.)?(\d{4}-\d\d-\d\d)?")
_OPERATOR = "|".join(re.escape(each) for each in OPERATORS)
# A comma in a value is none between conditions.
_BETWEEN = re.compile(rf",(?=\s*[a-z_]+\s*(?:{_OPERATOR}))")
_CONDITION = re.compile(rf"[a-z_]+\s*(?:{_OPERATOR})")


@attrs.frozen(kw_only=True)
class Side:
    """The runs of one side, oldest first, and the store that they are in; ``text`` named them."""

    text: str
    store: RunStore
    entries: tuple[RunEntry, ...]


def side_of(text: str, store: RunStore, conditions: Sequence[Condition] = ()) -> Side:
    """Return the runs that ``text`` names, of those that meet ``conditions``:

    ``2026-11-01..2026-11-07``   begun on these days (UTC); either end may be left out
    ``2026-11-01``               begun on that day
    ``release=3.1.0,mode=HA``    that meet conditions, as ``runs --where`` has them
    a campaign's directory, or its name: the runs of its table
    a directory of runs:         all of them
    anything else                one run, as other commands name it

    Raises ``UsageError``; a side without any run is one.
    """
    if own := conditions_of(text):
        return _asked(text, store, (*own, *conditions))
    if (root := _campaign(text, store)) is not None:
        names = _runs_of(root)
        return _asked(text, RunStore(root.parent.parent), conditions, names)
    path = Path(text)
    if path.is_dir() and not is_run_id(path.resolve().name) and RunStore(path).runs():
        return _asked(text, RunStore(path), conditions)
    run = store.resolve(text)
    where = RunStore(run.root.resolve().parent)
    return _asked(text, where, conditions, frozenset({run.root.resolve().name}))


def two_nights(new: Sequence[RunEntry], base: Sequence[RunEntry]) -> bool:
    """Whether each side is a night of the same campaign (``firedrill nightly`` tags their runs):
    then findings and faults decide where figures can't, as they do in the night itself.
    """
    found = []
    for side in (new, base):
        named = [dict(map(split_tag, entry.tags)) for entry in side]
        found.append({(tags.get("campaign"), tags.get("night")) for tags in named})
    campaigns = {campaign for side in found for campaign, _ in side}
    each_one = all(len(side) == 1 and None not in next(iter(side)) for side in found)
    return each_one and len(campaigns) == 1


def conditions_of(text: str) -> tuple[Condition, ...]:
    """Return the conditions that days, or conditions with commas between, are; none where ``text``
    is neither. Raises ``UsageError``.
    """
    if days := _days(text):
        return days
    if not _CONDITION.match(text):
        return ()
    return tuple(Condition.parse(part) for part in _BETWEEN.split(text))


def _asked(
    text: str,
    store: RunStore,
    conditions: Sequence[Condition],
    names: frozenset[str] | None = None,
) -> Side:
    with opened(store) as index:
        found = index.entries(Query(conditions=tuple(conditions)))
    entries = tuple(each for each in found if names is None or each.run in names)
    if not entries:
        raise UsageError(f"{text!r}: no such runs in {store.root}")
    return Side(text=text, store=store, entries=entries)


def _days(text: str) -> tuple[Condition, ...]:
    match = _DAYS.fullmatch(text)
    if match is None or not (match[1] or match[3]):
        return ()
    try:
        first = date.fromisoformat(match[1]) if match[1] else None
        last = date.fromisoformat(match[3]) if match[3] else (None if match[2] else first)
    except ValueError as error:
        raise UsageError(f"{text!r}: expected days as in 2026-11-01..2026-11-07: {error}") from None
    found = []
    if first is not None:
        found.append(Condition(name="begun", operator=">=", value=first.isoformat()))
    if last is not None:
        after = last + timedelta(days=1)
        found.append(Condition(name="begun", operator="<", value=after.isoformat()))
    return tuple(found)


def _campaign(text: str, store: RunStore) -> Path | None:
    """Return the directory of the campaign that ``text`` names."""
    for path in (Path(text), store.root / CAMPAIGNS / text):
        if text and (path / TABLE).is_file():
            return path.resolve()
    return None


def _runs_of(root: Path) -> frozenset[str]:
    """Return the names of the runs in a campaign's table, as they lie in its store."""
    table = read_table(root / TABLE)
    return frozenset(Path(row.run).name for row in table.cells if row.run and not row.quarantine)
