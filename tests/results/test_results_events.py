"""Which of many events a page shows."""

from __future__ import annotations

import pyarrow as pa
import pytest

from harness.protocols.finding import Explanation, ResetCause
from results.report.event_context import moments_of_resets, rarest


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


@pytest.mark.parametrize("kind", ["reset", "partition-reset"])
def test_the_resets_that_a_loss_goes_back_to_are_shown_however_common_resets_are(
    kind: str,
) -> None:
    told = pa.table(
        {"kind": ["node-started", "lease", *[kind] * 6], "at_ns": [3, 4, 5, 6, 7, 8, 9, 10]}
    )
    taken, under = (
        ResetCause(node="n1", at_ns=at_ns, started_ns=started_ns, fault=None, text="reset")
        for at_ns, started_ns in ((9, None), (6, 3))
    )

    causes_ns = moments_of_resets(Explanation(text="gone", reset=taken, under_reset=under))

    assert causes_ns == {3, 6, 9}
    assert rarest(told, 4, causes_ns)["at_ns"].to_pylist() == [3, 4, 6, 9]
    assert rarest(told, 2)["at_ns"].to_pylist() == [3, 4]
    assert moments_of_resets(Explanation(text="a fault")) == set()
    assert moments_of_resets(None) == set()
