"""From a run directory to a verdict: attribution, evidence, determinism, both executors."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pyarrow.parquet as pq
import pytest
from checker_histories import Fault, a, fail, info, ok, r, verdict, write_run

from checkers.engine.analyze import analyze
from cli.verdict_lines import findings_of
from harness.errors import MalformedHistory, UnknownPlugin, UsageError
from harness.history.manifest import read_manifest, write_manifest
from harness.history.records import MicroOp
from harness.history.run_directory import Origin, RunDirectory
from harness.protocols.verdict import decode, encode

MS = 1_000_000
CHECKED = ("list-append", "lost-write", "evidence")
GOOD = [ok(a(1, 1)), ok(a(2, 1)), ok(r(1, 1), r(2, 1)), ok(a(1, 2)), ok(r(1, 1, 2))]
LOSS = [
    ok(a(1, 1), start=0, finish=10 * MS),
    ok(a(1, 2), start=20 * MS, finish=30 * MS),
    ok(r(1, 1), start=90 * MS, finish=95 * MS),
]
KILL = Fault("kill", "leader of partition 1", 25 * MS, 60 * MS, ("n2",), ("leader of partition 1",))


def test_a_good_run_is_valid_and_its_verdict_is_the_same_twice(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run", GOOD)

    first = analyze(run, executor="local")
    second = analyze(run, executor="local")

    assert first.outcome == "valid"
    assert first.model == "strict-serializable"
    assert encode(first) == encode(second)
    assert first.statistics["f"]["append"] == {"ok": 3, "fail": 0, "info": 0}


def test_no_workload_can_do_without_the_evidence(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run", GOOD)
    manifest = read_manifest(run)
    changed = {"checkers": ("list-append", "lost-write"), "trouble": ("the disk was full",)}
    write_manifest(run, msgspec.structs.replace(manifest, **changed))

    found = analyze(run, executor="local")

    assert found.outcome == "unknown"
    assert "the disk was full" in found.reasons


def test_a_lost_write_names_the_fault_that_explains_it(tmp_path: Path) -> None:
    unrelated = Fault("partition", "minority", 0, 80 * MS, ("n5",))
    run = write_run(tmp_path / "run", LOSS, [unrelated, KILL])

    found = analyze(run, executor="local")

    example = found.anomalies["lost-write"].examples[0]
    assert found.outcome == "violation"
    assert example.text == (
        "lost write: an acknowledged append to key 1 (value 2) is in no later read"
    )
    assert example.txns == (1, 2)
    assert example.explained_by.kind == "kill"
    assert example.explained_by.phase == "hold"
    assert example.operations[0].ops == (MicroOp("append", 1, 2),)
    table = pq.read_table(run.analysis / "lost_writes.parquet")
    assert table.column("value").to_pylist() == [2]
    assert table.column("fault_kind").to_pylist() == ["kill"]


def test_a_stale_read_names_the_fault_too(tmp_path: Path) -> None:
    found = analyze(write_run(tmp_path / "run", LOSS, [KILL]), executor="local")

    (example,) = found.anomalies["G-single-item-realtime"].examples
    assert example.explained_by.kind == "kill"
    assert example.explained_by.text == (
        "began to show at 0.030 s, during kill of n2 (leader of partition 1), in force "
        "from 0.025 s to 0.060 s (hold: 0.005 s after its injection)"
    )


@pytest.mark.parametrize("role", ["primary", "leader"])
def test_a_fault_that_hit_who_acknowledged_explains_better_than_one_in_force(
    role: str, tmp_path: Path
) -> None:
    other = Fault("pause", "n3", 15 * MS, 60 * MS, ("n3",), ("follower of partition 1",))
    hit = Fault("kill", "n2", 40 * MS, 60 * MS, ("n2",), (f"{role} of partition 1",))
    found = analyze(write_run(tmp_path / "run", LOSS, [other, hit]), executor="local")

    (example,) = found.anomalies["lost-write"].examples
    assert (example.explained_by.kind, example.explained_by.phase) == ("kill", "before")


@pytest.mark.parametrize(
    ("faults", "why"),
    [
        ((Fault("kill", "n1", 99 * MS, 100 * MS),), "none had begun by then"),
        (
            (
                Fault("kill", "n1", 2 * MS, 8 * MS, ("n1",), ("leader of partition 1",)),
                Fault("pause", "n2", 1 * MS, 15 * MS, ("n2",), ("leader of partition 1",)),
                Fault("kill", "n3", 99 * MS, 100 * MS),
            ),
            "the last, pause of n2 (leader of partition 1), had been proven healed for 0.005 s",
        ),
    ],
)
def test_without_a_fault_in_force_a_loss_is_explained_by_none(
    tmp_path: Path, faults: tuple[Fault, ...], why: str
) -> None:
    run = write_run(tmp_path / "run", LOSS, list(faults))
    found = analyze(run, executor="local")

    explained = found.anomalies["lost-write"].examples[0].explained_by
    assert explained.fault is None
    assert explained.no_fault
    assert explained.text == f"no fault was in force when it was acknowledged at 0.030 s: {why}"
    told = [line.strip() for line in findings_of(run, found) if "no fault was in force" in line]
    assert told[0] == explained.text  # and not: explained by
    assert decode(encode(found)) == found


def test_a_fault_that_was_healed_between_a_write_and_its_acknowledgement_explains_it(
    tmp_path: Path,
) -> None:
    fault = Fault("kill", "n1", 1 * MS, 21 * MS, ("n1",))
    found = analyze(write_run(tmp_path / "run", LOSS, [fault]), executor="local")

    explained = found.anomalies["lost-write"].examples[0].explained_by
    assert (explained.kind, explained.phase, explained.no_fault) == ("kill", "after", False)


def test_a_run_without_faults_explains_a_loss_by_nothing(tmp_path: Path) -> None:
    found = analyze(write_run(tmp_path / "run", LOSS), executor="local")

    assert found.anomalies["lost-write"].examples[0].explained_by is None


def test_availability_tells_gaps_and_the_way_back(tmp_path: Path) -> None:
    found = analyze(write_run(tmp_path / "run", LOSS, [KILL]), executor="local")

    (window,) = found.availability.windows
    assert window.first_ok_after_inject_ns == 5 * MS
    assert window.first_ok_after_heal_ns == 35 * MS
    assert window.longest_gap_ns == 65 * MS


def test_a_gap_ends_with_the_drive_at_the_latest(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run", LOSS, [KILL])
    phases = (("drive", 0), ("heal", 40 * MS))
    write_manifest(run, msgspec.structs.replace(read_manifest(run), phases=phases))

    found = analyze(run, executor="local").availability

    assert (found.drive.longest_gap_at_ns, found.drive.longest_gap_ns) == (10 * MS, 20 * MS)
    assert found.windows[0].longest_gap_ns == 10 * MS


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"min_ok": 50}, "vacuous: 5 ok transactions before the final reads, expected at least 50"),
        ({"interrupted": True}, "the run was interrupted before its end"),
        ({"trouble": ("quiesce: not done within 60 s",)}, "quiesce: not done within 60 s"),
    ],
)
def test_a_run_that_shows_too_little_is_unknown(
    tmp_path: Path, change: dict[str, object], reason: str
) -> None:
    found = analyze(write_run(tmp_path / "run", GOOD, **change), executor="local")

    assert found.outcome == "unknown"
    assert reason in found.reasons


def test_a_vacuous_run_says_that_it_does_not_count_the_final_reads(tmp_path: Path) -> None:
    """The report's head counts every ok transaction."""
    run = write_run(tmp_path / "run", GOOD, min_ok=50)
    phases = (("drive", 0), ("final-reads", 40))
    write_manifest(run, msgspec.structs.replace(read_manifest(run), phases=phases))

    found = analyze(run, executor="local")

    told = "vacuous: 4 ok transactions before the final reads, expected at least 50"
    assert told in found.reasons


def test_a_step_that_never_succeeded_makes_a_run_vacuous(tmp_path: Path) -> None:
    found = analyze(write_run(tmp_path / "run", [fail(a(1, 1)), ok(r(1))]), executor="local")

    assert found.outcome == "unknown"
    assert "vacuous: no 'append' ever succeeded (of 1 tried)" in found.reasons


def test_of_a_history_that_no_plan_drove_what_is_there_is_judged(tmp_path: Path) -> None:
    """The first append has no answer but was read: nothing is acknowledged, yet all is in order."""
    run = write_run(tmp_path / "run", [info(a(1, 1)), ok(r(1, 1)), fail(a(1, 2))])
    run.plan.unlink()
    origin = Origin(file="history.edn", operations=6)
    manifest = msgspec.structs.replace(read_manifest(run), origin=origin)
    left = {name: one for name, one in manifest.checksums.items() if name != run.plan.name}
    write_manifest(run, msgspec.structs.replace(manifest, checksums=left))
    found = analyze(run, executor="local")

    assert (found.outcome, found.reasons) == ("valid", ())


def test_a_fault_without_proof_makes_a_run_unknown(tmp_path: Path) -> None:
    unproven = Fault("kill", "n1", 3, 5, effective=False)
    unhealed = Fault("kill", "n2", 3, None)

    found = analyze(write_run(tmp_path / "run", GOOD, [unproven, unhealed]), executor="local")

    assert found.outcome == "unknown"
    assert any("fault 0 (kill of n1) was never proven effective" in x for x in found.reasons)
    assert any("fault 1 (kill of n2) was never proven healed" in x for x in found.reasons)


def test_a_node_that_never_served_again_makes_a_run_unknown(tmp_path: Path) -> None:
    gone = Fault("kill", "n1", 3, 5, serves=False)

    found = analyze(write_run(tmp_path / "run", GOOD, [gone]), executor="local")

    assert found.outcome == "unknown"
    assert any("is gone, and who was hit never served again: no roles" in x for x in found.reasons)


def test_no_ok_after_the_last_heal_makes_a_run_unknown(tmp_path: Path) -> None:
    found = analyze(
        write_run(tmp_path / "run", GOOD, [Fault("kill", "n1", 3, 99)]), executor="local"
    )

    assert found.outcome == "unknown"
    assert found.reasons == ("no ok transaction after the last heal at 0.000 s",)


def test_a_violation_outweighs_a_vacuous_run(tmp_path: Path) -> None:
    found = analyze(write_run(tmp_path / "run", LOSS, min_ok=1000), executor="local")

    assert found.outcome == "violation"


def test_what_can_not_be_asked_is_refused_by_name(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run", GOOD)

    with pytest.raises(UsageError, match="unknown executor 'flink'"):
        analyze(run, executor="flink")
    with pytest.raises(UsageError, match="unknown consistency model 'eventual'"):
        analyze(run, executor="local", model="eventual")
    with pytest.raises(UnknownPlugin, match="unknown checker 'nope'"):
        analyze(write_run(tmp_path / "other", GOOD, checkers=("nope",)), executor="local")
    with pytest.raises(MalformedHistory):
        analyze(RunDirectory(tmp_path), executor="local")


@pytest.mark.spark
def test_spark_and_the_process_give_the_same_bytes(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run", LOSS, [KILL])

    on_spark = analyze(run, executor="spark")
    in_process = analyze(run, executor="local")

    assert on_spark.outcome == "violation"
    assert encode(on_spark) == encode(in_process)


@pytest.mark.parametrize(("rate_per_s", "missed"), [(60.0, False), (900.0, True), (None, False)])
def test_an_open_loop_that_fell_behind_is_told_and_decides_nothing(
    rate_per_s: float | None, missed: bool
) -> None:
    txns = [ok(a(1, at), start=at * 20 * MS, finish=at * 20 * MS + MS) for at in range(50)]
    read = ok(r(1, *range(50)), start=2000 * MS, finish=2001 * MS)
    phases = (("drive", 0), ("heal", 1000 * MS))

    found = verdict([*txns, read], checkers=CHECKED, rate_per_s=rate_per_s, phases=phases)

    told = (
        "the load fell behind: 900 transactions a second were asked for, 50 were begun (latency "
        "counts from their intended start)"
    )
    assert found.outcome == "valid"
    assert found.reasons == ((told,) if missed else ())
