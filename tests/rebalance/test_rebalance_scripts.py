"""Every script's output is what it was when somebody last read it."""

from __future__ import annotations

from pathlib import Path

import pytest
from rebalance_script import RULE, SCRIPTS, played


@pytest.mark.parametrize("path", sorted(SCRIPTS.glob("*.txt")), ids=lambda path: path.stem)
def test_a_rebalance_script_plays_as_written(path: Path) -> None:
    assert played(path.read_text()) == path.read_text()


def test_a_rebalance_script_whose_output_differs_is_noticed() -> None:
    wrong = f"group base abc\n{RULE}\nstable abd\n"

    assert played(wrong) != wrong
