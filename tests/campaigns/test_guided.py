"""Guided search: what is kept, what is refused, and with which plans of a corpus it begins."""

from __future__ import annotations

from pathlib import Path

import attrs
import pytest
from msgspec.structs import replace

from cli.explore import Failures, Source, read_corpus, search, under
from harness.campaigns.cell import CellResult, result_of
from harness.campaigns.corpus import Corpus, Entry
from harness.campaigns.coverage_log import encode
from harness.campaigns.guided import Guided
from harness.errors import PlanError
from harness.exit_codes import Outcome
from harness.history.directory_locks import locked
from harness.history.run_directory import RunDirectory
from harness.plan.plan import Plan, load

SOURCE = Source(given={}, seed=3)


def reached(guided: Guided, outcome: Outcome, *features: str) -> CellResult:
    """The result of the next cell."""
    cell = guided.choose()
    assert cell is not None
    return result_of(cell, outcome, coverage=encode(features))


@pytest.mark.parametrize("first", [Outcome.UNKNOWN, Outcome.VIOLATION, Outcome.HARNESS_ERROR])
def test_a_plan_is_kept_for_what_only_runs_without_a_verdict_reached_before(first: Outcome) -> None:
    guided = search(SOURCE, Corpus(), runs=4)

    assert guided.take(reached(guided, first, "a")) == {"a"}
    assert guided.added == 0
    guided.take(reached(guided, Outcome.VALID, "a"))
    assert guided.added == 1
    guided.take(reached(guided, Outcome.VALID, "a"))
    assert guided.added == 1


def test_plans_that_cannot_be_drawn_are_counted_and_left_out() -> None:
    def fresh(number: int) -> Plan:
        if number % 2:
            raise PlanError("nemesis.hold_s", f"too long for plan {number}")
        return load(None, {"seed": number})

    guided = attrs.evolve(search(SOURCE, Corpus(), runs=4), fresh=fresh)
    seeds = [cell.plan.seed for cell in iter(guided.choose, None)]

    assert seeds == [0, 2, 4, 6]
    assert guided.refused == 3
    assert "too long for plan 5" in guided.refusal


def test_a_search_ends_where_no_plan_can_be_drawn() -> None:
    def fresh(number: int) -> Plan:
        raise PlanError("nemesis.hold_s", "too long")

    guided = attrs.evolve(search(SOURCE, Corpus(), runs=4), fresh=fresh)

    assert guided.choose() is None
    assert guided.refused > 1


def test_only_plans_of_the_workloads_asked_for_are_parents() -> None:
    plans = [load(None, {"seed": 1, "workload.name": name}) for name in ("bank", "list-append")]
    corpus = Corpus()
    for plan in plans:
        corpus.add(Entry(plan=plan, features=frozenset({plan.workload.name})))

    assert {entry.plan.workload.name for entry in under(corpus, {}, ["bank"])} == {"bank"}
    assert len(under(corpus, {})) == 2


def test_a_plan_that_cannot_have_the_settings_is_no_parent() -> None:
    plan = load(None, {"seed": 1})
    corpus = Corpus()
    corpus.add(Entry(plan=plan, features=frozenset("a")))

    assert under(corpus, {"system.bugs": ["no-fsync"]})
    assert not under(corpus, {"drive.no_such_key": 1})


def test_a_corpus_that_another_search_makes_smaller_is_read_whole(tmp_path: Path) -> None:
    corpus = Corpus(tmp_path)
    plan = load(None, {"seed": 1})
    corpus.add(Entry(plan=plan, features=frozenset("a")))
    corpus.add(Entry(plan=replace(plan, seed=2), features=frozenset("a"), cost_s=2.0))

    with locked(tmp_path):
        assert len(read_corpus(tmp_path).entries) == 2
    assert len(list(tmp_path.iterdir())) == 2
    assert len(read_corpus(tmp_path).entries) == 1


def test_a_failure_that_cannot_be_shrunk_ends_no_search(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    found = Failures(runs={frozenset({"lost-write"}): RunDirectory(tmp_path / "no-verdict")})

    assert found.shrink(1.0, 1)
    assert "no-verdict is not shrunk: " in capsys.readouterr().err
