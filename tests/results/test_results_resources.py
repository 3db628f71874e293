"""What nodes used, on the axis of the run."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from matplotlib.figure import Figure
from msgspec.structs import replace
from synthetic_run import BREAKS, build, valid, write_verdict

from harness.clock import NS_PER_S
from harness.history.manifest import read_manifest, write_manifest
from harness.history.regular_files import sha256
from harness.run.node_usage import USAGE, USAGE_FILE
from results.drawing.resources import NODES_MAX, POINTS_MAX, draw, panels
from results.report.render import write_report

MIB = 1 << 20


def sample(at_s: int, node: str, cpu_s: float | None, **more: int) -> dict[str, object]:
    return dict.fromkeys(USAGE.names) | {
        "at_ns": at_s * NS_PER_S, "node": node, "cpu_s": cpu_s, **more,
    }  # fmt: skip


def test_sums_that_grow_are_shown_a_second_and_a_restart_is_a_gap() -> None:
    rows = [
        sample(1, "n1", 1.0, memory_bytes=5 * MIB),
        sample(3, "n1", 2.0, memory_bytes=6 * MIB),
        sample(4, "n1", 0.1, memory_bytes=1 * MIB),
    ]

    cpu, memory = panels(pa.Table.from_pylist(rows, schema=USAGE))

    assert [cpu.label, memory.label] == ["CPU (cores)", "memory (MiB)"]
    np.testing.assert_array_equal(cpu.curves[0].value, [0.5, np.nan])
    np.testing.assert_array_equal(memory.curves[0].value, [5.0, 6.0, 1.0])


def test_both_ways_of_a_disk_count_together() -> None:
    rows = [
        sample(1, "n1", None, read_bytes=0, written_bytes=0),
        sample(2, "n1", None, read_bytes=MIB, written_bytes=3 * MIB),
    ]

    (disk,) = panels(pa.Table.from_pylist(rows, schema=USAGE))

    assert (disk.label, disk.curves[0].value.tolist()) == ("disk (MiB/s)", [4.0])


def test_the_plot_shows_what_was_sampled_and_none_where_nothing_was(tmp_path: Path) -> None:
    run = build(tmp_path / "run", duration_s=20.0, rate_per_s=5.0, breaks=BREAKS[:1])
    write_verdict(run, valid())
    before = write_report(run).read_text()
    rows = [sample(at, node, at / 4) for at in range(4, 20) for node in ("n1", "n2")]
    pq.write_table(pa.Table.from_pylist(rows, schema=USAGE), run.root / USAGE_FILE)
    explaining = {USAGE_FILE: sha256(run.root / USAGE_FILE)}
    write_manifest(run, replace(read_manifest(run), explaining=explaining))

    after = write_report(run).read_text()

    assert "resources over time" not in before
    assert "resources over time" in after
    assert "CPU" in after


def test_nodes_come_in_the_order_of_their_numbers_and_the_rest_is_told() -> None:
    nodes = [f"n{number}" for number in range(1, NODES_MAX + 5)]
    rows = [sample(at, node, None, memory_bytes=MIB) for at in (1, 2) for node in nodes]
    (memory,) = panels(pa.Table.from_pylist(rows, schema=USAGE))
    axes = Figure().subplots()

    notes = draw([axes], (memory,))

    assert [curve.node for curve in memory.curves] == nodes
    assert [line.get_label() for line in axes.get_lines()] == nodes[:NODES_MAX]
    assert notes == ("What 4 more nodes used is not drawn.",)


def test_no_peak_is_lost_where_there_are_too_many_points() -> None:
    count = 3 * POINTS_MAX + 1
    rows = [sample(at, "n1", None, memory_bytes=MIB) for at in range(count)]
    rows[100] = sample(100, "n1", None, memory_bytes=9 * MIB)

    (memory,) = panels(pa.Table.from_pylist(rows, schema=USAGE))

    assert len(memory.curves[0].value) <= POINTS_MAX
    assert memory.curves[0].value.max() == 9.0
