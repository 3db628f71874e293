"""What ended without an answer, or with an error, is ``fail`` or ``info`` by one rule."""

from __future__ import annotations

import pytest

from harness.history.records import OpType, Phase
from harness.protocols.fail_or_info import Certainty, classify, error_table, unanswered

TABLE = error_table(
    {"BUSY": "another one holds the lock", "LOST": "the answer was lost"}, definite=("BUSY",)
)


@pytest.mark.parametrize("phase", ["connect", "begin", "step"])
def test_nothing_has_happened_before_commit_was_sent(phase: Phase) -> None:
    assert unanswered(phase) is OpType.FAIL
    assert {classify(phase, code, TABLE) for code in ("BUSY", "LOST", "UNHEARD-OF")} == {
        OpType.FAIL
    }


def test_after_commit_was_sent_only_a_definite_code_is_certain() -> None:
    assert unanswered("commit") is OpType.INFO
    found = {code: classify("commit", code, TABLE) for code in ("BUSY", "LOST", "UNHEARD-OF")}
    assert found == {"BUSY": OpType.FAIL, "LOST": OpType.INFO, "UNHEARD-OF": OpType.INFO}


def test_a_table_holds_each_code_under_its_name_with_its_reason() -> None:
    assert {code: (row.code, row.at_commit) for code, row in TABLE.items()} == {
        "BUSY": ("BUSY", Certainty.DEFINITE),
        "LOST": ("LOST", Certainty.INDEFINITE),
    }
    assert TABLE["LOST"].reason == "the answer was lost"
