"""What the nemesis of an imported history did, as faults with a beginning and an end."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from jepsen_files import edn_lines, txn, write

from harness.history.records import FaultState
from harness.importers.jepsen.imported_history import read_jepsen
from harness.importers.jepsen.nemesis import faults
from harness.importers.jepsen.operation_forms import Remark

FIREDRILL = Path(sys.executable).with_name("firedrill")


def acts(*names: str) -> list[dict[str, Any]]:
    """A client's append between acts of a nemesis, each recorded when it began and when done."""
    ops = [txn("invoke", 0, [["append", 1, 1]])]
    for name in names:
        for _ in range(2):
            ops.append({"type": "info", "process": "nemesis", "f": name, "value": None})
    ops.append(txn("ok", 0, [["append", 1, 1]]))
    return [op | {"time": 1000 * place, "index": place} for place, op in enumerate(ops)]


def bands(tmp_path: Path, *names: str) -> list[tuple[str, int, int]]:
    """(kind, from, to) in places of the file, where the first act begins at 1."""
    rows = read_jepsen(write(tmp_path, edn_lines(acts(*names)))).faults().to_pylist()
    assert {row["state"] for row in rows} <= {FaultState.RECORDED}
    return [(r["kind"], r["injecting_ns"] // 1000, r["healed_ns"] // 1000) for r in rows]


@pytest.mark.parametrize(
    ("first", "second"),
    [
        ("start", "stop"),
        ("start-partition", "stop-partition"),
        ("kill", "start"),
        ("kill-node", "restart-node"),
        ("pause", "resume"),
        ("bump-clock", "reset-clock"),
        ("partition-random-halves", "heal"),
        ("stop", "start"),
    ],
)
def test_an_act_and_the_one_that_undoes_it_are_one_fault(
    tmp_path: Path, first: str, second: str
) -> None:
    assert bands(tmp_path, first, second) == [(first, 1, 4)]


def test_acts_of_several_kinds_end_with_their_own(tmp_path: Path) -> None:
    names = ("start-partition", "kill", "stop-partition", "start", "start-partition")

    assert bands(tmp_path, *names) == [
        ("start-partition", 1, 6),
        ("kill", 3, 8),
        ("start-partition", 9, 10),
    ]


def test_one_that_undoes_all_ends_all(tmp_path: Path) -> None:
    assert bands(tmp_path, "kill", "kill", "start") == [("kill", 1, 6), ("kill", 3, 6)]


@pytest.mark.parametrize("name", ["start-partition", "stop-partition", "rebalance", ":-!", ""])
def test_an_act_without_its_other_half_is_a_mark(tmp_path: Path, name: str) -> None:
    ((_, begun, ended),) = bands(tmp_path, name)

    assert (begun, ended) == (1, 2)


@pytest.mark.parametrize("names", [("start-a%d",), ("start-a%d", "stop-b%d"), ("kill", "stop%d")])
def test_ten_thousand_acts_of_many_names_are_paired_at_once(names: tuple[str, ...]) -> None:
    each = 10_000 // len(names)
    of_names = [name.replace("%d", str(at)) for name in names for at in range(each)]
    remarks = [
        (2 * place + done, Remark(type="info", process="nemesis", f=name, text=""))
        for place, name in enumerate(of_names)
        for done in (0, 1)
    ]
    begun = time.process_time()

    faults(remarks, np.arange(2 * len(of_names)))

    assert time.process_time() - begun < 2


def test_what_a_nemesis_did_explains_a_loss_stands_in_the_report_and_decides_nothing(
    tmp_path: Path,
) -> None:
    ops = acts("start-partition")
    ops += [
        {"type": "info", "process": "nemesis", "f": "stop-partition", "value": None},
        {"type": "info", "process": "nemesis", "f": "stop-partition", "value": "healed"},
        txn("invoke", 1, [["r", 1, None]]),
        txn("ok", 1, [["r", 1, []]]),
    ]
    ops = [op | {"time": 10**6 * place, "index": place} for place, op in enumerate(ops)]
    path = write(tmp_path, edn_lines(ops))

    done = subprocess.run(
        [FIREDRILL, "check", path, "--executor", "local", "--runs-dir", tmp_path / "s"],
        capture_output=True,
        text=True,
        timeout=60,
    )

    assert done.returncode == 1, done.stderr
    assert "during start-partition of the cluster, in force from" in done.stdout
    assert "because:" not in done.stdout, "no fault of theirs is ours to prove"
    page = next((tmp_path / "s").glob("*/report.html")).read_text()
    assert "Its nemesis recorded 1 start-partition" in page
    assert "no faults" not in page
