"""Which transactions count as conflicts: one definition, of one and of a table."""

from __future__ import annotations

import pyarrow as pa
import pytest

from cli.display import Tally
from harness.history.records import OpType
from harness.protocols.conflicts import conflict_codes, conflicts, ends, is_conflict
from harness.protocols.promise import Declaration

DECLARED = Declaration(system="paper", mode="SC", promises=(), conflicts=("LOCK", "TX-CONFLICT"))
SILENT = Declaration(system="paper", mode="SC", promises=())
ENDED = [
    (OpType.OK, None, False),
    (OpType.FAIL, "LOCK", True),
    (OpType.FAIL, "TX-CONFLICT", True),
    (OpType.FAIL, "NO-LEADER", False),
    (OpType.FAIL, None, False),
    (OpType.INFO, "LOCK", False),  # nobody knows whether it happened
    (OpType.INFO, "TIMEOUT", False),
]


@pytest.mark.parametrize("dictionary", [False, True])
def test_a_conflict_certainly_did_not_happen_and_has_a_declared_code(dictionary: bool) -> None:
    kinds, errors, expected = zip(*ENDED, strict=True)
    table = pa.table({"type": [kind.value for kind in kinds], "error": pa.array(errors)})
    if dictionary:
        table = pa.table({name: table[name].dictionary_encode() for name in table.column_names})

    assert conflicts(DECLARED, table).to_pylist() == list(expected)
    assert [is_conflict(DECLARED, kind, error) for kind, error, _ in ENDED] == list(expected)


def test_a_system_that_declares_no_codes_has_no_conflicts() -> None:
    table = pa.table({"type": ["fail"], "error": ["LOCK"]})

    assert conflict_codes(SILENT) == ()
    assert conflicts(SILENT, table).to_pylist() == [False]
    assert not is_conflict(SILENT, OpType.FAIL, "LOCK")


@pytest.mark.parametrize("dictionary", [False, True])
def test_a_display_counts_while_it_runs_what_the_table_tells_afterwards(dictionary: bool) -> None:
    rows = [*ENDED, (OpType.FAIL, "A", False), (OpType.INFO, "A", False), (OpType.OK, None, False)]
    kinds, errors, gave_way = zip(*rows, strict=True)
    table = pa.table({"type": [kind.value for kind in kinds], "error": pa.array(errors)})
    if dictionary:
        table = pa.table({name: table[name].dictionary_encode() for name in table.column_names})
    tally = Tally(1.0, lambda: 0.0)
    for kind, error, conflict in rows:
        tally.count(kind, error, conflict=conflict)

    found = ends(DECLARED, table)

    assert sum(gave_way) == found.conflicts
    assert found == tally.ended()
    assert found.text(2) == (
        "2 ok, 2 refused by conflict, 3 fail, 3 info (A 2, LOCK 1 and 2 more)"
    ), "of one count by name"
    assert found.text(9, "1 of them last").startswith("2 ok (1 of them last), 2 refused")
    assert ends(SILENT, table).text(1) == "2 ok, 5 fail, 3 info (A 2 and 4 more)"
