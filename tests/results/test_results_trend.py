"""Series over months: what changed, when, and what was only noise."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from datetime import UTC, date, datetime, timedelta
from typing import Any

import msgspec
import pytest

from results.store.fingerprint import fingerprint
from results.store.run_entry import RecordedFinding, RunEntry
from results.store.run_figures import VERSION, Host, RunFigures
from results.trend.change_points import Change, Shape, changes, deviation
from results.trend.trend_tables import lines, write_trend
from results.trend.trends import Trend, Turn, trend

NIGHTS = 200
FIRST = datetime(2026, 1, 1, 2, tzinfo=UTC)
HERE = Host(
    system="Linux", architecture="x86_64", cores=4, memory_mib=8000, cpu_ms=3.0, fsync_us=900.0
)
Level = Callable[[int], float]


def noisy(level: Level, seed: int, nights: int = NIGHTS) -> list[float]:
    stream = random.Random(seed)
    return [level(night) + stream.gauss(0.0, 1.0) for night in range(nights)]


def night_entry(night: int, p50_ms: float, **fields: Any) -> RunEntry:
    begun = FIRST + timedelta(days=night)
    usual: dict[str, Any] = {
        "state": "sealed",
        "outcome": "valid",
        "system": "reference",
        "workload": "bank",
        "provider": "process",
        "host": HERE,
        "commit": f"{night:07x}",
        "figures": RunFigures(version=VERSION, p50_ms=p50_ms),
    }
    return RunEntry(run=f"{begun:%Y%m%d-%H%M%S}-night-0001", begun=begun, **usual | fields)


def nights(level: Level, seed: int = 1, **fields: Any) -> list[RunEntry]:
    return [
        night_entry(night, 10.0 + 0.1 * value, **fields)
        for night, value in enumerate(noisy(lambda night: 10 * (level(night) - 10.0), seed))
    ]


def only_turn(found: Trend) -> Turn:
    ((_, turn),) = found.turns()
    return turn


@pytest.mark.parametrize("seed", range(8))
def test_noise_has_no_changes(seed: int) -> None:
    assert changes(noisy(lambda _: 50.0, seed)) == []


@pytest.mark.parametrize("seed", range(8))
@pytest.mark.parametrize("size", [4.0, -4.0])
def test_a_step_is_found_where_it_is(seed: int, size: float) -> None:
    (found,) = changes(noisy(lambda night: 50.0 + size * (night >= 120), seed))

    assert found.shape is Shape.STEP
    assert abs(found.at - 120) <= 2
    assert found.after - found.before == pytest.approx(size, abs=0.8)


@pytest.mark.parametrize("seed", range(8))
@pytest.mark.parametrize("size", [6.0, -6.0])
def test_a_drift_is_one_drift_and_no_staircase(seed: int, size: float) -> None:
    def level(night: int) -> float:
        return 50.0 + size * min(1.0, max(0.0, (night - 60) / 80))

    (found,) = changes(noisy(level, seed))

    assert found.shape is Shape.DRIFT
    assert abs(found.at - 60) <= 21
    assert abs(found.until - 140) <= 21


def test_two_steps_and_the_way_back_are_three_changes() -> None:
    def level(night: int) -> float:
        return 50.0 + 6.0 * (60 <= night < 110) + 3.0 * (night >= 150)

    found = changes(noisy(level, 4))

    assert [each.shape for each in found] == [Shape.STEP] * 3
    assert [abs(each.at - at) <= 2 for each, at in zip(found, (60, 110, 150), strict=True)] == [
        True
    ] * 3


def test_one_bad_night_is_no_change() -> None:
    values = noisy(lambda _: 50.0, 3)
    values[77] += 40.0

    assert changes(values) == []


def test_a_series_without_noise_has_its_step_and_no_other() -> None:
    values = [5.0] * 60 + [6.0] * 60

    assert changes(values) == [Change(shape=Shape.STEP, at=60, until=60, before=5.0, after=6.0)]
    assert changes([5.0] * 100) == []
    assert changes([5.0, 6.0, 5.0]) == []
    assert deviation([]) == deviation([1.0]) == 0.0


def test_a_change_names_the_runs_and_the_commits_around_it() -> None:
    turn = only_turn(trend(nights(lambda night: 10.0 + 1.5 * (night >= 120))))

    step = turn.at
    assert abs((step - date(2026, 5, 1)).days) <= 2
    assert turn.worse
    assert turn.change == pytest.approx(0.15, abs=0.02)
    number = (step - FIRST.date()).days
    assert turn.commits == (f"{number - 1:07x}", f"{number:07x}")
    assert turn.first_bad == f"{step:%Y%m%d}-020000-night-0001"


def test_a_change_for_the_better_is_none_for_the_worse() -> None:
    turn = only_turn(trend(nights(lambda night: 12.0 - 1.5 * (night >= 120))))

    assert not turn.worse
    assert (turn.change or 0.0) < 0


def test_a_change_too_small_to_matter_is_not_told() -> None:
    series = trend(nights(lambda night: 10.0 + 0.4 * (night >= 120))).series

    assert [each.turns for each in series] == [()]


def test_another_host_is_told_and_is_no_change_for_the_worse() -> None:
    slow = msgspec.structs.replace(HERE, cpu_ms=5.0)
    found = [
        msgspec.structs.replace(each, host=slow) if number >= 120 else each
        for number, each in enumerate(nights(lambda night: 10.0 + 3.0 * (night >= 120)))
    ]

    turn = only_turn(trend(found))

    assert not turn.worse
    assert "the calibrator's CPU" in turn.host
    # In simulation no host has a part in a time.
    simulated = [msgspec.structs.replace(each, provider="sim") for each in found]
    assert only_turn(trend(simulated)).worse


@pytest.mark.parametrize("seed", range(2, 6))
def test_a_drift_from_the_first_night_on_is_for_the_worse_and_has_no_good_run(seed: int) -> None:
    found = trend(nights(lambda night: 10.0 + 3.0 * min(1.0, night / 120), seed))

    turn = only_turn(found)
    assert turn.shape is Shape.DRIFT
    assert (turn.worse, turn.host) == (True, "")
    begins = turn.first_bad == f"{FIRST:%Y%m%d}-020000-night-0001"
    assert (turn.last_good == "") == begins == (turn.commits[0] == "")


def test_a_finding_has_its_first_and_its_last_night_and_a_rate() -> None:
    what = RecordedFinding(
        fingerprint=fingerprint(
            promise="stays-up", anomaly="panic", fault="kill", role="leader", system="reference"
        ),
        promise="stays-up",
        anomaly="panic",
        fault="kill",
        role="leader",
        count=1,
    )
    every = nights(lambda _: 10.0)
    met = (40, 41, 90, 180)
    for night in met:
        every[night] = msgspec.structs.replace(every[night], findings=(what,), outcome="violation")

    (found,) = trend(reversed(every)).findings

    assert (found.first_seen, found.last_seen) == (date(2026, 2, 10), date(2026, 6, 30))
    assert (found.met, found.judged) == (4, NIGHTS)
    assert (found.met_lately, found.judged_lately) == (1, 30)
    assert found.words == "panic (stays-up), kill of leader"


def test_cells_are_series_of_their_own() -> None:
    entries: Sequence[RunEntry] = [
        *nights(lambda _: 10.0, workload="bank"),
        *nights(lambda night: 10.0 + 2.0 * (night >= 50), seed=2, workload="register"),
    ]

    turned = {each.cell for each, _ in trend(entries).turns()}

    assert turned == {"reference register no fault process"}


def test_a_page_shows_no_more_than_text(tmp_path: Any) -> None:
    from results.store.store import RunStore

    active = "<script>alert(1)</script>\x1b[2J"
    every = nights(lambda night: 10.0 + 3.0 * (night >= 120), workload=active, commit=active)
    found = trend(every)

    page = write_trend(found, RunStore(tmp_path), tmp_path / "there" / "trend.html")

    text = page.read_text()
    assert "<script>alert" not in text
    assert "\x1b" not in text
    assert "&lt;script&gt;alert" in text
    assert text.count("<svg") == 1
    again = msgspec.json.decode(page.with_suffix(".json").read_bytes(), type=Trend)
    assert [turn.at for _, turn in again.turns()] == [turn.at for _, turn in found.turns()]
    assert any("WORSE, step" in line for line in lines(found))
