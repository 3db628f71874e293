"""The run store: identifiers, and what a person may call a run."""

from __future__ import annotations

import contextlib
import os
import re
import shutil
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Event

import msgspec
import pytest
from run_stores import made

from cli.main import execute
from harness.errors import HarnessError, UsageError
from harness.history.directory_locks import lock_new_directory, locked
from harness.history.manifest import RUNNING, SEALED, write_manifest
from harness.history.run_directory import SCHEMA_VERSION, Manifest, RunDirectory
from harness.protocols.promise import Declaration
from results.store import run_tags
from results.store import store as store_module
from results.store.store import RunStore, UnknownRun, run_id

MANIFEST = Manifest(
    schema_version=SCHEMA_VERSION,
    run_id="r",
    state=RUNNING,
    versions={},
    machine={},
    declaration=Declaration(system="s", mode="SC", promises=()),
    workload="w",
    checkers=(),
)
NOON_NS = 1_780_000_000_000_000_000  # 2026-05-28 20:26:40 UTC


def test_an_identifier_sorts_by_time_and_is_safe_as_a_label() -> None:
    assert (
        run_id("Drill: kill & cut!", NOON_NS, b"\x00\xff") == "20260528-202640-drill-kill-cut-00ff"
    )


def test_a_name_without_a_letter_still_gets_an_identifier() -> None:
    assert run_id("***", NOON_NS, b"\x12\x34").endswith("-run-1234")


def test_a_created_run_is_empty_and_latest(tmp_path: Path) -> None:
    store = RunStore(tmp_path / "runs")

    made(store, "drill", NOON_NS, b"\x00\x01")
    second = made(store, "drill", NOON_NS + 1_000_000_000, b"\x00\x02")

    assert list(second.root.iterdir()) == []
    assert store.resolve("latest").root == second.root.resolve()
    assert [run.root.name[-4:] for run in store.runs()] == ["0001", "0002"]


def test_a_taken_identifier_gives_way_to_the_next(tmp_path: Path) -> None:
    store = RunStore(tmp_path)

    first = made(store, "drill", NOON_NS, b"\xff\xff")
    second = made(store, "drill", NOON_NS, b"\xff\xff")

    assert (first.root.name[-4:], second.root.name[-4:]) == ("ffff", "0000")


def test_a_run_answers_to_its_path_its_identifier_and_a_unique_beginning(tmp_path: Path) -> None:
    store = RunStore(tmp_path)
    run = made(store, "drill", NOON_NS, b"\x00\x01")

    for name in (str(run.root), run.root.name, run.root.name[:8]):
        assert store.resolve(name) == run


def test_a_beginning_of_two_runs_is_refused_naming_both(tmp_path: Path) -> None:
    store = RunStore(tmp_path)
    made(store, "drill", NOON_NS, b"\x00\x01")
    made(store, "drill", NOON_NS, b"\x00\x02")

    with pytest.raises(UnknownRun, match=r"means 2 runs .*-0001, .*-0002"):
        store.resolve("20260528")


@pytest.mark.parametrize("name", ["nope", "latest", "some/where/else", ""])
def test_a_run_that_is_not_there_is_misuse_said_in_one_sentence(tmp_path: Path, name: str) -> None:
    with pytest.raises(UsageError) as caught:
        RunStore(tmp_path / "runs").resolve(name)

    assert "\n" not in str(caught.value)
    assert (name or repr(name)) in str(caught.value)


@pytest.mark.parametrize("command", [("status",), ("logs",), ("report",), ("check",)])
def test_a_directory_that_holds_no_run_is_refused_as_that(
    tmp_path: Path, command: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    node = ("n1",) if command == ("logs",) else ()

    assert execute([*command, str(tmp_path), *node]) == 254

    assert "expected the directory of a run" in capsys.readouterr().err


@pytest.mark.parametrize("named", ["20261126T120000.000Z", "latest"])
@pytest.mark.parametrize("file", ["history.edn", "history.jsonl"])
def test_a_directory_of_jepsen_is_told_by_the_history_in_it(
    tmp_path: Path, named: str, file: str, capsys: pytest.CaptureFixture[str]
) -> None:
    test = tmp_path / "20261126T120000.000Z"
    test.mkdir()
    (test / file).touch()
    (tmp_path / "latest").symlink_to(test)

    assert execute(["check", str(tmp_path / named)]) == 254

    told = f"(firedrill check takes the history in it: {tmp_path / named / file})"
    assert told in capsys.readouterr().err


def test_latest_survives_a_copy_without_links(tmp_path: Path) -> None:
    store = RunStore(tmp_path)
    run = made(store, "drill", NOON_NS, b"\x00\x01")
    (tmp_path / "latest").unlink()

    assert store.resolve("latest") == run


def test_latest_that_leads_nowhere_means_the_newest_that_is_left_or_is_gone(
    tmp_path: Path,
) -> None:
    store = RunStore(tmp_path)
    first, second = (made(store, "r", n * 1_000_000_000, b"ab") for n in (1, 2))
    shutil.rmtree(second.root)

    store.mend_latest()
    assert (tmp_path / "latest").resolve() == first.root.resolve()

    shutil.rmtree(first.root)
    store.mend_latest()
    assert not (tmp_path / "latest").is_symlink()


@pytest.mark.parametrize("text", ["{away}", "../away/{id}", "./{id}", "{link}", "."])
def test_latest_leads_to_no_directory_but_a_run_of_its_store(tmp_path: Path, text: str) -> None:
    store = RunStore(tmp_path / "runs")
    mine = made(store, "mine", NOON_NS, b"\x00\x01")
    away = made(RunStore(tmp_path / "away"), "away", NOON_NS + 1_000_000_000, b"\x00\x02")
    linked = store.root / away.root.name
    linked.symlink_to(away.root)
    latest = store.root / "latest"
    latest.unlink()
    latest.symlink_to(text.format(away=away.root, id=away.root.name, link=linked.name))

    assert store.resolve("latest") == mine
    assert store.resolve(str(latest)) == mine
    store.mend_latest()
    assert os.readlink(latest) == mine.root.name


def test_latest_is_pointed_at_a_run_by_several_at_once_and_after_one_that_died(
    tmp_path: Path,
) -> None:
    store = RunStore(tmp_path)
    run = made(store, "drill", NOON_NS, b"\x00\x01")
    # What one leaves that was killed between its two steps, and what another has just made.
    (tmp_path / f".latest-{run.root.name}").symlink_to(run.root.name)
    (tmp_path / "latest").unlink()
    (tmp_path / "latest").symlink_to("20260101-000000-gone-0000")

    store.mend_latest()
    assert os.readlink(tmp_path / "latest") == run.root.name

    with ThreadPoolExecutor(8) as pool:
        for done in [pool.submit(store._point_latest, run.root) for _ in range(400)]:
            done.result()
    assert store.resolve("latest") == run


@pytest.mark.parametrize("left", [0, 1])
def test_a_run_that_is_made_while_latest_is_mended_stays_latest(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, left: int
) -> None:
    store = RunStore(tmp_path)
    *_, gone = (made(store, "d", n * 1_000_000_000, b"ab") for n in range(left + 1))
    shutil.rmtree(gone.root)
    listing, newer = RunStore.runs, []

    def late(store: RunStore) -> tuple[RunDirectory, ...]:
        found = listing(store)
        if not newer:
            newer.append(made(store, "d", NOON_NS, b"ab"))
        return found

    monkeypatch.setattr(RunStore, "runs", late)
    store.mend_latest()

    assert os.readlink(tmp_path / "latest") == newer[0].root.name


def test_a_directory_in_the_place_of_latest_is_named_and_nothing_stays_behind(
    tmp_path: Path,
) -> None:
    store = RunStore(tmp_path)
    (tmp_path / "latest").mkdir()

    for number in range(2):
        with pytest.raises(HarnessError, match=r"latest: expected a link to a run, found a dir"):
            made(store, "d", NOON_NS + number, b"ab")

    assert os.listdir(tmp_path) == ["latest"]
    # Not readlink: the handle of this very listing is gone by then.
    opened = [os.path.realpath(handle) for handle in Path("/proc/self/fd").iterdir()]
    assert not [path for path in opened if path.startswith(f"{tmp_path}/")]


def test_a_refused_run_is_forgotten_and_latest_means_the_one_before(tmp_path: Path) -> None:
    store = RunStore(tmp_path)
    first = made(store, "drill", NOON_NS, b"\x00\x01")
    refused = made(store, "drill", NOON_NS, b"\x00\x02")
    refused.undo.mkdir()

    store.forget(refused)

    assert store.runs() == (first,)
    assert store.resolve("latest").root == first.root.resolve()


def test_a_run_that_holds_anything_is_never_forgotten(tmp_path: Path) -> None:
    store = RunStore(tmp_path)
    run = made(store, "drill", NOON_NS, b"\x00\x01")
    run.plan.write_text("seed = 1")

    store.forget(run)

    assert store.resolve("latest").plan.exists()


def test_a_store_that_is_a_file_is_named(tmp_path: Path) -> None:
    (tmp_path / "runs").write_text("")

    with pytest.raises(HarnessError, match=r"run store .*runs"):
        made(RunStore(tmp_path / "runs"), "drill", NOON_NS, b"\x00\x01")


def begun(store: RunStore, name: str, number: int) -> RunDirectory:
    return made(store, name, NOON_NS, number.to_bytes(2, "big"))


def test_a_sweep_takes_what_was_begun_and_is_driven_by_nobody(tmp_path: Path) -> None:
    store = RunStore(tmp_path)
    bare, planned = begun(store, "My Drill: 1", 1), begun(store, "My Drill: 1", 2)
    planned.plan.write_text("")
    planned.undo.mkdir()
    running = begun(store, "My Drill: 1", 3)
    write_manifest(running, MANIFEST)

    assert store.sweep(["My Drill: 1"], ()) == 3
    assert [run.root.exists() for run in (bare, planned, running)] == [False, False, False]
    assert list(tmp_path.iterdir()) == []


def test_a_sweep_by_a_pattern_takes_the_runs_whose_slugs_match_as_a_whole(tmp_path: Path) -> None:
    store = RunStore(tmp_path)
    ours, others = begun(store, "My Drill-12", 1), begun(store, "My Drill-12b", 2)

    assert store.sweep(re.compile(r"my-drill-\d+"), ()) == 1
    assert [ours.root.exists(), others.root.exists()] == [False, True]


def test_a_sweep_finishes_the_interrupted_deletions_of_its_plans(tmp_path: Path) -> None:
    store = RunStore(tmp_path)
    ours, others = begun(store, "My Drill: 1", 1), begun(store, "d-1", 2)
    for run in (ours, others):
        run.root.rename(tmp_path / f".{run.root.name}.removing")

    assert store.sweep(["My Drill: 1"], ()) == 1
    assert [left.root.name[-13:] for left in store.broken_off()] == ["0002.removing"]


def test_a_sweep_leaves_what_lives_what_is_kept_and_what_holds_tables(tmp_path: Path) -> None:
    store = RunStore(tmp_path)
    alive, driven, kept, other, sealed, damaged = (begun(store, "d-1", n) for n in range(1, 7))
    other.root.rename(tmp_path / "20260528-202640-d-2-0004")
    driven.chunks.mkdir()
    write_manifest(driven, MANIFEST)
    write_manifest(sealed, msgspec.structs.replace(MANIFEST, state=SEALED))
    damaged.history.mkdir()

    with locked(alive.root), locked(driven.chunks):
        assert store.sweep(["d-1"], {str(kept.root)}) == 0

    assert store.sweep(["d-1"], {str(kept.root)}) == 2
    left = {run.root.name[-4:] for run in store.runs()}
    assert left == {"0003", "0004", "0005", "0006"}


def test_a_run_that_another_process_works_on_is_not_removed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(store_module, "LOCK_LIMIT_S", 0.05)
    store = RunStore(tmp_path)
    run = begun(store, "d-1", 1)

    with locked(run.root), pytest.raises(HarnessError, match="another process works on it"):
        store.remove(run)
    assert run.root.is_dir()

    store.remove(run)
    assert list(tmp_path.iterdir()) == []
    with pytest.raises(HarnessError, match="No such file"):
        store.remove(run)


def test_a_run_is_removed_once_a_short_look_at_it_is_over(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = RunStore(tmp_path)
    run = begun(store, "d-1", 1)
    looks = [lambda: None, lambda: None]

    def looked_at(directory: Path, *, shared: bool) -> int | None:
        return looks.pop()() if looks else lock_new_directory(directory, shared=shared)

    monkeypatch.setattr(store_module, "lock_new_directory", looked_at)
    store.remove(run)

    assert looks == []
    assert not run.root.exists()


def test_a_run_is_held_while_it_is_removed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = RunStore(tmp_path)
    run = begun(store, "d-1", 1)
    seen = []

    def removed(path: Path, **_: object) -> None:
        with locked(path) as alone:
            seen.append(alone)

    monkeypatch.setattr(store_module.shutil, "rmtree", removed)
    store.remove(run)

    assert seen == [False]


def test_a_run_that_its_maker_holds_is_removed_by_its_maker(tmp_path: Path) -> None:
    store = RunStore(tmp_path)

    with store.create("d-1", NOON_NS, b"\x00\x01") as run:
        store.remove(run, held=True)

    assert not run.root.exists()


def test_a_sweep_between_the_making_of_a_run_and_its_lock_costs_one_identifier(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = RunStore(tmp_path)
    swept: list[int] = []

    def late(directory: Path, *, shared: bool) -> int | None:
        if not swept:
            swept.append(store.sweep(["d-1"], ()))
        return lock_new_directory(directory, shared=shared)

    monkeypatch.setattr(store_module, "lock_new_directory", late)
    with store.create("d-1", NOON_NS, b"\x00\x01") as run:
        assert swept == [1]
        assert run.root.name.endswith("-0002")
        assert store.sweep(["d-1"], ()) == 0
        assert store.resolve("latest").root == run.root


def test_runs_are_made_while_others_sweep_and_each_is_there_while_it_is_held(
    tmp_path: Path,
) -> None:
    store, over = RunStore(tmp_path), Event()

    def sweep() -> int:
        gone = 0
        while not over.is_set():
            gone += store.sweep(["d-1"], ())
        return gone

    def begin(number: int) -> bool:
        with store.create("d-1", NOON_NS, number.to_bytes(2, "big")) as run:
            run.plan.write_text("")
            return run.plan.exists()

    with ThreadPoolExecutor(4) as pool:
        sweeps = [pool.submit(sweep) for _ in range(2)]
        try:
            there = list(pool.map(begin, range(0, 3200, 32)))
        finally:
            over.set()
        gone = sum(each.result() for each in sweeps)

    assert all(there)
    assert gone > 0


def test_a_sweep_that_locks_a_run_as_another_has_removed_it_removes_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = RunStore(tmp_path)
    with store.create("d-1", NOON_NS, b"\x00\x01") as run:
        pass

    @contextlib.contextmanager
    def late(path: Path) -> Iterator[bool]:
        with locked(path) as alone:
            shutil.rmtree(path)  # between the opening and the lock
            yield alone

    monkeypatch.setattr(store_module, "locked", late)
    assert store.sweep(["d-1"], ()) == 0
    assert not run.root.exists()


def test_of_two_that_tag_a_run_at_once_neither_loses_the_tag_of_the_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = made(RunStore(tmp_path), "d", NOON_NS, b"ab")
    read, others = run_tags.read_tags, []

    def late(run: RunDirectory) -> tuple[str, ...]:
        found = read(run)
        if not others:
            others.append(run)
            with pytest.raises(HarnessError, match="its tags stay as they were: another process"):
                run_tags.change_tags(run, ["second"])
        return found

    monkeypatch.setattr(store_module, "LOCK_LIMIT_S", 0.0)
    monkeypatch.setattr(run_tags, "read_tags", late)
    with locked(run.root):  # as a judgement does
        run_tags.change_tags(run, ["first"])
    run_tags.change_tags(run, ["second"])

    assert others == [run]
    assert read(run) == ("first", "second")
