"""Where a balance parts from what was acknowledged: said only where nothing else explains it."""

from __future__ import annotations

from typing import Any

import pytest

from results.report.missed import MissedWrite, first_missed

KEY = 16


def history(
    *rows: tuple[str, int, int, int | None, int | None],
) -> tuple[list[Any], dict[int, Any]]:
    """Rows (type, invoked, completed, found, left) as steps on one account and their times."""
    steps, times = [], {}
    for txn, (type_, invoke, complete, found, left) in enumerate(rows):
        times[txn] = {"type": type_, "invoke_index": invoke, "complete_index": complete}
        steps.append({"txn": txn, "f": "add", "value": 1})
        steps.append({"txn": txn, "f": "r", "value": found})
        if left is not None:
            steps.append({"txn": txn, "f": "w", "value": left})
    return steps, times


FIRST = ("ok", 0, 1, 5, 7)


@pytest.mark.parametrize(
    ("rows", "missed"),
    [
        pytest.param([FIRST, ("ok", 2, 3, 7, None)], False, id="found"),
        pytest.param([FIRST, ("ok", 2, 3, 5, None)], True, id="missed"),
        pytest.param([FIRST, ("ok", 2, 3, None, None)], True, id="empty"),
        pytest.param([FIRST, ("fail", 2, 3, 5, None)], False, id="the reader failed"),
        pytest.param([("fail", 0, 1, 5, 7), ("ok", 2, 3, 5, None)], False, id="the writer failed"),
        pytest.param([("info", 0, 1, 5, 7), ("ok", 2, 3, 5, None)], False, id="nobody knows"),
        pytest.param([FIRST, ("info", 2, 3, 7, 9), ("ok", 4, 5, 9, None)], False, id="unknown"),
        pytest.param([FIRST, ("ok", 1, 9, 7, 8), ("ok", 2, 3, 8, None)], False, id="concurrent"),
        pytest.param([("ok", 0, 4, 5, 7), ("ok", 2, 3, 5, None)], False, id="not yet acknowledged"),
        pytest.param([FIRST, ("ok", 2, 3, 7, 8), ("ok", 4, 5, 7, None)], True, id="overwritten"),
    ],
)
def test_a_write_is_missed_where_nothing_explains_what_was_found(rows, missed) -> None:
    found = first_missed(KEY, *history(*rows))

    assert (found is not None) == missed


def test_what_an_unknown_transfer_added_may_be_in_any_later_value() -> None:
    """The driver records of it what it asked for, and not what it left."""
    steps, times = history(FIRST, ("ok", 4, 5, 3, None))
    begun = {"type": "info", "invoke_index": 2, "complete_index": 3}
    adds = {"txn": 9, "f": "add", "value": -4}

    assert first_missed(KEY, steps, times) is not None
    assert first_missed(KEY, [*steps, adds], {**times, 9: begun}) is None
    late = {**begun, "invoke_index": 6, "complete_index": 7}
    assert first_missed(KEY, [*steps, adds], {**times, 9: late}) is not None
    failed = {**begun, "type": "fail"}
    assert first_missed(KEY, [*steps, adds], {**times, 9: failed}) is not None


def test_a_read_that_ended_behind_an_unknown_transfer_is_passed_over_alone() -> None:
    """The next one began later and had ended before."""
    steps, times = history(FIRST, ("ok", 2, 9, 5, None), ("ok", 3, 4, 5, None))
    adds = {"txn": 9, "f": "add", "value": -4}
    begun = {"type": "info", "invoke_index": 6, "complete_index": 7}

    found = first_missed(KEY, [*steps, adds], {**times, 9: begun})

    assert found == MissedWrite(key=KEY, writer=0, left=7, reader=2, found=5)


def test_the_first_who_missed_it_is_named_or_the_one_asked_for() -> None:
    steps, times = history(FIRST, ("ok", 2, 3, 7, None), ("ok", 4, 5, 5, 4), ("ok", 8, 9, 5, None))

    first = first_missed(KEY, steps, times)

    assert first == MissedWrite(key=KEY, writer=0, left=7, reader=2, found=5)
    assert first_missed(KEY, steps, times, reader=1) is None
    asked = first_missed(KEY, steps, times, reader=3)
    assert asked == MissedWrite(key=KEY, writer=2, left=4, reader=3, found=5)


def test_an_account_with_too_many_steps_is_left_alone(monkeypatch) -> None:
    steps, times = history(FIRST, ("ok", 2, 3, 5, None))
    monkeypatch.setattr("results.report.missed.STEPS_MAX", len(steps) - 1)

    assert first_missed(KEY, steps, times) is None
