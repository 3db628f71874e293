"""Every script's output is what it was when somebody last read it."""

from __future__ import annotations

from pathlib import Path

import pytest
from zone_script import RULE, SCRIPTS, played


@pytest.mark.parametrize("path", sorted(SCRIPTS.glob("*.txt")), ids=lambda path: path.stem)
def test_a_zone_script_plays_as_written(path: Path) -> None:
    assert played(path.read_text()) == path.read_text()


def test_a_zone_script_whose_output_differs_is_noticed() -> None:
    wrong = f"0 start A\n{RULE}\n0 Z: A\n"

    assert played(wrong) != wrong
