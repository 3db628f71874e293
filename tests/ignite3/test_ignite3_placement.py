"""Keys are placed as the release places them: its own HashCalculator was asked for these."""

from __future__ import annotations

import pytest

from clusters.ignite3 import system
from clusters.ignite3.partition_hash import partition_of

OF_8_AND_25 = {
    0: (3, 15),
    1: (7, 5),
    2: (4, 2),
    3: (1, 4),
    39: (2, 4),
    1000: (7, 9),
    123456789012: (3, 24),
    -1: (3, 22),
    -5: (6, 13),
    2**63 - 1: (5, 24),
    -(2**63): (6, 4),
}


@pytest.mark.parametrize("key", OF_8_AND_25)
def test_a_key_is_placed_where_the_release_places_it(key: int) -> None:
    assert (partition_of(key, 8), partition_of(key, 25)) == OF_8_AND_25[key]


def test_the_system_places_keys_among_the_partitions_of_its_plan() -> None:
    built = system.build({"partitions": 25}, ("n1", "n2", "n3"), 1)

    assert [built.partition_of(key) for key in (0, 1, 2, 3)] == [15, 5, 2, 4]
