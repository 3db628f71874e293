"""Two sets of runs compared: what is new, what is worse, and what a comparison can't tell."""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from itertools import product
from statistics import NormalDist
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.errors import UsageError
from harness.exit_codes import Outcome
from results.compare.comparison import Comparison, compare
from results.compare.comparison_tables import meaning
from results.compare.effect_thresholds import FIGURES, Rules, with_effects
from results.compare.figures import ALL_CELLS
from results.compare.run_selection import two_nights
from results.compare.significance import Group, holm, rank_sum, sign_flip
from results.store.fingerprint import fingerprint
from results.store.run_entry import RecordedFinding, RunEntry
from results.store.run_figures import VERSION, FaultCount, Host, RunFigures

BEGUN = datetime(2026, 11, 1, 2, tzinfo=UTC)
HERE = Host(
    system="Linux", architecture="x86_64", cores=4, memory_mib=8000, cpu_ms=3.0, fsync_us=900.0
)


def figures(stream: random.Random, **change: float) -> RunFigures:
    """Figures as a store under kills has them; ``change`` are factors, or what is added."""
    noise = lambda spread: stream.lognormvariate(0.0, spread)  # noqa: E731
    return RunFigures(
        version=VERSION,
        ok_per_s=100.0 * noise(0.02) * change.get("ok_per_s", 1.0),
        p50_ms=5.0 * noise(0.02) * change.get("p50_ms", 1.0),
        p99_ms=80.0 * noise(0.2) * change.get("p99_ms", 1.0),
        unavailable_s=2.0 * noise(0.2) + change.get("unavailable_s", 0.0),
        recover_s=1.5 * noise(0.2) + change.get("recover_s", 0.0),
        indefinite_share=0.01 * noise(0.3),
        faults={"kill": FaultCount(planned=2, effective=2)},
    )


def entry(number: int, seed: int, measured: RunFigures | None, **fields: Any) -> RunEntry:
    usual: dict[str, Any] = {
        "state": "sealed",
        "outcome": "valid",
        "system": "reference",
        "workload": "list-append",
        "provider": "sim",
        "faults": ("kill",),
        "nodes": 3,
        "duration_s": 20.0,
        "host": HERE,
    }
    begun = BEGUN + timedelta(minutes=number)
    run = f"{begun:%Y%m%d-%H%M%S}-night-{number:04x}"
    return RunEntry(run=run, begun=begun, seed=seed, figures=measured, **usual | fields)


def side(
    name: str, seeds: Sequence[int], change: dict[str, float], **fields: Any
) -> list[RunEntry]:
    stream = random.Random(f"{name} {sorted(fields)}")
    return [entry(n, seed, figures(stream, **change), **fields) for n, seed in enumerate(seeds)]


def finding(
    anomaly: str = "lost-write", fault: str = "kill", role: str = "leader"
) -> RecordedFinding:
    print_ = fingerprint(
        promise="strict-serializable", anomaly=anomaly, fault=fault, role=role, system="reference"
    )
    return RecordedFinding(
        fingerprint=print_,
        promise="strict-serializable",
        anomaly=anomaly,
        fault=fault,
        role=role,
        count=1,
        example="lost write: 31",
    )


def found_in(entries: Sequence[RunEntry], every: int, *what: RecordedFinding) -> list[RunEntry]:
    return [
        msgspec.structs.replace(e, findings=what, outcome="violation") if n % every == 0 else e
        for n, e in enumerate(entries)
    ]


def worse(found: Comparison) -> set[str]:
    return {each.figure for each in found.figures if each.worse}


SEEDS = range(10)


def test_equal_sides_are_valid_and_every_figure_is_told() -> None:
    found = compare(side("a", SEEDS, {}), side("b", SEEDS, {}))

    assert (found.outcome, found.reasons) == (Outcome.VALID, ())
    assert {each.figure for each in found.figures} == {
        "ok_per_s", "p50_ms", "p99_ms", "unavailable_s", "recover_s", "indefinite_share"
    }  # fmt: skip
    assert all(each.pairs == len(SEEDS) for each in found.figures)


@pytest.mark.parametrize("seeds", [SEEDS, range(100, 110)], ids=["paired", "not paired"])
@pytest.mark.parametrize(
    "change",
    [{"p50_ms": 1.1}, {"ok_per_s": 0.9}, {"recover_s": 1.0, "unavailable_s": 1.0}],
    ids=lambda change: "+".join(change),
)
def test_what_is_worse_is_named_and_nothing_else(seeds: range, change: dict[str, float]) -> None:
    found = compare(side("a", seeds, change), side("b", SEEDS, {}))

    assert worse(found) == set(change)
    assert found.outcome is Outcome.REGRESSION
    assert len(found.reasons) == len(change)
    assert worse(compare(side("b", SEEDS, {}), side("a", seeds, change))) == set()


def test_the_same_runs_on_both_sides_are_no_pass() -> None:
    same = side("a", SEEDS, {})

    found = compare(same, list(reversed(same)))
    assert found.outcome is Outcome.UNKNOWN
    assert found.reasons == ("nothing to compare: both sides are the same 10 runs",)
    some = compare([*same[:2], *side("c", SEEDS, {})[2:]], same)
    assert some.outcome is Outcome.VALID
    assert "2 runs are on both sides, and as good as themselves" in some.notes


def test_an_effect_that_matters_to_nobody_is_no_regression() -> None:
    slower = side("a", SEEDS, {"p50_ms": 1.1})

    found = compare(slower, side("b", SEEDS, {}), rules=Rules(figures=with_effects(["p50_ms=0.2"])))

    assert found.outcome is Outcome.VALID
    (p50,) = [each for each in found.figures if each.figure == "p50_ms"]
    assert p50.corrected < 0.05
    assert p50.change == pytest.approx(0.1, abs=0.03)


def test_a_change_in_one_cell_is_told_of_that_cell() -> None:
    def cells(change: dict[str, float]) -> list[RunEntry]:
        return [
            *side("a", SEEDS, change, workload="bank"),
            *side("b", SEEDS, {}, workload="register"),
        ]

    found = compare(cells({"p50_ms": 1.3}), cells({}))

    assert [e.cell for e in found.figures if e.worse and e.cell != "all cells"] == [
        "reference bank kill sim 3 nodes 20 s"
    ]


def test_a_new_finding_is_a_violation_and_a_known_one_is_not() -> None:
    base = found_in(side("b", SEEDS, {}), 2, finding())
    same = found_in(side("a", SEEDS, {}), 3, finding())
    more = found_in(same, 5, finding(), finding("G1c"))

    found = compare(same, base)
    assert (found.outcome, found.findings_new) == (Outcome.VALID, ())
    assert [(e.new, e.of_new, e.base) for e in found.findings_known] == [(4, 10, 5)]

    found = compare(more, base)
    assert found.outcome is Outcome.VIOLATION
    assert [e.anomaly for e in found.findings_new] == ["G1c"]
    assert found.reasons[0].startswith("new finding: G1c (strict-serializable), kill of leader")


def test_the_same_anomaly_under_another_fault_is_new_and_says_what_is_known() -> None:
    base = found_in(side("b", SEEDS, {}), 2, finding())
    new = found_in(side("a", SEEDS, {}), 2, finding(fault="pause", role="other voter"))

    (found,) = compare(new, base).findings_new

    assert found.note == "the base has this anomaly under kill of leader"


def test_a_finding_known_from_before_the_base_is_no_news_when_it_is_back() -> None:
    base, new = side("b", SEEDS, {}), found_in(side("a", SEEDS, {}), 10, finding())
    (news,) = compare(new, base).findings_new

    found = compare(new, base, rules=Rules(known=frozenset({news.fingerprint})))

    assert (found.findings_new, found.findings_gone) == ((), ())
    assert [(each.new, each.base) for each in found.findings_known] == [(1, 0)]
    assert found.outcome is Outcome.VALID


def test_a_finding_is_gone_only_where_its_cell_was_run() -> None:
    base = found_in(side("b", SEEDS, {}), 2, finding())
    elsewhere = side("a", SEEDS, {}, workload="bank")

    assert [e.anomaly for e in compare(side("a", SEEDS, {}), base).findings_gone] == ["lost-write"]
    found = compare(elsewhere, base)
    assert (found.findings_gone, len(found.findings_untried)) == ((), 1)
    assert found.outcome is Outcome.UNKNOWN
    assert "no cell" in found.reasons[0]


def test_a_known_finding_that_is_met_much_more_often_is_a_regression() -> None:
    many = range(20)
    found = compare(
        found_in(side("a", many, {}), 1, finding()), found_in(side("b", many, {}), 10, finding())
    )

    assert found.outcome is Outcome.REGRESSION
    assert [e.new for e in found.findings_changed] == [20]


def test_two_nights_are_known_by_the_tags_of_all_their_runs() -> None:
    def night(day: int, campaign: str = "c") -> list[RunEntry]:
        tags = (f"campaign={campaign}", f"night=2026-11-{day}", "commit=1")
        return [msgspec.structs.replace(each, tags=tags) for each in side("a", SEEDS, {})]

    assert two_nights(night(2), night(1))
    assert not two_nights(night(2), night(1, "other"))
    assert not two_nights([*night(2), *night(3)], night(1))
    assert not two_nights([*night(2), *side("a", SEEDS, {})], night(1))
    assert not two_nights(side("a", SEEDS, {}), side("b", SEEDS, {}))
    assert not two_nights(night(2), [])


@pytest.mark.parametrize("effective", [0, 1])
def test_a_fault_that_takes_effect_no_longer_is_never_green(effective: int) -> None:
    blunt = {"kill": FaultCount(planned=2, effective=effective)}
    new = [
        msgspec.structs.replace(e, figures=msgspec.structs.replace(e.figures, faults=blunt))
        for e in side("a", SEEDS, {})
    ]

    found = compare(new, side("b", SEEDS, {}))

    assert found.outcome is Outcome.UNKNOWN
    assert found.reasons == (
        f"kill no longer takes effect: {10 * effective} of 20 faults, 20 of 20 in the base "
        "(reference list-append kill sim 3 nodes 20 s)",
    )
    assert compare(side("b", SEEDS, {}), new).outcome is Outcome.VALID


def test_runs_that_show_nothing_are_no_pass() -> None:
    vain = [msgspec.structs.replace(e, outcome="unknown") for e in side("a", SEEDS, {})]

    found = compare(vain, side("b", SEEDS, {}))

    assert found.outcome is Outcome.UNKNOWN
    assert found.reasons == ("10 of 10 runs show nothing, 0 of 10 in the base",)
    assert compare(vain[:1] + side("a", SEEDS, {}), side("b", SEEDS, {})).outcome is Outcome.VALID


def test_of_too_few_runs_no_figure_is_told() -> None:
    found = compare(side("a", range(3), {}), side("b", range(3), {}))

    assert found.outcome is Outcome.UNKNOWN
    assert found.reasons[0].startswith("too few runs")


def test_two_single_runs_tell_findings_and_faults_and_leave_figures_open() -> None:
    one, other = side("a", [1], {"ok_per_s": 0.5}), side("b", [1], {})
    known = finding()

    alike = compare(found_in(one, 1, known), found_in(other, 1, known))
    worse = compare(found_in(one, 1, known), other)

    (told,) = (note for note in alike.notes if note.startswith("told all the same"))
    assert "findings (none new, none gone, 1 known) and faults (" in told
    assert (alike.outcome, meaning(alike)) == (
        Outcome.UNKNOWN,
        "no finding is new; whether a figure is worse, these runs can't tell",
    )
    assert (worse.outcome, meaning(worse)) == (Outcome.VIOLATION, "a finding is new")
    assert any("findings (1 new, none gone, none known)" in note for note in worse.notes)
    enough = compare(side("a", SEEDS, {}), side("b", SEEDS, {}))
    assert not any(note.startswith("told all the same") for note in enough.notes)


def test_where_findings_suffice_too_few_runs_are_a_note() -> None:
    rules = Rules(findings_suffice=True)
    one, other = side("a", [1], {}), side("b", [1], {})

    quiet = compare(one, other, rules=rules)
    found = compare(found_in(one, 1, finding()), other, rules=rules)
    nowhere = compare(one, side("b", [1], {}, workload="bank"), rules=rules)

    assert (quiet.outcome, quiet.reasons) == (Outcome.VALID, ())
    assert "findings and faults alone were compared" in " ".join(quiet.notes)
    assert found.outcome is Outcome.VIOLATION
    assert nowhere.outcome is Outcome.UNKNOWN
    enough = compare(side("a", SEEDS, {}), side("b", SEEDS, {}), rules=rules)
    assert "findings and faults" not in " ".join(enough.notes)


@pytest.mark.parametrize(
    ("other", "why"),
    [
        ({"cpu_ms": 4.5}, "the calibrator's CPU: 4.5 and 3 (ms)"),
        ({"fsync_us": 9000.0}, "the calibrator's fsync: 9000 and 900 (us)"),
        ({"cores": 2}, "cores: 2 and 4"),
        ({"cpu_ms": None}, "a side has no calibrator's figures"),
    ],
    ids=lambda value: str(value),
)
def test_another_machine_is_no_regression(other: dict[str, Any], why: str) -> None:
    slow = msgspec.structs.replace(HERE, **other)
    new = side("a", SEEDS, {"p50_ms": 2.0}, provider="process", host=slow)
    base = side("b", SEEDS, {}, provider="process")

    found = compare(new, base)

    assert found.outcome is Outcome.VALID
    assert [e.untested for e in found.figures if e.figure == "p50_ms"] == ["the hosts differ"]
    assert any(why in note for note in found.notes)
    found = compare(side("a", SEEDS, {"p50_ms": 2.0}, provider="process"), base)
    assert found.outcome is Outcome.REGRESSION
    # Virtual time is the same on any machine.
    found = compare(side("a", SEEDS, {"p50_ms": 2.0}, host=slow), side("b", SEEDS, {}))
    assert found.outcome is Outcome.REGRESSION


def test_cells_may_differ_in_what_is_asked_for() -> None:
    sc, ha = side("a", SEEDS, {}, mode="SC"), side("b", SEEDS, {}, mode="HA")

    assert compare(sc, ha).outcome is Outcome.UNKNOWN
    assert compare(sc, ha, rules=Rules(across=frozenset({"mode"}))).outcome is Outcome.VALID


@pytest.mark.parametrize("text", ["p50=0.1", "p50_ms", "p50_ms=x", "p50_ms=-1", "p50_ms=nan"])
def test_an_effect_that_is_none_is_refused(text: str) -> None:
    with pytest.raises(UsageError, match="effect"):
        with_effects([text])


def test_a_comparison_is_json_and_equal_for_equal_runs() -> None:
    new, base = side("a", SEEDS, {"p50_ms": 1.2}), side("b", SEEDS, {})
    text = msgspec.json.encode(compare(new, base))

    assert msgspec.json.encode(compare(new[::-1], base[::-1])) == text
    assert msgspec.json.decode(text, type=Comparison) == compare(new, base)


@given(st.lists(st.integers(-9, 9), min_size=1, max_size=8))
def test_the_sign_flip_is_what_all_signs_say(differences: list[int]) -> None:
    every = list(product((-1, 1), repeat=len(differences)))
    as_large = sum(
        sum(s * d for s, d in zip(signs, differences, strict=True)) >= sum(differences)
        for signs in every
    )

    assert sign_flip(differences) == pytest.approx(as_large / len(every))


def test_many_pairs_and_several_cells_agree_with_what_is_exact() -> None:
    stream = random.Random(3)
    shifted = [stream.gauss(0.35, 1.0) for _ in range(40)]
    # Of so many the sum over random signs is close to normal.
    normal = NormalDist(0.0, math.sqrt(sum(d * d for d in shifted)))
    assert sign_flip(shifted) == pytest.approx(1 - normal.cdf(sum(shifted)), abs=0.02)
    assert sign_flip([-d for d in shifted]) == pytest.approx(normal.cdf(sum(shifted)), abs=0.02)
    one, other = [3.0, 5.0, 7.0, 9.0, 11.0], [2.0, 4.0, 6.0, 8.0, 1.0]

    def group(new: list[float], base: list[float], cell: str) -> Group:
        return Group(new, base, [f"{cell}{n}" for n in new], [f"{cell}{n}" for n in base])

    two = [group(one, other, "a"), group(one, other, "b")]
    assert rank_sum(two) < rank_sum(two[:1]) < 0.12
    assert rank_sum([group(other, one, "a"), group(other, one, "b")]) > 0.9


def test_a_seed_that_all_cells_share_is_one_draw_and_not_many() -> None:
    """Two nights with one fresh seed each: what the seed drew differs in every cell."""
    cells = [f"workload-{n}" for n in range(20)]

    def night(name: str, seeds: Sequence[int], factor: float) -> list[RunEntry]:
        change = {"ok_per_s": factor}
        return [e for cell in cells for e in side(name, seeds, change, workload=cell)]

    found = compare(night("a", [1], 0.8), night("b", [2], 1.0))
    many = compare(night("a", range(10), 0.8), night("b", range(20, 30), 1.0))

    assert found.reasons[0].startswith("too few runs")
    assert "throughput" in {each.words for each in many.figures if each.worse}


def test_a_seed_that_ran_often_in_one_cell_is_one_draw_and_not_many() -> None:
    """Two seeds a side, ten runs of each, of one build: a seed draws its own length of faults."""

    def drawn(name: str, seeds: Sequence[int]) -> list[RunEntry]:
        levels = {1: 0.8, 2: 0.9, 3: 1.2, 4: 1.3}
        numbered = [(10 * at + n, seed) for at, seed in enumerate(seeds) for n in range(10)]
        stream = random.Random(name)
        return [entry(n, seed, figures(stream, p50_ms=levels[seed])) for n, seed in numbered]

    found = compare(drawn("a", [3, 4]), drawn("b", [1, 2]))
    same = compare(drawn("a", [1, 3]), drawn("b", [1, 3]))
    slow = [
        msgspec.structs.replace(e, figures=figures(random.Random(n), p50_ms=1.5))
        for n, e in enumerate(drawn("a", [1, 3]))
    ]

    assert worse(found) == set()
    assert found.reasons[0].startswith("too few runs")
    # Of the same seeds on both sides the runs themselves can be told apart.
    assert same.outcome is Outcome.VALID
    assert "p50_ms" in worse(compare(slow, drawn("b", [1, 3])))


def test_cells_that_differ_behind_a_long_mix_are_no_one_cell() -> None:
    faults = tuple(f"a-fault-of-a-plug-in-{number}" for number in range(20))

    def of(nodes: int, name: str, change: dict[str, float]) -> list[RunEntry]:
        return side(name, SEEDS, change, faults=faults, nodes=nodes)

    found = compare(
        [*of(3, "a", {"p50_ms": 1.3}), *of(5, "c", {})], [*of(3, "b", {}), *of(5, "d", {})]
    )

    cells = {each.cell for each in found.figures} - {ALL_CELLS}
    assert len(cells) == 2
    assert all(each.pairs == len(SEEDS) for each in found.figures if each.cell in cells)


def test_the_correction_is_holms() -> None:
    assert holm([0.01, 0.04, 0.03, 0.5]) == pytest.approx([0.04, 0.09, 0.09, 0.5])
    assert holm([]) == []


def test_fingerprints_never_change() -> None:
    assert finding().fingerprint == "77980b200c84"
    assert len({finding(fault=f, role=r).fingerprint for f in "ab" for r in "cd"}) == 4


def test_every_figure_is_a_field_of_runs() -> None:
    assert {figure.name for figure in FIGURES} <= set(RunFigures.__struct_fields__)
