"""The command's last line and exit code: what it may be taken to have shown."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from harness.cli.main import execute
from harness.outcome import Outcome

WORDS = ("conform", "reference", "--provider", "sim", "--check", "lost answer")


@pytest.mark.parametrize("form", [(), ("--json",)])
def test_where_nothing_could_be_tried_nothing_conforms(
    form: tuple[str, ...], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    code = execute((*WORDS, *form, "--runs-dir", str(tmp_path)))

    said = capsys.readouterr().out
    assert code == Outcome.UNKNOWN.exit_code
    if form:
        assert [row["mark"] for row in json.loads(said)] == ["not tried"]
    else:
        assert "NOTHING TRIED: reference: 0 of 1 checks hold, 1 could not be tried" in said


def test_what_could_be_tried_and_holds_is_enough(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    code = execute((*WORDS, "--check", "options", "--runs-dir", str(tmp_path)))

    said = capsys.readouterr().out
    assert code == 0
    assert "CONFORMS: reference: 1 of 2 checks hold, 1 could not be tried" in said
