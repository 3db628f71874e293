"""A small part of the damage that ``evidence_fuzz.py`` does at full size to ten runs and more."""

from __future__ import annotations

import os
import random
import shutil
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
from evidence_fuzz import (
    EMPTIED,
    FLIPPED,
    REMOVED,
    SWAPPED,
    TRUNCATED,
    Damage,
    Found,
    Recorded,
    all_tried,
    damages,
    files_of,
    recorded,
    tried,
    wrong,
)

from harness.history import evidence
from harness.history.regular_files import FileStamp, stamp
from harness.history.run_directory import LogSum

RUNS = Path(__file__).with_name("runs")
COUNT = int(os.environ.get("FIREDRILL_DAMAGES", "60"))  # of truncations, and of flips


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Recorded, ...]]:
    """Copies, since only files of one file system can be shared."""
    root = tmp_path_factory.mktemp("evidence")
    copies = [shutil.copytree(run, root / run.name) for run in sorted(RUNS.iterdir())]
    before = signal.getsignal(signal.SIGALRM)
    try:
        yield recorded(copies, root)
    finally:  # what ends a judgement that hangs is of this module alone
        signal.signal(signal.SIGALRM, before)


def test_the_runs_are_a_violation_two_valid_ones_and_a_prefix(runs: tuple[Recorded, ...]) -> None:
    assert [(run.root.name, run.outcome, run.sealed) for run in runs] == [
        ("sim-forgotten-vote", "violation", True),
        ("sim-valid", "valid", True),
        ("sim-zoned", "valid", True),
        ("two-drivers-killed", "unknown", False),
    ]


def test_no_damage_turns_a_verdict_or_goes_unnoticed(
    runs: tuple[Recorded, ...], tmp_path: Path
) -> None:
    draw = random.Random(14)
    planned = damages(runs, draw, truncations=COUNT, flips=COUNT)
    kinds = {damage.kind for damage in planned}
    assert kinds == {TRUNCATED, FLIPPED, REMOVED, EMPTIED, SWAPPED}

    found = list(all_tried(runs, planned, runs[0].root.parent, workers=2))

    bad = [(wrong(runs[f.damage.run], f), f) for f in found if wrong(runs[f.damage.run], f)]
    assert bad == []
    assert len(found) == len(planned)


def test_what_is_looked_for_is_seen(runs: tuple[Recorded, ...]) -> None:
    violation, valid, zoned, prefix = runs

    def after(run: int, outcome: str, *, changed: bool = True, name: str = "plan.toml") -> Found:
        damage = Damage(run=run, name=name, kind=FLIPPED)
        return Found(damage=damage, outcome=outcome, changed=changed)

    assert wrong(violation, after(0, "valid")) == "violation turned valid"
    assert wrong(valid, after(1, "violation")) == "valid turned violation"
    assert wrong(prefix, after(3, "valid")) == "unknown turned valid"
    assert wrong(valid, after(1, "valid", changed=False)) == "unnoticed"
    for name in ("claims.parquet", "claims_judged.parquet", "assignments.parquet"):
        assert wrong(zoned, after(2, "valid", changed=False, name=name)) == "unnoticed"
    assert wrong(valid, after(1, "valid", changed=False, name="reaper.log")) == ""
    assert wrong(valid, after(1, "traceback")) == "traceback"


def test_damage_of_a_nodes_log_is_looked_for_and_noticed(
    runs: tuple[Recorded, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    for number, run in enumerate(runs):
        logs = [name for name in files_of(run) if name.endswith("node.log")]
        assert len(logs) >= 3
        assert [run.rests_on(name) for name in logs] == [run.sealed] * len(logs)
        planned = [
            Damage(run=number, name=name, kind=FLIPPED, place=place)
            for name in logs[:1]
            for place in (80, 800, 8000)
        ]
        found = [tried(runs, damage, run.root.parent) for damage in planned]
        assert [wrong(run, one) for one in found] == [""] * len(planned)

    def unsummed(path: Path, _: LogSum) -> FileStamp | None:
        return stamp(path)

    # An engine that compares no sum of a log has to be seen.
    monkeypatch.setattr(evidence, "_require_log", unsummed)
    _, valid, *_ = runs
    damage = Damage(run=1, name="nodes/n1/node.log", kind=FLIPPED, place=80)
    unseen = tried(runs, damage, valid.root.parent)
    assert wrong(valid, unseen) == "unnoticed"


def test_a_file_that_was_never_damaged_changes_nothing(runs: tuple[Recorded, ...]) -> None:
    """Otherwise damage is noticed by the copy alone."""
    for number, run in enumerate(runs):
        name = "chunks/w0-000000.chunk" if not run.sealed else "states.parquet"
        whole = (run.root / name).stat().st_size
        damage = Damage(run=number, name=name, kind=TRUNCATED, place=whole)

        found = tried(runs, damage, run.root.parent)
        assert (found.outcome, found.changed) == (run.outcome, False), found.text


def test_a_panic_planted_in_a_log_of_a_run_that_was_never_sealed_accuses_nobody(
    runs: tuple[Recorded, ...], tmp_path: Path
) -> None:
    planted = tmp_path / "planted.log"
    for number, run in enumerate(runs):
        log = "nodes/n1/node.log"
        whole = (run.root / log).read_bytes()
        planted.write_bytes(whole + b"Fatal Python error: planted\n")
        found = tried(
            runs, Damage(run=number, name=log, kind=SWAPPED, other=planted), run.root.parent
        )
        assert wrong(run, found) == "", found.text
        assert ("panic was seen, but" in found.text) is not run.sealed
        assert ("has grown since it was sealed" in found.text) is run.sealed
