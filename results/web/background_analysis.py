"""Comparisons and trends for the web view: worked out beside its pages, and kept.

They take seconds over thousands of runs. A page waits for a moment; then it says that it is being
worked out, and looks again. What was worked out before runs were added is shown until it is anew.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING

import attrs

from harness.campaigns.cell_table import CAMPAIGNS
from harness.errors import FiredrillError, UsageError
from results.compare.run_selection import conditions_of, two_nights
from results.nights.summary import known_before
from results.store.index import Condition, Query, RunIndex
from results.store.run_entry import RunEntry
from results.store.store import is_run_id
from results.web.store_view import Catalog

if TYPE_CHECKING:
    from results.compare.comparison import Comparison
    from results.trend.trends import Trend

WAIT_S = 0.1  # of a page
KEPT = 32  # answers
AT_ONCE = 8  # that wait for their turn: one is worked out at a time
EXPECTED = "expected a run, a campaign, days (2026-11-01..2026-11-07) or conditions (mode=HA)"


@attrs.frozen(kw_only=True)
class Answer:
    """What was worked out of the runs that the index had at ``mark``; ``trouble`` says why it could
    not be.
    """

    value: object = None
    trouble: str = ""
    mark: str


@attrs.define
class Shelf:
    """Answers by what was asked for. For one thread, which asks; another works them out."""

    _worker: ThreadPoolExecutor = attrs.field(
        init=False, factory=lambda: ThreadPoolExecutor(1, thread_name_prefix="analysis")
    )
    _kept: OrderedDict[object, Answer] = attrs.field(init=False, factory=OrderedDict)
    _going: dict[object, Future[Answer]] = attrs.field(init=False, factory=dict)

    async def answer(self, key: object, mark: str, make: Callable[[], object]) -> Answer | None:
        """Return what ``make`` returns, or returned of earlier runs; ``None`` where it is not there
        yet; of more than ``AT_ONCE`` that are asked for, none is begun.
        """
        self._collect()
        known = self._kept.get(key)
        if known is not None and known.mark == mark:
            self._kept.move_to_end(key)
            return known
        if key not in self._going:
            if len(self._going) >= AT_ONCE:
                return known
            self._going[key] = self._worker.submit(_answered, mark, make)
        if known is not None:
            return known
        await asyncio.wait({asyncio.wrap_future(self._going[key])}, timeout=WAIT_S)
        self._collect()
        return self._kept.get(key)

    def _collect(self) -> None:
        for key, future in list(self._going.items()):
            if future.done():
                del self._going[key]
                self._kept[key] = future.result()
                self._kept.move_to_end(key)
        while len(self._kept) > KEPT:
            self._kept.popitem(last=False)


def _answered(mark: str, make: Callable[[], object]) -> Answer:
    try:
        return Answer(value=make(), mark=mark)
    except FiredrillError as error:
        return Answer(trouble=str(error), mark=mark)


def conditions_in(text: str) -> tuple[Condition, ...]:
    """Return what runs of both sides, or of a trend, have to meet. Raises ``UsageError``."""
    if not text.strip():
        return ()
    if found := conditions_of(text.strip()):
        return found
    raise UsageError(f"{text!r}: expected conditions, as in system=ignite3,mode=HA")


def entries_of(
    text: str, catalog: Catalog, index: RunIndex, conditions: Sequence[Condition]
) -> list[RunEntry]:
    """Return the runs of the store that ``text`` names, as ``results.compare.run_selection`` has
    it, but for paths: no page reads what lies outside of the store. Raises ``UsageError``.
    """
    text = text.strip()
    own: tuple[Condition, ...] = ()
    names: frozenset[str] | None = None
    if is_run_id(text):
        own = (Condition(name="run", operator="=", value=text),)
    elif (table := catalog.campaign(text)) is not None:
        names = frozenset(
            Path(row.run).name for row in table.cells if row.run and not row.quarantine
        )
    elif not (own := conditions_of(text)):
        raise UsageError(f"{text!r}: {EXPECTED}")
    found = index.entries(Query(conditions=(*own, *conditions)))
    kept = [each for each in found if names is None or each.run in names]
    if not kept:
        raise UsageError(f"{text!r}: no such runs in the store (any more)")
    return kept


def compared(
    catalog: Catalog, index: RunIndex, new: str, base: str, where: str, across: frozenset[str]
) -> Comparison:
    """Return the comparison that a page asks for. Raises ``UsageError``."""
    from results.compare.comparison import compare  # pandas takes a second to import
    from results.compare.effect_thresholds import Rules

    given = conditions_in(where)
    sides = [entries_of(text, catalog, index, given) for text in (new, base)]
    nights = two_nights(*sides)
    known = known_before(catalog.store.root / CAMPAIGNS, sides[0]) if nights else frozenset()
    rules = Rules(across=across, findings_suffice=nights, known=known)
    return compare(*sides, rules=rules)


def trend_of(index: RunIndex, where: str) -> Trend:
    """Return the trend that a page asks for. Raises ``UsageError``."""
    from results.trend.trends import trend

    entries = index.entries(Query(conditions=conditions_in(where)))
    if not entries:
        raise UsageError("no such runs in the store: there is no trend of nothing")
    return trend(entries)
