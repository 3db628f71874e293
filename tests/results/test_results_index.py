"""The index over a store: true to its runs, made again from them, and asked by conditions."""

from __future__ import annotations

import contextlib
import json
import os
import random
import re
import shutil
import sqlite3
from pathlib import Path

import msgspec
import pytest
from capabilities import small_disk

from cli.main import execute
from harness.errors import UsageError
from harness.exit_codes import Outcome
from harness.history.manifest import read_manifest, write_manifest
from harness.history.run_directory import RunDirectory
from harness.protocols.finding import Explanation, Finding, RecordedOperation, ResetCause
from harness.protocols.verdict import Anomaly, Verdict
from results.store import index as index_module
from results.store.index import Condition, Query, index_path, opened
from results.store.run_entry import entry_of, findings_of
from results.store.run_tags import change_tags, read_tags
from results.store.store import RunStore

RECORDED = Path(__file__).parents[1] / "evidence" / "runs"

FLIPS = 200


@pytest.fixture(scope="module")
def judged(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("judged")
    for number, source in enumerate(sorted(RECORDED.iterdir())):
        run = root / f"2026110{1 + number % 9}-120000-{source.name}-{number:04x}"
        shutil.copytree(source, run)
        execute(["check", str(run), "--executor", "local", "--no-report"])
    return root


@pytest.fixture
def store(judged: Path, tmp_path: Path) -> RunStore:
    shutil.copytree(judged, tmp_path / "runs")
    return RunStore(tmp_path / "runs")


def asked(store: RunStore, *conditions: str, **query: object) -> list[str]:
    found = Query(conditions=tuple(map(Condition.parse, conditions)), **query)  # type: ignore[arg-type]
    with opened(store) as index:
        return [entry.run for entry in index.entries(found)]


def outcomes(store: RunStore) -> dict[str, str | None]:
    found = {}
    for run in store.runs():
        text = run.verdict.read_bytes() if run.verdict.exists() else b"{}"
        found[run.root.name] = msgspec.json.decode(text).get("outcome")
    return found


def test_every_run_is_listed_and_conditions_choose(store: RunStore) -> None:
    known = outcomes(store)
    violations = [run for run, outcome in known.items() if outcome == "violation"]

    assert asked(store) == sorted(known)
    assert asked(store, "outcome=violation") == violations != []
    assert set(asked(store, "outcome!=violation")) == set(known) - set(violations)
    assert asked(store, "outcome=violation", "state=running") == []
    assert asked(store, descending=True, limit=2) == sorted(known, reverse=True)[:2]
    assert set(asked(store, "begun>=2026-11-03")) == {r for r in known if r >= "20261103"}


def test_a_day_is_compared_as_a_whole(store: RunStore) -> None:
    known = set(outcomes(store))
    that_day = {run for run in known if run.startswith("20261103")}

    assert set(asked(store, "begun=2026-11-03")) == that_day != set()
    assert set(asked(store, "begun!=2026-11-03")) == known - that_day
    assert set(asked(store, "begun<=2026-11-03")) == {r for r in known if r < "20261104"}
    assert set(asked(store, "begun>2026-11-03")) == {r for r in known if r >= "20261104"}
    assert set(asked(store, "begun=2026-11-03 12")) == that_day
    assert set(asked(store, "begun>2026-11-03T12:00Z", "begun<2026-11-04")) == set()
    assert set(asked(store, "begun=2026")) == known


def test_a_finding_is_found_by_its_fingerprint_and_by_its_name(store: RunStore) -> None:
    with opened(store) as index:
        entries = index.entries(Query())
    findings = {finding.fingerprint: each.run for each in entries for finding in each.findings}
    names = {finding.anomaly: each.run for each in entries for finding in each.findings}

    assert findings
    for fingerprint, run in findings.items():
        assert run in asked(store, f"finding={fingerprint}")
    for name, run in names.items():
        assert run in asked(store, f"anomaly={name}")
        assert run not in asked(store, f"anomaly!={name}")


def test_a_seed_of_63_bits_is_found_exactly(store: RunStore) -> None:
    run = store.runs()[0]
    text = run.plan.read_text()
    seed = (1 << 63) - 1
    run.plan.write_text(re.sub(r"(?m)^seed = .*$", f"seed = {seed}", text))

    assert asked(store, f"seed={seed}") == [run.root.name]
    assert asked(store, f"seed={seed - 1}") == []
    with pytest.raises(UsageError, match="number"):
        Condition.parse(f"seed={1 << 63}")


def test_faults_are_asked_one_by_one(store: RunStore) -> None:
    with opened(store) as index:
        entries = index.entries(Query())
    kinds = {kind for entry in entries for kind in entry.faults}

    assert kinds
    for kind in kinds:
        assert asked(store, f"fault={kind}") == [e.run for e in entries if kind in e.faults]


def test_tags_are_kept_in_the_run_and_found(store: RunStore) -> None:
    first, second = store.runs()[:2]
    change_tags(first, ["nightly", "release=3.1.0"])
    change_tags(second, ["release=3.2.0"])

    assert asked(store, "tag=nightly") == [first.root.name]
    assert asked(store, "tag=release") == [first.root.name, second.root.name]
    assert asked(store, "release=3.2.0") == [second.root.name]

    change_tags(first, ["release=3.1.1"], ["nightly"])
    assert read_tags(first) == ("release=3.1.1",)
    assert asked(store, "tag=nightly") == []
    with pytest.raises(UsageError, match="tag"):
        change_tags(first, ["a b"])


def test_what_is_read_again_is_what_changed(store: RunStore) -> None:
    with opened(store) as index:
        assert index.refresh(store.runs()) == 0
    gone, changed = store.runs()[0], store.runs()[1]
    shutil.rmtree(gone.root)
    change_tags(changed, ["seen"])

    assert gone.root.name not in asked(store)
    assert asked(store, "tag=seen") == [changed.root.name]
    with opened(store) as index:
        assert index.refresh(store.runs()) == 0
        assert index.count() == len(store.runs())


def test_a_run_that_came_after_the_list_was_made_is_not_forgotten(store: RunStore) -> None:
    every = store.runs()
    with opened(store) as index:
        index.refresh(every[:-1])

        assert index.count() == len(every)


def test_a_release_is_the_tag_or_the_plans_or_what_the_system_said(store: RunStore) -> None:
    run = store.runs()[0]
    manifest, entry = read_manifest(run), entry_of(run)
    assert entry.release == ""

    versions = manifest.versions | {entry.system: "3.1.0"}
    write_manifest(run, msgspec.structs.replace(manifest, versions=versions))
    assert asked(store, "release=3.1.0") == [run.root.name]

    run.plan.write_text(
        re.sub(r"(?m)^\[system\]$", '[system]\nrelease = "3.0.0"', run.plan.read_text())
    )
    assert asked(store, "release=3.0.0") == [run.root.name]

    run.tags.write_text('["release=2.0"]')
    assert asked(store, "release=2.0") == [run.root.name]


@pytest.mark.parametrize("damage", [b"", b"no database", b"SQLite format 3\x00" + b"\xff" * 4096])
def test_a_damaged_index_is_made_anew(store: RunStore, damage: bytes) -> None:
    whole = asked(store)
    (index_path(store)).write_bytes(damage)

    assert asked(store) == whole


def test_an_index_with_a_torn_page_is_made_anew(store: RunStore) -> None:
    whole = asked(store)
    path = index_path(store)
    content = bytearray(path.read_bytes())
    content[4096:] = b"\x5a" * (len(content) - 4096)
    path.write_bytes(content)

    assert asked(store) == whole


def test_an_index_of_another_version_is_made_anew(store: RunStore) -> None:
    whole = asked(store)
    with sqlite3.connect(index_path(store)) as database:
        database.execute("DROP TABLE runs")
        database.execute("PRAGMA user_version = 7000")
    database.close()

    assert asked(store) == whole


def test_a_link_in_place_of_the_index_is_replaced_and_its_target_stays(
    store: RunStore, tmp_path: Path
) -> None:
    target = tmp_path / "precious"
    target.write_text("mine")
    (index_path(store)).symlink_to(target)

    assert asked(store) == sorted(run.root.name for run in store.runs())
    assert target.read_text() == "mine"


def resummed(database: sqlite3.Connection) -> None:
    """Give every row of an index the checksum of what it holds now."""
    columns = index_module._OF_SUM
    text = f"SELECT {columns}, entry FROM runs JOIN entries USING (run)"  # noqa: S608
    for run, *row, entry in database.execute(text).fetchall():
        content = entry if isinstance(entry, bytes) else entry.encode()
        checksum = index_module._checksum([run, *row], content)
        database.execute("UPDATE runs SET checksum = ? WHERE run = ?", (checksum, run))
        database.execute("UPDATE entries SET entry = ? WHERE run = ?", (content, run))


def test_flipped_bits_of_an_index_tell_no_other_runs_and_end_no_command(store: RunStore) -> None:
    whole, path = asked(store), index_path(store)
    content = path.read_bytes()
    draw = random.Random(14)
    # Most of a small database is zeros, which nothing reads.
    written = [place for place, byte in enumerate(content) if byte]
    for _ in range(FLIPS):
        damaged = bytearray(content)
        damaged[draw.choice(written)] ^= 1 << draw.randrange(8)
        path.write_bytes(damaged)
        assert asked(store) == whole


def test_an_index_from_elsewhere_is_not_believed(store: RunStore, tmp_path: Path) -> None:
    whole = asked(store)
    forged = index_path(store)
    with sqlite3.connect(forged) as database:
        database.execute("UPDATE runs SET outcome = 'valid'")
        database.execute("UPDATE entries SET entry = replace(entry, 'violation', 'valid')")
        resummed(database)
    database.close()
    assert asked(store, "outcome=violation") == []  # it is the index that is asked
    elsewhere = RunStore(tmp_path / "elsewhere")
    shutil.copytree(store.root, elsewhere.root)

    assert asked(elsewhere) == whole
    assert asked(elsewhere, "outcome=violation") != []


def test_a_pipe_in_place_of_the_index_stops_nobody(store: RunStore) -> None:
    os.mkfifo(index_path(store))

    assert asked(store) == sorted(run.root.name for run in store.runs())


def test_a_store_that_can_only_be_read_is_listed(
    store: RunStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Not by its permissions, which do not bind root.
    monkeypatch.setattr(os, "access", lambda path, mode: False)

    assert asked(store) == sorted(run.root.name for run in store.runs())
    assert not index_path(store).exists()


def test_a_store_on_a_full_disk_is_listed_and_pruned(
    store: RunStore, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with small_disk(tmp_path / "disk", "4m") as disk:
        shutil.copytree(store.root, disk / "runs", symlinks=True)
        full = RunStore(disk / "runs")
        index_path(full).unlink(missing_ok=True)
        with (disk / "ballast").open("wb", buffering=0) as ballast, contextlib.suppress(OSError):
            while ballast.write(bytes(4096)):
                pass
        before = len(full.runs())
        assert before > 2
        assert execute(["runs", "--runs-dir", str(full.root)]) == 0
        assert all(run.root.name in capsys.readouterr().out for run in full.runs()[:1])

        prune = ["runs", "prune", "--keep-last", "1", "--forget-findings"]
        assert execute([*prune, "--runs-dir", str(full.root)]) == 0
        assert len(full.runs()) < before


def test_a_bad_run_stops_no_list(store: RunStore) -> None:
    bad = store.runs()[0]
    bad.manifest.write_bytes(b"{")
    bad.plan.write_text("= no TOML")
    bad.verdict.parent.mkdir(exist_ok=True)
    bad.verdict.write_bytes(b"\xff")
    bad.tags.write_bytes(b'["a\\u001b[2J"]')

    assert bad.root.name in asked(store)
    assert asked(store, "tag=a") == []


@pytest.mark.parametrize(
    "text",
    [
        *("outcome", "=valid", "colour=red", "nodes=many", "fault<kill", "outcome==x=", ""),
        *("ok>nan", "ok<inf", "size_bytes>1e999", "begun>yesterday", "begun>2026-13"),
        *("begun<2026-11-31", "begun>=2026-11-3", "begun<2026-11-03T12:00+02:00"),
    ],
)
def test_a_condition_that_can_not_be_asked_is_refused(text: str) -> None:
    if text == "outcome==x=":
        assert Condition.parse(text).value == "=x="
        return
    with pytest.raises(UsageError, match="condition"):
        Condition.parse(text)


def test_the_command_lists_filters_and_tags(
    store: RunStore, capsys: pytest.CaptureFixture[str]
) -> None:
    of = ["--runs-dir", str(store.root)]
    first = store.runs()[0].root.name

    assert execute(["runs", "tag", *of, first, "release=1.0"]) == 0
    capsys.readouterr()
    assert execute(["runs", *of, "--where", "release=1.0", "--json"]) == 0
    (row,) = json.loads(capsys.readouterr().out)
    assert (row["run"], row["release"], row["tags"]) == (first, "1.0", ["release=1.0"])
    assert execute(["runs", *of, "--sort", "colour"]) == 254
    assert execute(["runs", *of, "--where", "colour=red"]) == 254
    assert "colour" in capsys.readouterr().err
    assert RunDirectory(store.root / first).tags.exists()


def test_what_else_a_target_held_makes_no_other_finding() -> None:
    def fingerprints(*roles: str) -> set[str]:
        told = Explanation(text="kill of n1", fault=0, kind="kill", roles=roles)
        lost = Finding(text="lost write", txns=(1,), keys=(2,), explained_by=told)
        anomaly = Anomaly(count=1, examples=(lost,))
        verdict = Verdict(
            outcome=Outcome.VIOLATION,
            model="strict-serializable",
            anomalies={"lost-write": anomaly},
        )
        return {each.fingerprint for each in findings_of(verdict, "reference")}

    primary = fingerprints("primary of partition 3", "leader of partition 3")

    assert primary == fingerprints("leader of partition 1", "metastorage leader")
    assert primary == fingerprints("follower of partition 2", "primary of partition 0")
    assert primary != fingerprints("follower of partition 2")
    assert fingerprints("metastorage leader") != fingerprints("a role of its own")


def test_what_a_forced_reset_did_is_one_finding_whichever_fault_came_before() -> None:
    def operation(begin_ns: int, end_ns: int) -> RecordedOperation:
        return RecordedOperation(
            txn=1, process=0, type="ok", invoke_ns=begin_ns, complete_ns=end_ns, ops=()
        )

    def fingerprints(kind: str, at_ns: int) -> dict[str, str]:
        reset = ResetCause(node="n2", at_ns=at_ns, started_ns=None, fault=0, text="")
        cause = Explanation(text="", kind=kind, roles=("follower of partition 0",), reset=reset)
        lost = Finding(text="lost", txns=(1,), keys=(1,), explained_by=cause)
        near = Explanation(text="", kind=kind, roles=("follower of partition 0",))
        both = (operation(10, 20), operation(70, 80))
        order = Finding(text="", txns=(1,), keys=(1,), explained_by=near, operations=both)
        verdict = Verdict(
            outcome=Outcome.VIOLATION,
            model="strict-serializable",
            anomalies={
                "lost-write": Anomaly(count=1, examples=(lost,)),
                "incompatible-order": Anomaly(count=1, examples=(order,)),
            },
        )
        return {each.anomaly: each.fingerprint for each in findings_of(verdict, "ignite3")}

    assert fingerprints("kill", 50) == fingerprints("restart", 60)
    # What was over before the reset is no work of it.
    early, other = fingerprints("kill", 90), fingerprints("restart", 90)
    assert early["lost-write"] == other["lost-write"]
    assert early["incompatible-order"] != other["incompatible-order"]


def test_what_a_forbidden_reset_lost_is_no_finding_of_its_own() -> None:
    reset = ResetCause(node="n2", at_ns=50, started_ns=None, fault=0, text="")
    cause = Explanation(text="", kind="kill", roles=("follower of partition 0",), reset=reset)
    lost = Finding(text="lost", txns=(1,), keys=(1,), explained_by=cause)
    told = Finding(text="reset of partition 3 in SC", txns=(), keys=())
    by_clock = Explanation(text="", kind="clock-jump", roles=("follower of partition 0",))
    stale = Finding(text="stale", txns=(2,), keys=(2,), explained_by=by_clock)

    def findings(**examples: Finding) -> dict[str, tuple[str, str]]:
        anomalies = {
            name.replace("_", "-"): Anomaly(count=2, examples=(example,))
            for name, example in examples.items()
        }
        verdict = Verdict(
            outcome=Outcome.VIOLATION, model="strict-serializable", anomalies=anomalies
        )
        found = findings_of(verdict, "ignite3")
        return {each.anomaly: (each.fingerprint, each.example) for each in found}

    alone = findings(reset_in_sc=told)
    with_loss = findings(reset_in_sc=told, reset_with_majority=told, lost_write=lost)
    with_another = findings(reset_in_sc=told, stale_read=stale)

    assert set(alone) == set(with_loss) == {"reset-in-sc"}
    assert alone["reset-in-sc"][0] == with_loss["reset-in-sc"][0]
    assert "lost-write (2), reset-with-majority (2) by it" in with_loss["reset-in-sc"][1]
    assert set(with_another) == {"reset-in-sc", "stale-read"}
    assert "lost-write" in findings(lost_write=lost)


def test_what_was_outvoted_behind_a_forbidden_reset_is_no_finding_of_its_own() -> None:
    def operation(begin_ns: int, end_ns: int) -> RecordedOperation:
        return RecordedOperation(
            txn=1, process=0, type="ok", invoke_ns=begin_ns, complete_ns=end_ns, ops=()
        )

    def anomalies(*, under: bool) -> set[str]:
        near = Explanation(text="", kind="restart", roles=("primary of partition 0",))
        reset = ResetCause(node="n2", at_ns=50, started_ns=None, fault=0, text="")
        lost = Finding(
            text="lost",
            txns=(1,),
            keys=(1,),
            explained_by=msgspec.structs.replace(near, under_reset=reset if under else None),
            operations=(operation(60, 70), operation(90, 95)),
        )
        late, early = (
            Finding(text="", txns=(1,), keys=(1,), explained_by=near, operations=operations)
            for operations in (
                (operation(75, 76), operation(90, 95)),
                (operation(10, 20), operation(25, 30)),
            )
        )
        verdict = Verdict(
            outcome=Outcome.VIOLATION,
            model="strict-serializable",
            anomalies={
                name: Anomaly(count=1, examples=(example,))
                for name, example in {
                    "reset-in-sc": Finding(text="reset in SC", txns=(), keys=(), at_ns=50),
                    "lost-write": lost,
                    "stale-snapshot": late,
                    "G0": early,
                }.items()
            },
        )
        return {each.anomaly for each in findings_of(verdict, "ignite3")}

    assert anomalies(under=True) == {"reset-in-sc", "G0"}
    # A loss that no reset explains, as of another partition, stays a finding, with all around it.
    assert anomalies(under=False) == {"reset-in-sc", "lost-write", "stale-snapshot", "G0"}
