"""Which drill a mutant is tried in next, and what the results say of it."""

from __future__ import annotations

import attrs
import msgspec
import pytest

from harness.campaigns.cell import Cell, CellResult, Failure, failed, result_of
from harness.exit_codes import Outcome
from harness.mutation.loading import MUTANT
from harness.mutation.rules import Mutant, mutants_of
from harness.mutation.suites import Suite
from harness.mutation.trials import (
    Drill,
    Fate,
    MutantResult,
    Trials,
    counts,
    fate_of,
    score,
)
from harness.plan.plan import Plan

SOURCE = "def f(a):\n    return a < 1\n\ndef g(a):\n    return a < 1\n"
MUTANTS = [mutant for mutant in mutants_of("m", SOURCE) if mutant.rule == "bound-shifted"]
CELL = Cell(plan=msgspec.convert({"seed": 1}, Plan))


def drill(name: str, **more: object) -> Drill:
    plan = msgspec.convert({"seed": 1, "name": name}, Plan)
    return Drill(name=name, plan=plan, **({"digest": "sound", "cost_s": 1.0} | more))  # type: ignore[arg-type]


def trials(mutants: list[Mutant], drills: list[Drill], **more: object) -> Trials:
    return Trials(mutants, drills, **({"abreast": 1, "limit_cpu_s": 45.0} | more))  # type: ignore[arg-type]


def valid(cell: Cell, **more: object) -> CellResult:
    return result_of(cell, Outcome.VALID, **({"digest": "sound", "cpu_s": 1.0} | more))


def violation(cell: Cell, *names: str) -> CellResult:
    anomalies = dict.fromkeys(names or ("lost-write",), 1)
    return result_of(cell, Outcome.VIOLATION, anomalies=anomalies, digest="other", cpu_s=1.0)


def chosen(tried: Trials) -> Cell:
    cell = tried.choose()
    assert cell is not None
    return cell


@pytest.mark.parametrize(
    ("result", "fate"),
    [
        (violation(CELL), Fate.VERDICT),
        (failed(CELL, "it died", failure=Failure.DIED), Fate.CRASH),
        (failed(CELL, "HarnessError: no leader"), Fate.CRASH),
        (result_of(CELL, Outcome.HARNESS_ERROR), Fate.CRASH),
        (failed(CELL, "no end", failure=Failure.CPU), Fate.HANG),
        (failed(CELL, "the machine was busy", failure=Failure.LATE), None),
        (failed(CELL, "other code", failure=Failure.STALE), None),
        (valid(CELL), None),
        (result_of(CELL, Outcome.UNKNOWN), None),
    ],
)
def test_what_kills_and_what_does_not(result: CellResult, fate: Fate | None) -> None:
    assert fate_of(result) is fate


def test_a_dead_cell_counts_in_the_ledger_and_one_that_was_late_does_not() -> None:
    assert counts(failed(CELL, "it died", failure=Failure.DIED))
    assert counts(failed(CELL, "no end", failure=Failure.CPU))
    assert not counts(failed(CELL, "the machine was busy", failure=Failure.LATE))
    assert not counts(failed(CELL, "other code", failure=Failure.STALE))


def test_a_mutant_is_tried_until_a_drill_kills_it() -> None:
    tried = trials(MUTANTS[:1], [drill("a"), drill("b"), drill("c")])
    first = chosen(tried)
    assert tried.choose() is None  # one at a time
    assert tried.take(valid(first)) is None
    second = chosen(tried)
    found = tried.take(violation(second))

    assert [first.plan.name, second.plan.name] == ["a", "b"]
    assert first.options == {MUTANT: MUTANTS[0].key}
    assert found == MutantResult(
        key=MUTANTS[0].key,
        fate=Fate.VERDICT,
        drill="b",
        anomalies=("lost-write",),
        tried=2,
        unlike=1,
        cpu_s=2.0,
    )
    assert tried.choose() is None
    assert tried.results == [found]


def test_a_mutant_that_no_drill_kills_survives_with_what_it_showed() -> None:
    tried = trials(MUTANTS[:1], [drill("a"), drill("b")])
    tried.take(valid(chosen(tried), digest="other"))
    found = tried.take(result_of(chosen(tried), Outcome.UNKNOWN, digest="sound"))
    assert found is None
    assert tried.choose() is None

    (survivor,) = tried.results
    assert survivor.fate is Fate.SURVIVED
    assert (survivor.tried, survivor.unlike, survivor.unknown) == (2, 1, 1)


def test_the_drill_that_executes_the_statement_most_comes_first() -> None:
    often = drill("often", lines={"m": {2: 100, 5: 1}})
    seldom = drill("seldom", lines={"m": {2: 3, 5: 40}})
    tried = trials(MUTANTS, [seldom, often], abreast=2)

    assert [chosen(tried).plan.name, chosen(tried).plan.name] == ["often", "seldom"]


def test_kills_in_the_same_module_count_more_than_kills_elsewhere() -> None:
    (elsewhere,) = [m for m in mutants_of("other", SOURCE) if m.rule == "bound-shifted"][:1]
    tried = trials([*MUTANTS, elsewhere], [drill("a"), drill("b")])
    tried.take(valid(chosen(tried)))  # in a
    tried.take(violation(chosen(tried)))  # in b
    assert chosen(tried).plan.name == "b"

    by_module = trials([elsewhere, *MUTANTS], [drill("a"), drill("b")])
    by_module.take(violation(chosen(by_module)))
    by_module.take(valid(chosen(by_module)))
    by_module.take(violation(chosen(by_module)))  # in b
    assert chosen(by_module).plan.name == "b"  # though a has killed as many of all


def test_only_drills_that_come_there_are_tried() -> None:
    in_f, in_g = MUTANTS
    tried = trials(
        [in_f, in_g], [drill("g", lines={"m": {5: 1}}), drill("no", lines={})], abreast=2
    )
    cell = chosen(tried)
    assert cell.options[MUTANT] == in_g.key
    tried.take(violation(cell))

    assert [(each.key, each.fate) for each in tried.results] == [
        (in_f.key, Fate.UNREACHED),
        (in_g.key, Fate.VERDICT),
    ]


def test_a_drill_that_kills_more_for_its_time_comes_first() -> None:
    tried = trials(MUTANTS, [drill("dear", cost_s=9.0), drill("dull"), drill("good")])
    first = chosen(tried)
    tried.take(valid(first))
    second = chosen(tried)
    tried.take(violation(second))

    assert [first.plan.name, second.plan.name] == ["dull", "good"]
    assert chosen(tried).plan.name == "good"
    assert tried.kills() == {"good": (1, 1), "dear": (0, 0), "dull": (0, 1)}


def test_no_drill_is_begun_that_would_take_too_long() -> None:
    tried = trials(MUTANTS[:1], [drill("a"), drill("b", cost_s=3.0)], limit_cpu_s=4.0)
    first = chosen(tried)
    assert first.limit_cpu_s == 4.0
    tried.take(valid(first, cpu_s=1.5))

    assert tried.choose() is None
    assert tried.results[0].fate is Fate.SURVIVED
    assert tried.results[0].tried == 1


def test_a_drill_that_is_cut_short_by_the_end_of_its_mutants_time_is_no_hang() -> None:
    for limit_s, fate in ((20.0, Fate.HANG), (12.0, Fate.SURVIVED)):
        tried = trials(MUTANTS[:1], [drill("a")], limit_cpu_s=limit_s)
        cell = chosen(tried)
        tried.take(failed(cell, "no end", failure=Failure.CPU))
        tried.choose()
        assert tried.results[0].fate is fate


def test_what_takes_long_on_the_sound_store_may_take_longer() -> None:
    assert chosen(trials(MUTANTS[:1], [drill("a")])).limit_cpu_s == 15.0
    assert chosen(trials(MUTANTS[:1], [drill("a", cost_s=6.0)])).limit_cpu_s == 30.0


def test_a_kill_by_the_exit_of_a_node_alone_is_told_apart() -> None:
    for names, only in ((("node-exit", "panic"), True), (("node-exit", "lost-write"), False)):
        tried = trials(MUTANTS[:1], [drill("a")])
        found = tried.take(violation(chosen(tried), *names))
        assert found is not None
        assert found.exit_only is only


def test_the_score_leaves_out_reviewed_survivors_only() -> None:
    fates = [Fate.VERDICT, Fate.CRASH, Fate.HANG, Fate.SURVIVED, Fate.UNREACHED, Fate.EQUIVALENT]
    results = [MutantResult(key=fate.value, fate=fate) for fate in fates]
    reviewed = {Fate.EQUIVALENT.value: "", Fate.UNREACHED.value: "", Fate.CRASH.value: ""}

    assert score(results, {}) == (3, 6)
    assert score(results, reviewed) == (3, 4)


SUITE = drill("tests", suite=Suite(packages=("m",), paths=()), options={"tests": "some"})


def test_tests_come_behind_all_drills_and_count_apart() -> None:
    tried = trials(MUTANTS[:1], [SUITE, drill("a"), drill("b")])
    for _ in range(2):
        cell = chosen(tried)
        assert "tests" not in cell.options
        assert tried.take(valid(cell, digest="other")) is None
    cell = chosen(tried)
    assert cell.options == {MUTANT: MUTANTS[0].key, "tests": "some"}

    found = tried.take(result_of(cell, Outcome.VIOLATION, ["test_f"], cpu_s=1.0))

    assert found is not None
    assert (found.fate, found.drill, found.reason) == (Fate.TESTS, "tests", "test_f")
    assert (found.tried, found.unlike) == (2, 2)
    assert found.fate.killed


def test_a_test_that_hangs_kills_and_tests_that_pass_do_not() -> None:
    for failure in (Failure.CPU, Failure.LATE, None):
        tried = trials(MUTANTS[:1], [SUITE])
        cell = chosen(tried)
        tried.take(valid(cell) if failure is None else failed(cell, "no end", failure=failure))
        assert tried.choose() is None
        (found,) = tried.results
        assert found.fate is (Fate.SURVIVED if failure is None else Fate.TESTS)
        assert found.tests == ("passed" if failure is None else "")
        assert found.tried == 0


def test_tests_of_another_package_are_not_asked() -> None:
    other = drill("tests", suite=Suite(packages=("mm", "m.part"), paths=()))
    tried = trials(MUTANTS[:1], [other])
    assert tried.choose() is None
    assert [found.fate for found in tried.results] == [Fate.UNREACHED]


def test_the_time_of_tests_is_kept_for_them() -> None:
    dear = drill("dear", cost_s=8.0)
    tried = trials(MUTANTS[:1], [dear, SUITE], limit_cpu_s=8.5)
    assert "tests" in chosen(tried).options


def test_dear_tests_leave_the_time_of_drills_and_none_comes_behind_them() -> None:
    dear = attrs.evolve(SUITE, cost_s=30.0)
    tried = trials(MUTANTS[:1], [dear, drill("a", cost_s=2.0)], limit_cpu_s=45.0)
    cell = chosen(tried)
    assert "tests" not in cell.options
    tried.take(valid(cell, cpu_s=2.0))
    cell = chosen(tried)
    assert "tests" in cell.options
    tried.take(valid(cell, cpu_s=1.0))
    assert tried.choose() is None

    late = drill("late", cost_s=29.5)  # what is left behind the tests would do for it
    tried = trials(MUTANTS[:1], [SUITE, late], limit_cpu_s=30.0)
    tried.take(valid(chosen(tried), cpu_s=0.1))
    assert tried.choose() is None


def test_tests_are_asked_though_a_drill_took_longer_than_it_should() -> None:
    tried = trials(MUTANTS[:1], [drill("slow", cost_s=2.0), SUITE], limit_cpu_s=4.0)
    tried.take(valid(chosen(tried), cpu_s=3.5))
    cell = chosen(tried)
    assert "tests" in cell.options
    # Cut short, it is no hang.
    tried.take(failed(cell, "no end", failure=Failure.CPU))
    assert tried.choose() is None
    assert [(found.fate, found.tests) for found in tried.results] == [(Fate.SURVIVED, "cut short")]
