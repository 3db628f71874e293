"""What was not even tried; and when the controller's own weakness makes a run say nothing."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from checker_histories import STRICT, Fault, a, fail, ok, r, write_run

from checkers.engine.analyze import analyze
from checkers.engine.source import Source
from checkers.promises import controller_overload
from harness.history.manifest import read_manifest, write_manifest
from harness.history.regular_files import sha256
from harness.history.run_directory import RunDirectory
from harness.protocols.fault_kinds import RecordedFaultKind
from harness.protocols.setting import Setting
from harness.protocols.verdict import Coverage, Memory
from harness.run.controller_health import SCHEMA

S = 1_000_000_000
MS = 1_000_000
GOOD = [ok(a(1, 1)), ok(r(1, 1)), ok(r(1, 1), start=90 * MS, finish=91 * MS)]
LEADER = ("leader of partition 1", "metastorage leader", "follower of partition 0")


def with_arsenal(run: RunDirectory, *kinds: RecordedFaultKind) -> RunDirectory:
    write_manifest(run, msgspec.structs.replace(read_manifest(run), arsenal=kinds))
    return run


def test_cells_are_kinds_by_roles_and_the_empty_ones_are_named(tmp_path: Path) -> None:
    faults = [
        Fault("kill", "leader of partition 1", 10 * MS, 20 * MS, ("n1",), LEADER),
        Fault("kill", "n2", 30 * MS, 40 * MS, ("n2",), ("follower of partition 1",)),
        Fault("pause", "n2", 50 * MS, 60 * MS, ("n2",), ("primary of partition 2",)),
        Fault("ring", "all", 50 * MS, 60 * MS, ("n3",), LEADER),
    ]
    kinds = (
        RecordedFaultKind(kind="freeze"),
        RecordedFaultKind(kind="kill"),
        RecordedFaultKind(kind="pause"),
        RecordedFaultKind(kind="ring", of_nodes=False),
    )

    found = analyze(
        with_arsenal(write_run(tmp_path / "run", GOOD, faults), *kinds), executor="local"
    )

    cells = found.coverage.cells
    assert list(cells) == ["freeze", "kill", "pause"]
    assert cells["kill"] == {
        "primary of a partition": 1,
        "other voter": 2,
        "metastorage leader": 1,
    }
    assert cells["pause"]["primary of a partition"] == 1
    assert (found.coverage.hit, found.coverage.of) == (4, 9)
    assert found.coverage.empty == (
        "freeze of a primary of a partition",
        "freeze of another voter",
        "freeze of a metastorage leader",
        "pause of another voter",
        "pause of a metastorage leader",
    )


def test_a_fault_without_proven_effect_covers_nothing(tmp_path: Path) -> None:
    fault = Fault("kill", "n1", 10 * MS, 20 * MS, ("n1",), LEADER, effective=False)
    run = with_arsenal(write_run(tmp_path / "run", GOOD, [fault]), RecordedFaultKind(kind="kill"))

    found = analyze(run, executor="local")

    assert found.outcome == "unknown"
    assert found.coverage.hit == 0


def test_runs_from_elsewhere_have_no_coverage(tmp_path: Path) -> None:
    assert analyze(write_run(tmp_path / "run", GOOD), executor="local").coverage == Coverage()


def health(*rows: tuple[float, float, float | None]) -> pa.Table:
    """Seconds with (at, lateness, share of CPU)."""
    told = [
        {"at_ns": int(at * S), "length_ns": S, "late_ns": int(late * S), "cpu_share": share}
        for at, late, share in rows
    ]
    return pa.Table.from_pylist(told, schema=SCHEMA)


def judged(table: pa.Table) -> Any:
    setting = Setting(
        model="serializable", declaration=STRICT, phases=(("drive", 10 * S), ("heal", 100 * S))
    )
    return controller_overload.CHECKER.judge({"controller": table}, setting, Source.of_tables)  # type: ignore[arg-type]


def test_a_controller_that_kept_up_is_told_and_changes_nothing() -> None:
    part = judged(health(*((10 + i, 0.01, 0.3) for i in range(30))))

    assert part.outcome == "valid"
    assert part.controller.cpu_share == 0.3
    assert part.controller.late_share == 0.0


def test_the_memory_of_a_controller_is_told_from_where_driving_began() -> None:
    table = health(*((i, 0.01, 0.3) for i in range(40)))
    grown = pa.array([(50 + i) << 20 for i in range(40)])
    part = judged(table.set_column(4, SCHEMA.field("resident_bytes"), grown))

    first, last = 60 << 20, 89 << 20
    assert part.controller.resident_bytes == Memory(first=first, most=last, last=last)
    assert judged(table).controller.resident_bytes is None


def test_one_long_stall_makes_a_run_inconclusive() -> None:
    calm = [(10.0 + i, 0.01, 0.3) for i in range(30)]

    part = judged(health(*calm, (40, 3.25, 0.4)))

    assert part.outcome == "unknown"
    (reason,) = part.reasons
    assert "its loop stood still for 3.250 s at about 40.000 s" in reason
    assert "with 30% of a core used" in reason


def test_being_late_often_makes_a_run_inconclusive_and_rarely_does_not() -> None:
    calm = [(10.0 + i, 0.01, None) for i in range(30)]

    rare = judged(health(*calm, (40, 0.4, None)))
    often = judged(health(*calm, *((40 + i, 0.4, None) for i in range(8))))

    assert rare.outcome == "valid"
    assert often.outcome == "unknown"
    assert "in 21% of the drive phase" in often.reasons[0]


def test_what_happens_before_and_after_the_drive_phase_is_not_held_against_it() -> None:
    calm = [(10.0 + i, 0.01, 0.3) for i in range(30)]

    assert judged(health((2, 9.0, 1.0), *calm, (101, 9.0, 1.0))).outcome == "valid"


@pytest.mark.parametrize("vouched", [True, False])
def test_the_file_counts_only_where_the_manifest_vouches_for_it(
    tmp_path: Path, vouched: bool
) -> None:
    run = write_run(tmp_path / "run", GOOD)
    pq.write_table(health((0, 5.0, 0.1)), run.controller)
    if vouched:
        manifest = read_manifest(run)
        checksums = manifest.checksums | {run.controller.name: sha256(run.controller)}
        write_manifest(run, msgspec.structs.replace(manifest, checksums=checksums))

    found = analyze(run, executor="local")

    assert found.outcome == "unknown"
    assert (found.controller.longest_stall_ns is not None) is vouched
    # What nobody vouches for is named, and not read.
    assert (run.controller.name in " ".join(found.reasons)) is not vouched


def test_a_cluster_that_nobody_reached_is_called_unreachable(tmp_path: Path) -> None:
    lost = [fail(a(1, i), error="UNREACHABLE", phase="connect") for i in range(4)]

    found = analyze(write_run(tmp_path / "run", lost), executor="local")

    assert found.outcome == "unknown"
    assert (
        "the cluster was unreachable: no transaction succeeded, and 4 of 4 got no connection "
        "(UNREACHABLE 4)"
    ) in found.reasons


def test_one_that_answers_with_refusals_is_not(tmp_path: Path) -> None:
    refused = [fail(a(1, i), error="TX-CONFLICT", phase="commit") for i in range(4)]

    found = analyze(write_run(tmp_path / "run", refused), executor="local")

    assert found.outcome == "unknown"
    assert not any("unreachable" in reason for reason in found.reasons)
