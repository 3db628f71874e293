"""The page over one drill in several modes: what each mode costs, gives and loses."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest
from synthetic_run import build, valid, violation, write_verdict

from harness.protocols.verdict import JudgedLimit, LimitState, Verdict
from results.report.mode_comparison import Comparison, ModeRun, compared, lines, write_comparison
from results.report.tabulate import DASH

LOSS = {"write": "lost", "fault": 1, "kind": "kill", "role": "primary", "phase": "inject"}
ATTRIBUTED = {
    "SC": [],
    "HA": [LOSS | {"reset": True, "count": 2}, LOSS | {"reset": False, "count": 1}],
}

REFUSED = JudgedLimit(
    name="promise.kill.refused_within_s", allowed=1.0, measured=0.003, state=LimitState.KEPT
)
SERVES = JudgedLimit(
    name="promise.kill.serves_within_s", allowed=6.0, measured=7.5, state=LimitState.BROKEN
)
LIMITS = {
    "SC": (
        REFUSED,
        JudgedLimit(name=SERVES.name, allowed=6.0, state=LimitState.NOT_PROMISED),
    ),
    "HA": (SERVES,),
}


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> tuple[ModeRun, ...]:
    def made(mode: str, verdict: Verdict) -> ModeRun:
        verdict = msgspec.structs.replace(
            verdict,
            statistics={
                **verdict.statistics,
                "attribution": ATTRIBUTED[mode],
                "lost_writes": {"lost": 3 * (mode == "HA")},
            },
            limits=LIMITS[mode],
        )
        run = build(tmp_path_factory.mktemp("runs") / mode)
        write_verdict(run, verdict)
        return ModeRun(mode=mode, run=run, verdict=verdict)

    return made("SC", valid()), made("HA", violation())


@pytest.fixture(scope="module")
def found(runs: tuple[ModeRun, ...]) -> Comparison:
    return compared(runs)


def rows(found: Comparison, title: str) -> dict[str, tuple[str, ...]]:
    (grid,) = (grid for grid in found.grids if grid.title.startswith(title))
    assert grid.columns == ("", "SC", "HA")
    return {name: tuple(others) for name, *others in grid.rows}


def test_price_benefit_and_loss_of_each_mode_stand_side_by_side(found: Comparison) -> None:
    price, benefit, loss = (rows(found, title) for title in ("price", "benefit", "loss"))

    told = {"p50 in calm (ms)", "p99 in calm (ms)", "p99 under faults (ms)", "longest in calm (ms)"}
    assert told <= set(price)
    assert "longest silence (s)" in benefit
    assert loss["acknowledged writes lost"] == ("0", "3")
    assert loss["lost-write (violation)"] == (DASH, "3")
    assert loss["G1c (permitted, or observed)"] == (DASH, "1")
    assert len(rows(found, "faults")) > 0


def test_writes_are_attributed_to_fault_role_and_phase_by_mode(found: Comparison) -> None:
    assert rows(found, "writes by fault") == {
        "lost: 1 kill of primary, inject, a reset": (DASH, "2"),
        "lost: 1 kill of primary, inject": (DASH, "1"),
    }


def test_limits_stand_with_the_mode_that_promises_them(found: Comparison) -> None:
    assert rows(found, "limits") == {
        "promise.kill.refused_within_s": ("0.003 s of at most 1 s", DASH),
        "promise.kill.serves_within_s": (DASH, "7.5 s of at most 6 s, BROKEN"),
    }


def test_the_page_links_the_reports_and_is_inert(
    found: Comparison, runs: tuple[ModeRun, ...], tmp_path: Path
) -> None:
    page = write_comparison(found, tmp_path).read_text()

    assert all(one.run.root.name in page for one in runs)
    assert "Content-Security-Policy" in page
    assert "price: latency" in page


def test_the_terminal_shows_the_same_tables_with_aligned_columns(found: Comparison) -> None:
    told = lines(found)

    assert sum(1 for line in told if line.endswith("HA")) == len([g for g in found.grids if g.rows])
    (calm,) = (line for line in told if line.startswith("p99 in calm"))
    assert rows(found, "price")["p99 in calm (ms)"][1] in calm
