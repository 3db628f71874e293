"""Runs whose controller was killed, at the end of them or on a medium that takes nothing any more:
they can be judged all the same.
"""

from __future__ import annotations

import hashlib
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest
from capabilities import lacking
from stranger_kit import NAME, PLAN, firedrill, sound_run

from cli.judging.steps import recovered
from harness.errors import MalformedHistory
from harness.history.load import load
from harness.history.manifest import PREFIX, read_manifest, write_manifest
from harness.history.run_directory import RunDirectory
from harness.history.seal import recover

SETTLED = PLAN.replace("min_ok = 1", "min_ok = 2")


def settling(root: Path, *, named: bool) -> RunDirectory:
    """A run that died while it put the plan with settled offsets into the place of its plan: before
    or after its manifest ``named`` that.
    """
    run = sound_run(root, sealed=False)
    run.settled_plan.write_text(SETTLED)
    if named:
        manifest = read_manifest(run)
        sums = manifest.checksums | {run.plan.name: hashlib.sha256(SETTLED.encode()).hexdigest()}
        write_manifest(run, msgspec.structs.replace(manifest, checksums=sums))
    return run


@pytest.mark.parametrize("named", [False, True])
def test_a_controller_that_dies_while_it_settles_its_plan_leaves_a_run_to_judge(
    named: bool, tmp_path: Path
) -> None:
    run = settling(tmp_path / NAME, named=named)

    recover(run)

    assert run.plan.read_text() == (SETTLED if named else PLAN)
    assert not run.settled_plan.exists()
    assert load(run).manifest.state == PREFIX


def test_another_plan_than_the_one_that_is_named_is_refused(tmp_path: Path) -> None:
    run = settling(tmp_path / NAME, named=True)
    run.settled_plan.write_text(SETTLED + "#")

    with pytest.raises(MalformedHistory, match=r"plan\.toml"):
        recover(run)


@pytest.fixture
def medium(tmp_path: Path) -> Iterator[Path]:
    """A store of two runs of a killed controller on a disk that can only be read; the second one
    lost a write.
    """
    store = tmp_path / "runs"
    store.mkdir()
    made = ["mount", "-t", "tmpfs", "-o", "size=4m", "tmpfs", str(store)]
    if subprocess.run(made, capture_output=True, check=False).returncode:
        lacking("only root can mount a disk of its own")
    try:
        for number, lost in enumerate((False, True)):
            run = sound_run(store / f"{NAME[:-1]}{number}", lost=lost, sealed=False)
            (run.chunks / "reserve-0000").write_bytes(bytes(1 << 16))
            os.mkfifo(run.node("n1") / "data")
        subprocess.run(["mount", "-o", "remount,ro", str(store)], check=True)
        yield store
    finally:
        subprocess.run(["umount", "--lazy", str(store)], check=True)


def test_a_killed_run_is_judged_where_nothing_can_be_written(medium: Path, tmp_path: Path) -> None:
    words = ("--executor", "local", "--runs-dir", str(medium))
    there = tmp_path / "there"
    for number, code in enumerate((2, 1)):
        name = f"{NAME[:-1]}{number}"
        ended = firedrill("check", name, *words, cwd=tmp_path)

        assert ended.code == code, ended.said
        assert "can only be read: it is recovered in a copy, which is not kept" in ended.err
        assert ended.err.count("is not stored (--output DIR stores it elsewhere)") == 1
    ended = firedrill("check", name, *words, "--output", str(there), cwd=tmp_path)

    assert ended.code == 1, ended.said
    assert (there / "analysis" / "verdict.json").is_file()
    assert "lost-write" in (there / "report.html").read_text()


def test_the_copy_holds_what_the_run_held_and_no_link(medium: Path) -> None:
    run = RunDirectory(medium / f"{NAME[:-1]}0")

    copy = recovered(run, lambda _: None)

    assert copy.root != run.root
    assert copy.verdict == run.verdict
    assert load(copy).manifest.run_id == read_manifest(run).run_id
    assert sorted(path.name for path in copy.node("n1").iterdir()) == ["node.log"]
