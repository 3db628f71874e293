"""``firedrill campaign``: every cell once, whatever ends it, and one page."""

from __future__ import annotations

import json
import math
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest
from run_stores import made
from small_campaign import BUGGY, PLAN

from cli.campaign import Runner, past_by_axes, places_of_shard
from cli.campaign_plans import DEFAULTS, FIXED
from cli.cells import code_digest, run_on_nodes
from cli.main import execute
from harness.campaigns.cell import Cell, RunStats, result_of
from harness.campaigns.cell_table import CampaignTable, CellRow
from harness.campaigns.ledger import Ledger
from harness.campaigns.matrix import AXES, CampaignFile, Past, Place, places, read
from harness.errors import HarnessError
from harness.exit_codes import Outcome
from harness.history.run_directory import RunDirectory
from harness.plan.plan import load, loads
from results.store.store import RunStore

FIREDRILL = Path(sys.executable).with_name("firedrill")
CAMPAIGN = """
name = "night"
plan = "base.toml"
seeds = 2
repeats = 1
[matrix]
workload = ["list-append", "register"]
faults = ["kill", "pause"]
"""
CODE = code_digest()
TIMES = ("wall_s", "run", "shrunk")  # what differs from machine to machine


@pytest.fixture
def file(tmp_path: Path) -> Path:
    (tmp_path / "base.toml").write_text(PLAN)
    path = tmp_path / "night.toml"
    path.write_text(CAMPAIGN)
    return path


def table(store: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((store / "campaigns/night/campaign.json").read_bytes())
    return found


def plain(found: dict[str, Any]) -> list[dict[str, Any]]:
    return [{k: v for k, v in cell.items() if k not in TIMES} for cell in found["cells"]]


def results(store: Path) -> list[str]:
    return (store / "campaigns/night/campaign.jsonl").read_text().splitlines()


def test_shards_merge_to_the_whole_and_a_killed_one_goes_on(
    file: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    whole, one, two = (tmp_path / name for name in ("whole", "one", "two"))
    running = subprocess.Popen(
        [FIREDRILL, "campaign", file, "--runs-dir", whole, "--jobs", "1"],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    ledger = whole / "campaigns/night/campaign.jsonl"
    while running.poll() is None and not (ledger.exists() and len(results(whole)) >= 2):
        time.sleep(0.05)
    os.kill(running.pid, signal.SIGKILL)
    running.wait()

    assert execute(["campaign", str(file), "--runs-dir", str(whole)]) == 0
    assert len(results(whole)) == len(table(whole)["cells"]) == 8
    for number, store in enumerate((one, two), start=1):
        of = ["--runs-dir", str(store), "--shard", f"{number}/2"]
        assert execute(["campaign", str(file), *of]) == 0
        assert len(results(store)) == 4
    merged = ["campaign", str(file), "--runs-dir", str(one), "--merge", str(two), "--no-run"]
    assert execute(merged) == 0
    assert plain(table(one)) == plain(table(whole))
    lost = [*merged, "--merge", str(tmp_path / "lost")]
    capsys.readouterr()
    assert execute(lost) == 2
    said = capsys.readouterr()
    assert f"--merge: {tmp_path}/lost is not there" in said.out + said.err
    page = (one / "campaigns/night/campaign.html").read_text()
    assert page.count("workload=register faults=pause") == 3  # a line of the matrix, two seeds


def test_what_a_killed_repetition_left_goes_where_all_cells_are_known(
    file: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file.write_text('name = "night"\nplan = "base.toml"\n[matrix]\nfaults = ["kill"]\n')
    store = RunStore(tmp_path / "runs")
    command = ["campaign", str(file), "--runs-dir", str(store.root)]
    assert execute(command) == 0
    made(store, "night", time.time_ns(), b"ab")
    assert len(store.runs()) == 2
    capsys.readouterr()

    assert execute(command) == 0

    assert len(store.runs()) == 1
    assert "1 of 1 cells are known" in capsys.readouterr().err


def test_a_shard_that_ran_nothing_is_merged_and_another_store_is_refused(
    file: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    empty, stranger = tmp_path / "part", tmp_path / "else"
    stranger.mkdir()
    assert execute(["campaign", str(file), "--no-run", "--runs-dir", str(empty)]) == 2
    merge = ["campaign", str(file), "--no-run", "--runs-dir", str(tmp_path / "a"), "--merge"]
    capsys.readouterr()

    assert execute([*merge, str(empty)]) == 2
    assert "part ran no cell of the campaign" in capsys.readouterr().err
    assert execute([*merge, str(stranger)]) == 254


def test_a_cell_on_real_nodes_has_figures_too(
    file: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file.write_text(
        'name = "night"\nplan = "base.toml"\n[matrix]\nprovider = ["process"]\n'
        'faults = ["kill"]\n"check.executor" = ["local"]\n'
        '"drive.overtime_s" = [60.0]\n'  # a busy machine starts a killed node late
    )

    assert execute(["campaign", str(file), "--runs-dir", str(tmp_path / "a")]) == 0

    (cell,) = table(tmp_path / "a")["cells"]
    assert cell["operations"] > 0
    assert 0 < cell["ok_share"] <= 1
    out = capsys.readouterr().out
    assert re.search(r"^kill +\d+ +\d+ +\d+$", out, re.MULTILINE)
    assert "simulated with" not in out


@pytest.mark.parametrize("left", [True, False])
def test_a_run_that_its_environment_broke_is_the_one_of_its_cell(
    left: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = tmp_path / "20261101-020000-night-0001"

    def broken(*_: object, begun: Callable[[RunDirectory], None], **__: object) -> RunDirectory:
        root.mkdir()
        begun(RunDirectory(root))
        if not left:  # nothing was written into it
            root.rmdir()
        raise HarnessError("the network is gone")

    monkeypatch.setattr("cli.wiring.run_plan", broken)
    told: list[Path] = []

    result = run_on_nodes(Cell(plan=loads("seed = 1")), told.append, runs_dir=tmp_path)

    assert told == [root]
    assert (result.outcome, result.run) == (Outcome.HARNESS_ERROR, str(root) if left else "")


@pytest.mark.parametrize(("budget_s", "left"), [(math.inf, "8.33 min"), (60.0, "1 min")])
def test_the_time_that_is_left_is_at_most_the_budget(
    budget_s: float, left: str, tmp_path: Path
) -> None:
    cells = [Cell(plan=load(None, {"seed": 1}, usual=DEFAULTS | FIXED), limit_s=1.0)] * 101
    runner = Runner(
        cells={},
        ledger=Ledger(),
        store=RunStore(tmp_path),
        jobs=1,
        end_s=time.monotonic() + budget_s,
    )

    assert runner.progress(1, cells, "cells", 1) == f"1 of 101 cells, about {left} left"


def test_results_that_cannot_be_merged_are_counted_and_the_first_is_named(
    file: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    line = {"code": "x", "result": {"key": "k"}, "crc": 1}
    lines = [json.dumps(line) + "\n", "garbage\n", "[" * 100_000 + "\n", '{"code": "']
    (tmp_path / "two").mkdir()
    (tmp_path / "two" / "campaign.jsonl").write_text("".join(lines))
    merging = ["campaign", str(file), "--runs-dir", str(tmp_path / "one"), "--no-run", "--merge"]

    execute([*merging, str(tmp_path / "two")])

    said = capsys.readouterr().out
    assert f"--merge: 4 lines of {tmp_path}/two/campaign.jsonl can't be used, line 1 first" in said
    assert "its sum is wrong" in said


@pytest.fixture
def halves(file: Path, tmp_path: Path) -> list[str]:
    """A campaign of two cells, one in the ledger of each of two stores; the command joins them."""
    file.write_text('name = "night"\nplan = "base.toml"\nseeds = 2\nrepeats = 0\n[matrix]\n')
    for number in (1, 2):
        of = ["--runs-dir", str(tmp_path / str(number)), "--shard", f"{number}/2"]
        assert execute(["campaign", str(file), *of]) == 0
    merge = ["--merge", str(tmp_path / "1"), "--merge", str(tmp_path / "2"), "--no-run"]
    return ["campaign", str(file), "--runs-dir", str(tmp_path / "joined"), *merge]


@pytest.mark.parametrize("spoil", [lambda line: line[:-9], lambda line: line.replace("code", "k")])
def test_a_merge_that_lost_results_is_not_green(
    spoil: Callable[[str], str], halves: list[str], tmp_path: Path
) -> None:
    ledger = tmp_path / "2" / "campaigns/night/campaign.jsonl"
    whole = ledger.read_text()
    ledger.write_text(spoil(whole))
    assert execute(halves) == 2
    assert "--merge: " in (tmp_path / "joined/campaigns/night/campaign.html").read_text()
    ledger.write_text(whole)
    assert execute(halves) == 0


def test_of_a_cell_that_both_stores_ran_the_violation_stays(
    halves: list[str], tmp_path: Path
) -> None:
    one, two = (Ledger.read(tmp_path / n / "campaigns/night/campaign.jsonl", CODE) for n in "12")
    (known,) = one.known.values()
    two.add(msgspec.structs.replace(known, outcome=Outcome.VIOLATION, anomalies={"G0": 1}))

    assert execute(halves) == 1
    assert [cell["outcome"] for cell in table(tmp_path / "joined")["cells"]].count("valid") == 1


@pytest.mark.parametrize("content", [None, b"", b"[" * 100_000, b'{"\xff'])
def test_durations_that_are_no_table_are_refused(
    content: bytes | None, file: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "table"
    if content is None:
        os.mkfifo(path)
    else:
        path.write_bytes(content)
    of = ["--shard", "1/2", "--durations", str(path), "--runs-dir", str(tmp_path / "s")]

    assert execute(["campaign", str(file), *of]) == 254
    assert f"{path}: expected the table of a campaign: " in capsys.readouterr().err


def test_shards_of_fresh_seeds_are_balanced_by_what_their_cells_took(
    file: Path, tmp_path: Path
) -> None:
    def cells(seed: int) -> dict[Place, Cell]:
        asked = msgspec.structs.replace(read(file), seed=seed)
        found = places(asked)
        return {place: Cell(plan=loads(f"seed = {place.seed}")) for place in found}

    then, now = cells(1), cells(2)
    slow = {place.axes for place in then if place.values[1][1] == "kill"}
    rows = tuple(
        CellRow(
            axes=dict(place.values),
            seed=place.seed,
            key=cell.key,
            times=1,
            wall_s=90.0 if place.axes in slow else 1.0,
        )
        for place, cell in then.items()
    )
    path = tmp_path / "campaign.json"
    path.write_bytes(
        msgspec.json.encode(CampaignTable(name="n", outcome=Outcome.VALID, cells=rows))
    )

    shards = [places_of_shard(now, f"{number}/4", path) for number in range(1, 5)]

    assert sum(map(len, shards)) == len(now) == 8
    assert [sum(place.axes in slow for place in shard) for shard in shards] == [1, 1, 1, 1]


def test_a_cell_is_red_as_long_as_any_of_its_seeds_is() -> None:
    first, second = (Cell(plan=loads(f"seed = {seed}")) for seed in (1, 2))
    axes = {first.key: "workload=bank", second.key: "workload=bank"}

    def past(*outcomes: tuple[Cell, Outcome]) -> Past:
        results = [("code", result_of(cell, outcome)) for cell, outcome in outcomes]
        return past_by_axes(results, axes, "code")["workload=bank"]

    red, green = Outcome.VIOLATION, Outcome.VALID
    assert past((first, red), (second, green)) == Past(runs=2, red=True)
    assert past((first, red), (second, green), (first, green)) == Past(runs=3)


def test_what_faults_have_met_in_a_cell_is_known_of_all_its_runs() -> None:
    cell = Cell(plan=loads("seed = 1"))
    hits: list[dict[str, dict[str, int]]] = [
        {"kill": {"other voter": 2, "metastorage leader": 0}},
        {"kill": {"metastorage leader": 1}, "pause": {"other voter": 1}},
    ]
    results = [
        (
            "code",
            msgspec.structs.replace(result_of(cell, Outcome.VALID), stats=RunStats(hits=each)),
        )
        for each in hits
    ]

    found = past_by_axes(results, {cell.key: "workload=bank"}, "code")["workload=bank"]

    assert found == Past(
        runs=2,
        covered=frozenset(
            {("kill", "other voter"), ("kill", "metastorage leader"), ("pause", "other voter")}
        ),
    )


def test_what_fails_is_run_again_and_shrunk(
    file: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "base.toml").write_text(BUGGY)
    file.write_text(
        'name = "night"\nplan = "base.toml"\nrepeats = 1\n[matrix]\nfaults = ["kill"]\n'
    )

    assert execute(["campaign", str(file), "--runs-dir", str(tmp_path / "runs")]) == 1

    (cell,) = table(tmp_path / "runs")["cells"]
    assert cell["label"] == "reproducible 2 of 2, byte for byte"
    assert Path(cell["shrunk"]).is_file()
    out = capsys.readouterr().out
    assert "faults=kill, seed 0: VIOLATION" in out
    assert "smallest plan" in (tmp_path / "runs/campaigns/night/campaign.html").read_text()

    # The table can be made again from what is known, and says the same.
    assert execute(["campaign", str(file), "--runs-dir", str(tmp_path / "runs"), "--no-run"]) == 1
    assert plain(table(tmp_path / "runs")) == plain({"cells": [cell]})


@pytest.mark.parametrize("shard", ["0/2", "3/2", "1", "a/b", "1/0"])
def test_a_shard_that_is_none_is_refused(shard: str, file: Path, tmp_path: Path) -> None:
    of = ["--runs-dir", str(tmp_path / "runs"), "--shard", shard]

    assert execute(["campaign", str(file), *of]) == 254
    assert execute(["campaign", str(file), *of, "--no-run"]) == 254


def test_a_campaign_of_a_plan_that_is_refused_names_the_cell(
    file: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file.write_text('plan = "base.toml"\n[matrix]\n"drive.rate_per_s" = [10.0, -1.0]\n')

    assert execute(["campaign", str(file), "--runs-dir", str(tmp_path / "runs")]) == 254
    assert "drive.rate_per_s=-1.0" in capsys.readouterr().err


def test_the_short_drill_is_one_on_nodes_too(file: Path, tmp_path: Path) -> None:
    file.write_text('name = "night"\n[matrix]\nprovider = ["sim", "process"]\nfaults = ["kill"]\n')

    # Nothing of the simulated machine is in the plan of another.
    assert execute(["campaign", str(file), "--no-run", "--runs-dir", str(tmp_path / "a")]) == 2

    assert [cell["axes"]["provider"] for cell in table(tmp_path / "a")["cells"]] == [
        "sim",
        "process",
    ]


def test_a_fifo_is_no_campaign_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    os.mkfifo(tmp_path / "night.toml")

    assert execute(["campaign", str(tmp_path / "night.toml")]) == 254
    assert "it is a FIFO, expected a regular file" in capsys.readouterr().err


def test_the_file_of_the_guide_is_one(tmp_path: Path) -> None:
    guide = (Path(__file__).parents[2] / "docs" / "campaigns.md").read_text()
    path = tmp_path / "night.toml"
    path.write_text(guide.partition("```toml\n")[2].partition("```")[0])

    asked = read(path)

    assert len(places(asked)) == (4 * 2 - 2) * 4
    assert set(msgspec.structs.asdict(asked)) == set(CampaignFile.__struct_fields__)
    for axis in AXES:
        assert f"`{axis}`" in guide


@pytest.mark.parametrize("link", ["campaigns", "campaigns/night", "campaigns/night/campaign.jsonl"])
@pytest.mark.parametrize("more", [(), ("--again",)])
def test_nothing_is_written_through_a_link(
    link: str, more: tuple[str, ...], file: Path, tmp_path: Path
) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    name = tmp_path / "runs" / link
    name.parent.mkdir(parents=True)
    target = outside / "target"
    if link.endswith(".jsonl"):
        target.write_text("")
    else:
        target.mkdir()
    name.symlink_to(target)

    assert execute(["campaign", str(file), "--runs-dir", str(tmp_path / "runs"), *more]) >= 254

    assert [*outside.iterdir()] == [target]
    assert [*target.iterdir()] == [] if target.is_dir() else target.read_text() == ""


def test_a_plan_that_no_run_can_carry_out_is_refused_before_any(
    file: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file.write_text(CAMPAIGN + '"drive.duration_s" = [3.0, 1.0]\n')

    assert execute(["campaign", str(file), "--runs-dir", str(tmp_path / "runs")]) == 254

    assert "drive.duration_s=1.0" in capsys.readouterr().err
    assert not [*(tmp_path / "runs").glob("*-sim-*")]
