"""The search box of the list of runs: words, and conditions as of ``firedrill runs --where``."""

from __future__ import annotations

from collections.abc import Sequence

import attrs

from harness.errors import UsageError
from results.store.index import FILTERS, OPERATORS, ORDERS, Condition, Query

PAGE_ROWS = 100
MAX_CHARS = 500  # of what is searched for
MAX_TERMS = 20
MAX_PAGE = 1_000_000


@attrs.frozen(kw_only=True)
class Search:
    """What is asked for: ``text`` as it was typed, ``complaint`` where a part of it is no condition
    (it is left out), ``page`` from 1.
    """

    text: str = ""
    conditions: tuple[Condition, ...] = ()
    words: tuple[str, ...] = ()
    order: str = "run"
    descending: bool = True
    page: int = 1
    complaint: str = ""

    @property
    def query(self) -> Query:
        """The runs of its page."""
        return Query(
            conditions=self.conditions,
            words=self.words,
            order=self.order,
            descending=self.descending,
            limit=PAGE_ROWS,
            offset=(self.page - 1) * PAGE_ROWS,
        )


def parse(text: str, order: str = "run", direction: str = "", page: str = "") -> Search:
    """Read what a browser sent; what makes no sense has its default."""
    shown = text[:MAX_CHARS]
    conditions, words, complaint = _terms(shown.split()[:MAX_TERMS])
    number = int(page) if page.isascii() and page.isdecimal() and len(page) < 8 else 1
    return Search(
        text=shown,
        conditions=tuple(conditions),
        words=tuple(words),
        order=order if order in ORDERS else "run",
        descending=direction != "up",
        page=min(max(number, 1), MAX_PAGE),
        complaint=complaint,
    )


def _terms(terms: Sequence[str]) -> tuple[list[Condition], list[str], str]:
    conditions, words, complaint = [], [], ""
    for term in terms:
        name = _name(term)
        if name not in FILTERS:
            words.append(term)
            continue
        try:
            conditions.append(Condition.parse(term))
        except UsageError as error:
            complaint = str(error)
    return conditions, words, complaint


def _name(term: str) -> str:
    """Return what stands before the first operator; empty where there is none."""
    places = [place for each in OPERATORS if (place := term.find(each)) > 0]
    return term[: min(places)] if places else ""
