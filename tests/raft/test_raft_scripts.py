"""Every script's output is what it was when somebody last read it."""

from __future__ import annotations

from pathlib import Path

import pytest
from raft_script import RULE, SCRIPTS, played


@pytest.mark.parametrize("path", sorted(SCRIPTS.glob("*.txt")), ids=lambda path: path.stem)
def test_a_script_plays_as_written(path: Path) -> None:
    assert played(path.read_text()) == path.read_text()


def test_a_script_whose_output_differs_is_noticed() -> None:
    wrong = f"group 1\n{RULE}\nn1 follows\n"

    assert played(wrong) != wrong
