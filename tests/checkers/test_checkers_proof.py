"""Who is proven to have committed: by who read it, over chains of unknown transactions."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from checkers.engine.arrays import FAIL, INFO, OK
from checkers.engine.transactions import NOBODY, OBSERVED, committed

LINKS = 200_000  # a round a link would take hours


def proven(types: list[int], pairs: list[tuple[int, int]]) -> list[bool]:
    rows = [{"writer": writer, "reader": reader} for writer, reader in pairs]
    told = {"lists.observed": pa.Table.from_pylist(rows, schema=OBSERVED)}
    return committed(np.array(types, dtype=np.int8), told).tolist()


def test_a_read_that_answered_proves_the_writer_and_a_chain_is_followed_to_its_end() -> None:
    types = [INFO, INFO, INFO, OK, INFO]

    assert proven(types, [(0, 1), (1, 2), (2, NOBODY)]) == [True, True, True, True, False]
    assert proven(types, [(0, 1), (1, 2)]) == [False, False, False, True, False]


def test_a_long_chain_takes_one_walk() -> None:
    chain = [(at, at + 1) for at in range(LINKS)]

    assert all(proven([INFO] * (LINKS + 1), [*chain, (LINKS, NOBODY)]))
    assert not any(proven([INFO] * (LINKS + 1), chain))


@given(
    st.lists(st.sampled_from([OK, FAIL, INFO]), min_size=1, max_size=8).flatmap(
        lambda types: st.tuples(
            st.just(types),
            st.lists(
                st.tuples(
                    st.integers(0, len(types) - 1), st.integers(NOBODY, len(types) - 1)
                ).filter(lambda pair: pair[0] != pair[1])
            ),
        )
    )
)
def test_it_is_the_least_set_that_holds_what_reads_say(
    case: tuple[list[int], list[tuple[int, int]]],
) -> None:
    types, pairs = case
    expected = {at for at, type_ in enumerate(types) if type_ == OK}
    for _ in types:
        expected |= {w for w, reader in pairs if reader == NOBODY or reader in expected}

    assert {at for at, sure in enumerate(proven(types, pairs)) if sure} == expected
