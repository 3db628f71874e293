"""A restart forgets a vote only if it was given in the term that the node last told."""

from __future__ import annotations

from typing import Any

import pyarrow as pa

from checkers.promises.replicas import forgotten
from harness.run.state_log import STATES


def told(boot: str, at: int, term: int, vote: str | None, found: tuple[int, str | None]) -> Any:
    return {
        "asked_ns": at,
        "answered_ns": at,
        "partition": 0,
        "node": "n1",
        "life": "n1@a",
        "boot": boot,
        "group": "p0",
        "term": term,
        "vote": vote,
        "applied_index": 5,
        "recovered_term": found[0],
        "recovered_vote": found[1],
        "recovered_index": 5,
        "generation": 0,
    }


NOTHING = (0, None)


def sentences(*rows: Any) -> list[str]:
    columns = pa.schema([STATES.field(name) for name in rows[0]])
    return [text for _, text in forgotten(pa.Table.from_pylist(list(rows), schema=columns))]


def test_a_vote_of_an_earlier_term_may_be_gone() -> None:
    assert not sentences(
        told("b1", 1, 3, "n1", NOTHING),
        told("b1", 2, 4, None, NOTHING),
        told("b2", 3, 4, None, (4, None)),
    )


def test_a_vote_of_the_same_term_may_not() -> None:
    assert sentences(
        told("b1", 1, 3, None, NOTHING),
        told("b1", 2, 4, "n1", NOTHING),
        told("b2", 3, 4, None, (4, None)),
    ) == [
        "forgotten state: p0 on n1: in term 4 it had voted for n1, and after a restart for nobody"
    ]
