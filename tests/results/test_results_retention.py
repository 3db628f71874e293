"""Which runs may go, and that going leaves nothing but the others."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from run_stores import made

from cli.main import execute
from harness.history.run_directory import RunDirectory
from results.report.run_index import INDEX
from results.store.index import index_path, opened
from results.store.retention import Rule, RunRecord, begun_at, to_prune
from results.store.store import RunStore

NOW = datetime(2026, 11, 21, 12, tzinfo=UTC)
DAY_S = 86_400.0
FAILED = frozenset({"violation"})
OLD = RunRecord(run_id="20261101-120000-drill-0001", outcome="valid")
BAD = RunRecord(run_id="20261102-120000-drill-0002", outcome="violation")
CUT = RunRecord(run_id="20261103-120000-drill-0003", outcome=None)
NEW = RunRecord(run_id="20261121-110000-drill-0004", outcome="valid")
RUNS = (NEW, CUT, BAD, OLD)


@pytest.mark.parametrize(
    ("rule", "gone"),
    [
        (Rule(keep_last=0), (OLD, BAD, CUT, NEW)),
        (Rule(keep_last=3), (OLD,)),
        (Rule(keep_last=9), ()),
        (Rule(older_than_s=14 * DAY_S), (OLD, BAD, CUT)),
        (Rule(older_than_s=14 * DAY_S, keep_last=2), (OLD, BAD)),
        (Rule(keep_last=0, keep_failed=True, failed=FAILED), (OLD, NEW)),
    ],
)
def test_every_rule_that_is_given_must_let_a_run_go(
    rule: Rule, gone: tuple[RunRecord, ...]
) -> None:
    assert to_prune(RUNS, rule, NOW) == gone


def test_what_is_driven_or_up_stays_and_counts_among_the_newest() -> None:
    held = RunRecord(run_id=NEW.run_id, outcome=None, held="still driven")

    assert to_prune((OLD, BAD, held), Rule(keep_last=1), NOW) == (OLD, BAD)
    assert held not in to_prune((OLD, held), Rule(keep_last=0), NOW)


def test_an_identifier_without_a_time_is_of_no_age() -> None:
    odd = RunRecord(run_id="99999999-999999-drill-0009", outcome="valid")

    assert begun_at(odd.run_id) is None
    assert to_prune((odd,), Rule(older_than_s=1.0), NOW) == ()


def test_the_last_proof_of_a_finding_stays() -> None:
    proofs = [
        RunRecord(run_id=f"202611{day:02}-120000-drill-0001", outcome="violation", findings=found)
        for day, found in ((1, frozenset("ab")), (2, frozenset("b")), (3, frozenset()))
    ]

    assert to_prune(proofs, Rule(keep_last=0), NOW) == (proofs[2],)
    assert to_prune(proofs, Rule(keep_last=0, keep_proofs=False), NOW) == tuple(proofs)


def test_the_oldest_go_until_the_rest_fits() -> None:
    runs = [
        RunRecord(run_id=f"202611{day:02}-120000-drill-0001", outcome="valid", size_bytes=100)
        for day in range(1, 6)
    ]

    assert to_prune(runs, Rule(max_bytes=300), NOW) == tuple(runs[:2])
    assert to_prune(runs, Rule(max_bytes=500), NOW) == ()
    assert to_prune(runs, Rule(max_bytes=250), NOW) == tuple(runs[:3])
    assert to_prune(runs, Rule(max_bytes=0, keep_last=4), NOW) == tuple(runs[:1])


@pytest.fixture
def store(tmp_path: Path) -> RunStore:
    store = RunStore(tmp_path / "runs")
    for day in (1, 2, 3):
        run = made(store, "drill", day * 86_400 * 1_000_000_000, bytes((0, day)))
        (run.root / "file").write_bytes(b"x" * 5000)
    return store


def names(store: RunStore) -> list[str]:
    return [run.root.name for run in store.runs()]


def test_prune_lets_the_oldest_go_and_latest_still_means_the_newest(
    store: RunStore, capsys: pytest.CaptureFixture[str]
) -> None:
    first, second, third = names(store)
    prune = ["runs", "prune", "--runs-dir", str(store.root)]

    assert execute([*prune, "--keep-last", "1", "--dry-run"]) == 0
    assert capsys.readouterr().out.startswith(f"would remove {first}\nwould remove {second}\n")
    assert names(store) == [first, second, third]

    assert execute([*prune, "--keep-last", "1"]) == 0
    assert f"removed {second}\n2 of 3 runs removed" in capsys.readouterr().out
    assert names(store) == [third]
    assert store.resolve("latest").root.name == third
    left = {p.name for p in store.root.iterdir()}
    assert left == {third, "latest", INDEX, index_path(store).name}


def test_a_run_whose_cluster_is_up_is_never_pruned(
    store: RunStore, capsys: pytest.CaptureFixture[str]
) -> None:
    first = store.runs()[0]
    first.undo.mkdir()
    first.kept.touch()
    everything = ["runs", "prune", "--keep-last", "0", "--runs-dir", str(store.root)]

    assert execute(everything) == 0
    assert names(store) == [first.root.name]
    execute(["runs", "--runs-dir", str(store.root)])
    assert "its cluster is kept up" in capsys.readouterr().out

    assert execute(["cleanup", first.root.name, "--runs-dir", str(store.root)]) == 0
    assert execute(everything) == 0
    assert names(store) == []


def test_prune_without_a_rule_removes_nothing(
    store: RunStore, capsys: pytest.CaptureFixture[str]
) -> None:
    assert execute(["runs", "prune", "--runs-dir", str(store.root)]) == 254
    assert "--keep-last N" in capsys.readouterr().err
    assert len(names(store)) == 3


def test_a_violation_that_this_version_can_not_read_stays_until_findings_are_forgotten(
    store: RunStore,
) -> None:
    judged = RunDirectory(store.runs()[0].root)
    judged.analysis.mkdir()
    judged.verdict.write_text('{"outcome": "violation", "anomalies": "of another version"}')
    prune = ["runs", "prune", "--keep-last", "0", "--runs-dir", str(store.root)]

    assert execute(prune) == 0
    assert names(store) == [judged.root.name]

    assert execute([*prune, "--forget-findings"]) == 0
    assert names(store) == []


def test_a_run_that_came_since_the_first_look_ends_no_prune(
    store: RunStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    def opened_later(*given: Any) -> Any:
        made(store, "drill", 4 * 86_400 * 1_000_000_000, bytes((0, 4)))
        return opened(*given)

    monkeypatch.setattr("cli.runs.opened", opened_later)
    assert execute(["runs", "prune", "--keep-last", "0", "--runs-dir", str(store.root)]) == 0
    assert names(store) == []


def test_what_another_prune_has_removed_meanwhile_is_no_failure(
    store: RunStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    def removed_first(root: Path) -> int:
        RunStore(root.parent).remove(RunDirectory(root))
        return 0

    monkeypatch.setattr("cli.runs.used_bytes", removed_first)

    assert execute(["runs", "prune", "--keep-last", "1", "--runs-dir", str(store.root)]) == 0
    assert len(names(store)) == 1


def test_latest_goes_with_the_newest(store: RunStore) -> None:
    runs = store.runs()

    store.remove(runs[-1])

    assert store.resolve("latest").root.name == runs[-2].root.name
    for run in runs[:-1]:
        store.remove(run)
    assert list(store.root.iterdir()) == []


def test_the_list_tells_runs_apart_and_says_what_they_came_to(
    store: RunStore, capsys: pytest.CaptureFixture[str]
) -> None:
    judged = RunDirectory(store.runs()[0].root)
    judged.analysis.mkdir()
    judged.verdict.write_text('{"outcome": "violation"}')

    assert execute(["runs", "--runs-dir", str(store.root)]) == 0

    head, first, second, *_ = capsys.readouterr().out.splitlines()
    assert head.split()[:2] == ["run", "outcome"]
    assert first.split()[:2] == [judged.root.name, "violation"]
    assert "no history" in second


def test_prune_finishes_a_removal_that_was_broken_off(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    left = tmp_path / ".20260528-202640-drill-0001.removing"
    (left / "history").mkdir(parents=True)
    (left / "history" / "big").write_bytes(bytes(3 << 20))
    prune = ["runs", "prune", "--runs-dir", str(tmp_path), "--keep-last", "1"]

    assert execute(["runs", "--runs-dir", str(tmp_path)]) == 0
    assert "1 run was being removed when its command was broken off" in capsys.readouterr().err
    assert execute([*prune, "--dry-run"]) == 0
    assert left.exists()
    assert execute(prune) == 0

    assert [path.name for path in tmp_path.iterdir()] == [INDEX]
    told = capsys.readouterr().out
    assert "finished removing 20260528-202640-drill-0001" in told
    assert "0 of 0 runs removed, 3 MiB" in told


def test_the_list_says_when_with_what_seed_how_long_and_against_how_many_faults(
    store: RunStore, capsys: pytest.CaptureFixture[str]
) -> None:
    planned, absurd, _ = store.runs()
    fault = "{at_s = 1.0, kind = 'kill', target = 'n1'}"
    planned.plan.write_text(
        f"seed = 42\n[drive]\nduration_s = 30.0\n[nemesis]\nschedule = [{fault}, {fault}]\n"
    )
    absurd.plan.write_text("seed = -1\ndrive = [1]\n[nemesis]\nschedule = 'none'\n")

    assert execute(["runs", "--runs-dir", str(store.root), "--json"]) == 0
    first, second, third = json.loads(capsys.readouterr().out)
    assert execute(["runs", "--runs-dir", str(store.root)]) == 0
    head, told, untold, *_ = capsys.readouterr().out.splitlines()

    fields = ("begun", "seed", "duration_s", "faults")
    assert [first[name] for name in fields] == ["1970-01-02T00:00:00Z", 42, 30.0, 2]
    assert [second[name] for name in fields] == ["1970-01-03T00:00:00Z", None, None, None]
    assert [third[name] for name in fields] == ["1970-01-04T00:00:00Z", None, None, None]
    assert head.split()[-4:] == ["seed", "drive", "faults", "size"]
    assert told.split()[-6:-2] == ["42", "30", "s", "2"]
    assert untold.split()[-3:] == ["00:00", "0.0", "MiB"]


def test_a_run_that_is_kept_up_shows_what_it_came_to_as_well(
    store: RunStore, capsys: pytest.CaptureFixture[str]
) -> None:
    first = store.runs()[0]
    first.analysis.mkdir()
    first.verdict.write_text('{"outcome": "violation"}')
    first.undo.mkdir()
    first.kept.touch()

    execute(["runs", "--runs-dir", str(store.root)])

    assert f"{first.root.name}  violation, its cluster is kept up" in capsys.readouterr().out
