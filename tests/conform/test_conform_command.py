"""The command's last line and exit code: what it may be taken to have shown."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from cli.main import execute
from harness.exit_codes import EXIT_USAGE, Outcome

OF_ANOTHER = '[cluster]\nprovider = "sim"\n[system]\nname = "ignite3"\nreplicas = 3\n'
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


def test_a_plan_of_another_system_is_refused_and_one_without_any_is_taken(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    plan, runs = tmp_path / "plan.toml", tmp_path / "runs"
    words = ("conform", "reference", "--plan", str(plan), "--check", "options")
    command = (*words, "--runs-dir", str(runs))

    plan.write_text(OF_ANOTHER)
    refused = execute(command)
    said = capsys.readouterr().err
    plan.write_text(OF_ANOTHER.partition("[system]")[0])
    taken = execute(command)

    assert refused == EXIT_USAGE
    assert "system.name: expected SYSTEM, 'reference', or a plan without" in said
    assert f"{plan}: " in said
    assert "(got 'ignite3')" in said
    assert taken == 0


def test_a_simulation_says_why_it_can_not_run_a_store_of_programs(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    code = execute(("conform", "ignite3", "--provider", "sim", "--runs-dir", str(tmp_path)))

    said = " ".join(capsys.readouterr().err.split())
    assert code == EXIT_USAGE
    assert "'sim' can't run system 'ignite3', whose nodes are programs" in said
    assert "--provider process" in said
    assert list(tmp_path.iterdir()) == []
