"""Which of many events a page shows."""

from __future__ import annotations

import pyarrow as pa

from results.cards import rarest


def events(kinds: str) -> pa.Table:
    return pa.table({"kind": list(kinds), "at_ns": list(range(len(kinds)))})


def shown(kinds: str, limit: int) -> list[int]:
    return list(rarest(events(kinds), limit)["at_ns"].to_pylist())


def test_all_are_shown_where_there_is_room() -> None:
    assert shown("abcab", 5) == [0, 1, 2, 3, 4]
    assert shown("", 5) == []


def test_what_is_rare_is_shown_before_what_is_common() -> None:
    assert shown("aaaaaabbaaac", 3) == [6, 7, 11]


def test_the_first_of_the_kind_that_does_not_fit_fill_up() -> None:
    assert shown("aaaaaabbaaac", 5) == [0, 1, 6, 7, 11]
    assert shown("aaaa", 2) == [0, 1]
