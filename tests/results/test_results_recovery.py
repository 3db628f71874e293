"""What a fault cost: figures that a count by hand of the tables gives as well."""

from __future__ import annotations

import re
from pathlib import Path

import attrs
import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from synthetic_run import BREAKS, build, valid, violation, write_verdict

from harness.clock import NS_PER_S
from harness.history.run_directory import RunDirectory
from results.compare.measure import figures_of
from results.drawing.partitions import Touches, lanes
from results.report import fault_recovery
from results.report.fault_recovery import Recovery, recoveries, recoveries_in, recovery_rows
from results.report.render import write_report
from results.report.run_data import RunData, gather
from results.report.tabulate import DASH

TENTH_NS = NS_PER_S // 10


@pytest.fixture(scope="module")
def run_data(tmp_path_factory: pytest.TempPathFactory) -> RunData:
    root = tmp_path_factory.mktemp("recovery") / "run"
    return gather(build(root, duration_s=40.0, rate_per_s=60.0, breaks=BREAKS[:2]))


@pytest.fixture(scope="module")
def found(run_data: RunData) -> tuple[Recovery, ...]:
    return recoveries(run_data)


def acknowledged(run_data: RunData, start_ns: int, end_ns: int) -> int:
    rows = run_data.transactions.select(["type", "complete_ns"]).to_pylist()
    return sum(r["type"] == "ok" and start_ns <= r["complete_ns"] < end_ns for r in rows)


def test_each_stretch_counts_what_completed_in_it(
    run_data: RunData, found: tuple[Recovery, ...]
) -> None:
    assert [each.kind for each in found] == ["kill", "partition"]
    for each in found:
        for stretch in (each.before, each.during, each.after):
            assert stretch is not None
            assert stretch.ok == acknowledged(run_data, stretch.start_ns, stretch.end_ns)
            assert stretch.end_ns - stretch.start_ns <= fault_recovery.AROUND_S * NS_PER_S
    first, second = found
    assert first.after is not None
    assert second.before is not None
    assert first.after.end_ns == second.during.start_ns, "until the next fault begins"
    assert second.before.start_ns == first.during.end_ns, "and none of the fault before"


def test_the_rate_is_back_at_the_first_time_with_nine_tenths_of_it(
    run_data: RunData, found: tuple[Recovery, ...]
) -> None:
    for each in found:
        assert each.before is not None
        window_ns = int(200 / each.before.ok_per_s * NS_PER_S)
        assert NS_PER_S < window_ns < 5 * NS_PER_S
        wanted = 0.9 * each.before.ok_per_s * window_ns / NS_PER_S
        end_ns = each.during.end_ns
        assert each.from_end_ns is not None
        at_ns = end_ns
        while acknowledged(run_data, at_ns, at_ns + window_ns) < wanted:
            at_ns += TENTH_NS
        rows = run_data.transactions.select(["type", "complete_ns"]).to_pylist()
        later = [r["complete_ns"] for r in rows if r["type"] == "ok" and r["complete_ns"] >= at_ns]
        assert each.from_end_ns == min(later) - end_ns


def test_what_an_open_loop_owed_from_before_the_heal_is_not_the_rate_again(
    run_data: RunData, found: tuple[Recovery, ...]
) -> None:
    first = found[0]
    healed_ns = first.during.end_ns
    done = run_data.transactions["complete_ns"].to_numpy()
    owed = (done >= healed_ns) & (done < healed_ns + NS_PER_S)
    intended = np.where(owed, healed_ns - 1, run_data.transactions["intended_ns"].to_numpy())
    at = run_data.transactions.schema.get_field_index("intended_ns")
    table = run_data.transactions.set_column(at, "intended_ns", pa.array(intended))
    asked_per_s = first.before.ok_per_s if first.before else 0.0

    closed, opened = (
        recoveries_in(run_data.manifest, table, run_data.faults, asked)[0]
        for asked in (None, asked_per_s)
    )

    assert closed.from_end_ns == first.from_end_ns
    assert closed.after == opened.after, "what completed is told as it was"
    assert opened.from_end_ns is not None
    assert closed.from_end_ns is not None
    assert opened.from_end_ns > closed.from_end_ns


def test_a_backlog_before_the_fault_is_not_the_rate_that_an_open_loop_has_to_come_back_to(
    tmp_path: Path,
) -> None:
    """Held against half of what was acknowledged before, the rate never fell."""
    run = build(tmp_path / "run", duration_s=40.0, rate_per_s=60.0, breaks=BREAKS[:1])
    run_data = gather(run)
    (first,) = recoveries(run_data)
    assert first.before is not None

    (half,) = recoveries_in(
        run_data.manifest, run_data.transactions, run_data.faults, first.before.ok_per_s / 2
    )

    assert half.before == first.before
    assert (first.begin_known, half.begin_known) == (True, True)
    assert (first.fell, half.fell) == (True, False)
    assert half.from_end_ns is not None
    assert half.from_end_ns < TENTH_NS


def test_what_an_open_loop_owed_from_the_fault_before_is_not_the_rate_before_the_next(
    run_data: RunData, found: tuple[Recovery, ...]
) -> None:
    """Half of what was acknowledged in the calm between two faults was owed from the first: held
    against the other half, the rate never fell under the second.
    """
    before = found[1].before
    assert before is not None
    healed_ns = found[0].during.end_ns
    done = run_data.transactions["complete_ns"].to_numpy()
    calm = (done >= before.start_ns) & (done < before.end_ns)
    owed = calm & (np.arange(len(done)) % 2 > 0)
    intended = np.where(owed, healed_ns - 1, run_data.transactions["intended_ns"].to_numpy())
    at = run_data.transactions.schema.get_field_index("intended_ns")
    table = run_data.transactions.set_column(at, "intended_ns", pa.array(intended))

    closed, opened = (
        recoveries_in(run_data.manifest, table, run_data.faults, asked)[1]
        for asked in (None, before.ok_per_s)
    )

    assert closed.from_end_ns == found[1].from_end_ns
    assert closed.before is not None
    assert opened.before is not None
    assert (closed.before.ok, opened.before.ok) == (before.ok, before.ok), "told as it was"
    assert (closed.begin_known, opened.begin_known) == (True, True)
    assert (closed.fell, opened.fell) == (True, False)


def test_a_fault_in_another_leaves_no_stretch_after_it(tmp_path: Path) -> None:
    overlapping = (BREAKS[1], BREAKS[2])  # from 20 to 27 s, and from 24 to 29.5 s
    run_data = gather(build(tmp_path / "run", duration_s=40.0, rate_per_s=20.0, breaks=overlapping))

    outer, inner = recoveries(run_data)

    assert outer.after is None
    assert outer.from_end_ns is None
    assert inner.before == outer.before, "the last time without a fault"
    assert inner.before is not None
    assert inner.before.end_ns == outer.during.start_ns
    assert inner.after is not None


def test_each_of_a_thousand_faults_and_more_is_measured(run_data: RunData) -> None:
    """A plan may have ten thousand, and their mean is what runs are compared by."""
    (pattern,) = [row for row in run_data.faults if row["fault"] == 0]
    steps = [name for name, at in pattern.items() if name.endswith("_ns") and at is not None]
    begin_ns = min(pattern[name] for name in steps)
    faults = [
        pattern
        | {"fault": number}
        | {name: begin_ns + number * 10**7 + steps.index(name) for name in steps}
        for number in range(1500)
    ]

    found = recoveries_in(run_data.manifest, run_data.transactions, faults, None)

    assert [each.fault for each in found] == list(range(1500))
    assert len({each.before for each in found}) == 1, "none of them leaves a second free"


def test_a_drive_of_a_century_takes_no_more_memory(run_data: RunData) -> None:
    """As a history from elsewhere may claim: times are tried further apart."""
    century_ns = 100 * 365 * 86_400 * NS_PER_S
    phases = [(n, century_ns if n == "heal" else at) for n, at in run_data.manifest.phases]
    manifest = msgspec.structs.replace(run_data.manifest, phases=tuple(phases))

    found = recoveries_in(manifest, run_data.transactions, run_data.faults, None)

    assert [each.fault for each in found] == [row["fault"] for row in run_data.faults]


def test_of_a_stretch_that_is_too_short_nothing_is_said(tmp_path: Path) -> None:
    """A fault that begins half a second after the heal of another leaves no second to count."""
    begun_s = BREAKS[0].end_s + 0.5
    again = attrs.evolve(BREAKS[0], start_s=begun_s, end_s=begun_s + 3.0)
    run_data = gather(
        build(tmp_path / "run", duration_s=30.0, rate_per_s=60.0, breaks=(BREAKS[0], again))
    )
    first, second = recoveries(run_data)
    end_s = first.during.end_ns / NS_PER_S
    assert 0 < second.during.start_ns / NS_PER_S - end_s < 1

    (row, _) = recovery_rows((first, second))

    assert first.after is not None
    assert (row.from_end, row.bad) == (DASH, False)


def test_the_page_has_the_figures_a_strip_a_partition_and_a_script_that_finds_its_numbers(
    tmp_path: Path,
) -> None:
    run = build(tmp_path / "run", duration_s=30.0, rate_per_s=60.0, breaks=BREAKS[:1])
    write_verdict(run, valid())

    content = write_report(run).read_text()

    assert "Before, during and after each fault" in content
    assert "the partitions&#x27; availability" in content or "partitions' availability" in content
    assert re.search(r'<script type="application/json" id="plot-data">\{"left":0\.\d+', content)


def test_all_operations_on_the_key_of_an_anomaly_are_folded_below_it(tmp_path: Path) -> None:
    run: RunDirectory = build(tmp_path / "run", duration_s=30.0, rate_per_s=60.0, breaks=())
    (key, *_) = next(iter(violation().anomalies.values())).examples[0].keys
    on_key = [row["txn"] for row in gather(run).on_key(key)]
    write_verdict(run, violation(txns=on_key[20:22]))

    content = write_report(run).read_text()

    (shown, count) = re.findall(r"the operations on it around these, (\d+) of (\d+)", content)[0]
    assert (int(shown), int(count)) == (22, len(on_key)), "ten before them, ten after"
    assert content.count('<tr class="proof">') >= 1


def test_a_partition_that_was_only_just_asked_is_not_silent() -> None:
    """Begun at the end of a window, acknowledged in the next; and what was not of the drive."""
    touches = Touches(
        partition=np.array([0, 1, 1, 2]),
        begun_s=np.array([0.9, 0.1, 12.0, 2.0]),
        ended_s=np.array([1.1, 0.2, 12.5, 4.5]),
        ok=np.array([True, True, False, True]),
    )

    crossing, asked_later, waiting = lanes(touches, 0.0, 10.0)

    assert (crossing.served, crossing.silent) == (((1.0, 2.0),), ())
    assert (asked_later.served, asked_later.silent) == (((0.0, 1.0),), ())
    assert (waiting.served, waiting.silent) == (((4.5, 5.0),), ((2.0, 4.5),))


def test_transactions_that_gave_way_make_no_partition_silent(tmp_path: Path) -> None:
    run = build(tmp_path / "run", duration_s=10.0, rate_per_s=60.0, breaks=BREAKS[:1])
    run_data = gather(run)
    codes = set(run_data.transactions["error"].drop_null().to_pylist())
    declared = msgspec.structs.replace(
        run_data.manifest.declaration, conflicts=tuple(sorted(codes))
    )
    manifest = msgspec.structs.replace(run_data.manifest, declaration=declared)
    history = attrs.evolve(run_data.history, manifest=manifest)
    giving_way = attrs.evolve(run_data, history=history)

    every, few = run_data.touches(), giving_way.touches()

    assert codes
    assert len(few.partition) < len(every.partition)


def test_a_comparison_counts_unknown_outcomes_as_a_limit_does(run_data: RunData) -> None:
    """Of what gave way to another nothing is unknown: it is no part of the share."""
    history, types = run_data.history, run_data.transactions["type"].to_pylist()
    codes = run_data.transactions["error"].filter(
        pc.equal(run_data.transactions["type"].cast(pa.string()), "fail")
    )
    declared = msgspec.structs.replace(
        run_data.manifest.declaration, conflicts=tuple(sorted(set(codes.to_pylist())))
    )
    manifest = msgspec.structs.replace(run_data.manifest, declaration=declared)

    share = figures_of(attrs.evolve(history, manifest=manifest), valid()).indefinite_share

    assert {"ok", "fail", "info"} == set(types)
    assert share == types.count("info") / (types.count("info") + types.count("ok"))


def test_a_partition_serves_where_it_acknowledged_and_is_silent_where_it_was_only_asked() -> None:
    touches = Touches(
        partition=np.array([0, 0, 1, 1]),
        begun_s=np.array([0.1, 5.1, 0.2, 2.2]),
        ended_s=np.array([0.2, 5.2, 0.4, 4.4]),
        ok=np.array([True, True, True, False]),
    )

    first, second = lanes(touches, 0.0, 10.0)

    assert first.served == ((0.0, 1.0), (5.0, 6.0))
    assert first.silent == ()
    assert second.served == ((0.0, 1.0),)
    assert second.silent == ((2.0, 5.0),)
