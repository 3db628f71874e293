"""A run as one file: the way there and back, and archives that are none."""

from __future__ import annotations

import contextlib
import gzip
import hashlib
import io
import os
import shutil
import tarfile
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest
from capabilities import lacking

from cli.main import execute
from harness.errors import HarnessError, MalformedHistory, UsageError
from harness.history.directory_locks import lock_new_directory, locked
from harness.history.run_directory import RunDirectory
from results.store import archive as archive_module
from results.store.archive import SUFFIX, SUMS, archive, require_whole, restore
from results.store.store import RunStore

RECORDED = Path(__file__).parents[1] / "evidence" / "runs"
NAME = "20261101-120000-drill-0001"
Members = dict[str, bytes | tarfile.TarInfo]


@pytest.fixture
def run(tmp_path: Path) -> RunDirectory:
    root = tmp_path / "runs" / NAME
    shutil.copytree(sorted(RECORDED.iterdir())[0], root)
    (root / "undo").mkdir(exist_ok=True)
    (root / "undo" / "resource").write_text("of this machine")
    return RunDirectory(root)


def files(root: Path) -> dict[str, bytes]:
    return {
        str(path.relative_to(root)): path.read_bytes()
        for path in sorted(root.rglob("*"))
        if path.is_file() and "undo" not in path.parts
    }


def test_there_and_back_every_byte(run: RunDirectory, tmp_path: Path) -> None:
    target = archive(run, tmp_path / f"{NAME}{SUFFIX}")
    elsewhere = RunStore(tmp_path / "elsewhere")
    back = restore(target, elsewhere)

    assert files(back.root) == files(run.root)
    assert not back.undo.exists()
    assert [each.root.name for each in elsewhere.runs()] == [NAME]
    with pytest.raises(UsageError, match="remove it first"):
        restore(target, elsewhere)
    with pytest.raises(UsageError, match="it exists"):
        archive(run, target)


def test_the_command_archives_removes_and_restores(
    run: RunDirectory, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    of = ["--runs-dir", str(run.root.parent)]
    before = files(run.root)

    into = tmp_path / "made" / "for it"
    assert execute(["runs", "archive", *of, NAME, "--to", str(into), "--remove"]) == 0
    assert not run.root.exists()
    assert execute(["runs", "restore", *of, str(into / f"{NAME}{SUFFIX}")]) == 0
    assert files(run.root) == before
    assert NAME in capsys.readouterr().out
    assert execute(["runs", "restore", *of, str(tmp_path / "none.gz")]) == 254


def test_an_archive_is_judged_as_its_run_in_the_store_only_where_that_is_the_same(
    run: RunDirectory, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    target = archive(run, tmp_path / f"{NAME}{SUFFIX}")
    store = ["--runs-dir", str(tmp_path / "store"), "--executor", "local", "--no-report"]
    first = execute(["check", *store, str(target)])

    assert first in (0, 1, 2)
    assert execute(["check", *store, str(target)]) == first
    assert "is in" in capsys.readouterr().err

    other = tmp_path / "store" / NAME
    shutil.rmtree(other)
    shutil.copytree(sorted(RECORDED.iterdir())[1], other)
    judged = files(other)

    assert execute(["check", *store, str(target)]) == 254
    assert "another run of that name: their manifest.json differ" in capsys.readouterr().err
    assert files(other) == judged


def test_what_no_archive_holds_is_named_and_keeps_its_run_from_being_removed(
    run: RunDirectory, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    node = run.root / "nodes" / "n1" / "data"
    node.mkdir(parents=True)
    (node / "current").symlink_to("elsewhere")
    (node / "store").symlink_to(tmp_path, target_is_directory=True)
    os.mkfifo(node / "wakeup")
    command = ["runs", "archive", "--runs-dir", str(run.root.parent), NAME, "--to", str(tmp_path)]

    assert execute([*command, "--remove"]) == 254
    refused = capsys.readouterr().err
    assert execute(command) == 0
    said = capsys.readouterr().err

    names = "nodes/n1/data/current, nodes/n1/data/store, nodes/n1/data/wakeup"
    assert f"can't be removed: it has links or special files: {names}, which" in refused
    assert f"left out: links or special files: {names}, which no archive holds" in said
    assert (node / "current").is_symlink()
    restored = restore(tmp_path / f"{NAME}{SUFFIX}", RunStore(tmp_path / "other")).root
    assert not list((restored / "nodes").rglob("current"))


def packed(path: Path, members: list[tuple[str, bytes | tarfile.TarInfo]]) -> Path:
    with tarfile.open(path, "w:gz") as tar:
        for name, content in members:
            if isinstance(content, tarfile.TarInfo):
                content.name = name
                tar.addfile(content)
            else:
                member = tarfile.TarInfo(name)
                member.size = len(content)
                tar.addfile(member, io.BytesIO(content))
    return path


def sums(run: str = NAME, **contents: bytes) -> bytes:
    listed = {
        name.replace("__", "/"): {
            "size_bytes": len(content),
            "sha256": hashlib.sha256(content).hexdigest(),
        }
        for name, content in contents.items()
    }
    return msgspec.json.encode({"run": run, "files": listed})


def link() -> tarfile.TarInfo:
    member = tarfile.TarInfo()
    member.type, member.linkname = tarfile.SYMTYPE, "/etc/passwd"
    return member


def listed(name: str, content: bytes = b"x", *, size: int | None = None) -> bytes:
    told = {"size_bytes": len(content) if size is None else size}
    told["sha256"] = hashlib.sha256(content).hexdigest()  # type: ignore[assignment]
    return msgspec.json.encode({"run": NAME, "files": {name: told}})


HEAD = f"{NAME}/{SUMS}"
HOSTILE: dict[str, list[tuple[str, bytes | tarfile.TarInfo]]] = {
    "nothing": [],
    "no sums": [(f"{NAME}/plan.toml", b"x")],
    "sums of no JSON": [(HEAD, b"{")],
    "nested JSON": [(HEAD, b"[" * 100_000)],
    "another run": [(HEAD, sums("20261101-120000-other-0001"))],
    "no identifier": [(f"../up/{SUMS}", sums("../up"))],
    "above": [(HEAD, listed("../evil")), (f"{NAME}/../evil", b"x")],
    "absolute": [(HEAD, listed("/evil")), ("/evil", b"x")],
    "unlisted": [(HEAD, sums()), (f"{NAME}/evil", b"x")],
    "link": [(HEAD, listed("plan.toml", b"")), (f"{NAME}/plan.toml", link())],
    "another sum": [(HEAD, listed("plan.toml", b"y")), (f"{NAME}/plan.toml", b"x")],
    "longer": [(HEAD, listed("plan.toml", b"x")), (f"{NAME}/plan.toml", b"x" * 99)],
    "missing": [(HEAD, listed("plan.toml"))],
    "twice": [(HEAD, listed("a")), (f"{NAME}/a", b"x"), (f"{NAME}/a", b"x")],
    "resources": [(HEAD, listed("undo/x")), (f"{NAME}/undo/x", b"x")],
    "negative": [(HEAD, listed("a", size=-1)), (f"{NAME}/a", b"x")],
    "file as directory": [
        (HEAD, sums(a=b"x", a__b=b"x")),
        (f"{NAME}/a", b"x"),
        (f"{NAME}/a/b", b"x"),
    ],
    "directory as file": [
        (HEAD, sums(a__b__c=b"x", a=b"x")),
        (f"{NAME}/a/b/c", b"x"),
        (f"{NAME}/a", b"x"),
    ],
}


@pytest.mark.parametrize("what", HOSTILE)
def test_what_is_no_whole_archive_leaves_nothing(what: str, tmp_path: Path) -> None:
    source = packed(tmp_path / "hostile.tar.gz", HOSTILE[what])
    store = RunStore(tmp_path / "deep" / "runs")
    store.root.mkdir(parents=True)

    code = execute(["runs", "restore", "--runs-dir", str(store.root), str(source)])

    assert code == 254
    assert list(store.root.iterdir()) == []
    assert sorted(path.name for path in tmp_path.iterdir()) == ["deep", "hostile.tar.gz"]


def flipped(content: bytes) -> bytes:
    middle = len(content) // 2
    return content[:middle] + bytes([content[middle] ^ 1]) + content[middle + 1 :]


@pytest.mark.parametrize(
    "damage",
    [
        lambda c: c[: len(c) // 2],
        lambda c: c[:5],
        flipped,
        lambda c: b"",
        lambda c: c[9:],
        # At its end: without what gzip says of the whole, wrong about it, or with more behind.
        lambda c: c[:-8],
        lambda c: c[:-8] + bytes([c[-8] ^ 1]) + c[-7:],
        lambda c: c[:-1] + bytes([c[-1] ^ 1]),
        lambda c: c + b"junk",
        lambda c: c + c,
    ],
)
def test_a_damaged_archive_is_refused(
    run: RunDirectory, tmp_path: Path, damage: Callable[[bytes], bytes]
) -> None:
    target = archive(run, tmp_path / "whole.gz")
    target.write_bytes(damage(target.read_bytes()))
    store = RunStore(tmp_path / "elsewhere")

    with pytest.raises(MalformedHistory):
        restore(target, store)
    assert store.runs() == ()


def test_a_bomb_is_refused_by_its_own_sums(tmp_path: Path) -> None:
    bomb = tmp_path / "bomb.gz"
    with gzip.open(bomb, "wb", compresslevel=9) as stream:
        stream.write(b"\0" * (200 << 20))

    with pytest.raises(MalformedHistory):
        restore(bomb, RunStore(tmp_path / "runs"))


def long_name() -> tarfile.TarInfo:
    member = tarfile.TarInfo()
    member.type, member.size = tarfile.GNUTYPE_LONGNAME, 1 << 33
    return member


def test_a_name_of_gigabytes_is_not_read(tmp_path: Path) -> None:
    source = tmp_path / "name.gz"
    with gzip.open(source, "wb") as stream:
        head = tarfile.TarInfo(HEAD)
        head.size = len(sums())
        stream.write(head.tobuf(tarfile.USTAR_FORMAT) + sums().ljust(512, b"\0"))
        member = long_name()
        member.name = "././@LongLink"
        stream.write(member.tobuf(tarfile.GNU_FORMAT))
        stream.write(bytes(64 << 20))

    with pytest.raises(MalformedHistory, match="no regular file"):
        restore(source, RunStore(tmp_path / "runs"))


def test_a_run_is_removed_only_once_its_archive_was_read_back(
    run: RunDirectory, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def torn(run: RunDirectory, target: Path, *, held: bool) -> Path:
        written = archive(run, target, held=held)
        written.write_bytes(written.read_bytes()[:-2000])
        return written

    monkeypatch.setattr("cli.runs.archive", torn)
    of = ["--runs-dir", str(run.root.parent)]

    assert execute(["runs", "archive", *of, NAME, "--to", str(tmp_path), "--remove"]) == 254
    assert run.root.is_dir()


def test_what_a_killed_restore_left_is_removed_by_the_next(
    run: RunDirectory, tmp_path: Path
) -> None:
    target = archive(run, tmp_path / "whole.gz")
    store = RunStore(tmp_path / "elsewhere")
    left = store.root / f".{NAME}.abc.restoring"
    left.mkdir(parents=True)

    restore(target, store)

    assert [path.name for path in store.root.iterdir()] == [NAME]


def test_an_archive_that_asks_for_more_than_there_is_names_both(
    run: RunDirectory,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    source = archive(run, tmp_path / "whole.gz")
    free = shutil.disk_usage(tmp_path)._replace(free=(256 << 20) + 1000)
    monkeypatch.setattr(shutil, "disk_usage", lambda _: free)

    code = execute(["runs", "restore", "--runs-dir", str(tmp_path / "other"), str(source)])

    assert code == 255
    told = capsys.readouterr().err
    assert "bytes, and 268,436,456 are free, of which 268,435,456 stay free" in told
    assert not (tmp_path / "other").exists()


def test_an_archive_that_would_fill_a_disk_for_nothing_is_refused_unread(tmp_path: Path) -> None:
    zeros = bytes(80 << 20)
    bomb = packed(tmp_path / "bomb.gz", [(HEAD, listed("a", zeros)), (f"{NAME}/a", zeros)])

    assert bomb.stat().st_size < 200 << 10
    with pytest.raises(MalformedHistory, match="expected at most 67,108,864 bytes in an archive"):
        restore(bomb, RunStore(tmp_path / "runs"))
    # What could not be brought back must not be removed, either.
    with pytest.raises(MalformedHistory, match="expected at most"):
        require_whole(bomb)


def test_a_run_that_was_restored_is_as_readable_as_any(run: RunDirectory, tmp_path: Path) -> None:
    target = archive(run, tmp_path / "whole.gz")
    (tmp_path / "mine").mkdir()

    back = restore(target, RunStore(tmp_path / "elsewhere"))

    assert back.root.stat().st_mode == (tmp_path / "mine").stat().st_mode


def test_a_run_on_another_file_system_is_removed_there(run: RunDirectory, tmp_path: Path) -> None:
    with tempfile.TemporaryDirectory(dir="/dev/shm") as other:
        if os.stat(other).st_dev == tmp_path.stat().st_dev:
            lacking("no two file systems that can be written")
        away = Path(other) / NAME
        shutil.copytree(run.root, away)
        of = ["--runs-dir", str(run.root.parent)]

        code = execute(["runs", "archive", *of, str(away), "--to", str(tmp_path), "--remove"])

        assert code == 0
        assert list(Path(other).iterdir()) == []
    assert run.root.is_dir()
    assert (tmp_path / f"{NAME}{SUFFIX}").is_file()


def test_a_run_that_another_process_works_on_is_not_archived(
    run: RunDirectory, tmp_path: Path
) -> None:
    with locked(run.root), pytest.raises(UsageError, match="another process works on it"):
        archive(run, tmp_path / f"{NAME}{SUFFIX}")

    assert os.listdir(tmp_path) == ["runs"]


@pytest.mark.parametrize("content", ["other", "longer than before", "-"])
def test_a_file_that_changes_between_its_sum_and_its_copy_makes_no_archive(
    run: RunDirectory, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, content: str
) -> None:
    note = run.root / "note"
    note.write_text("words")
    write = archive_module._write

    def late(*arguments: Any) -> None:
        note.write_text(content)
        write(*arguments)

    monkeypatch.setattr(archive_module, "_write", late)
    with pytest.raises(HarnessError, match=r"note: it (changed|became shorter) while it was arch"):
        archive(run, tmp_path / f"{NAME}{SUFFIX}")

    assert os.listdir(tmp_path) == ["runs"]


def test_of_two_that_bring_one_run_back_one_does_and_the_other_is_told(
    run: RunDirectory, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    target = archive(run, tmp_path / f"{NAME}{SUFFIX}")
    store = RunStore(tmp_path / "elsewhere")
    read, others = archive_module._read, []

    def late(*arguments: Any) -> None:
        read(*arguments)
        if not others:
            others.append(store)
            restore(target, store)

    monkeypatch.setattr(archive_module, "_read", late)
    with pytest.raises(UsageError, match="remove it first"):
        restore(target, store)

    assert os.listdir(store.root) == [NAME]
    assert files(store.root / NAME) == files(run.root)


def test_another_restore_between_making_a_directory_and_its_lock_takes_nothing_of_it(
    run: RunDirectory, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    target = archive(run, tmp_path / f"{NAME}{SUFFIX}")
    store = RunStore(tmp_path / "elsewhere")
    swept: list[Path] = []

    def late(directory: Path, *, shared: bool) -> int | None:
        if not swept:
            swept.append(directory)
            with archive_module._new_directory(store, NAME):
                assert not directory.exists()
        return lock_new_directory(directory, shared=shared)

    monkeypatch.setattr(archive_module, "lock_new_directory", late)
    restore(target, store)

    assert os.listdir(store.root) == [NAME]
    assert files(store.root / NAME) == files(run.root)


def test_a_run_is_held_until_it_is_removed_and_stays_where_it_changed_since_its_archive(
    run: RunDirectory,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    note = run.root / "note"
    held: list[bool] = []

    def late(run: RunDirectory, target: Path, **options: Any) -> Path:
        written = archive(run, target, **options)
        with locked(run.root) as unheld:
            held.append(not unheld)
        if len(held) == 1:
            note.write_text("words")
        return written

    monkeypatch.setattr("cli.runs.archive", late)
    command = ["runs", "archive", "--runs-dir", str(run.root.parent), NAME, "--remove", "--to"]

    assert execute([*command, str(tmp_path)]) == 255
    assert "is archived and stays: 'note' changed while it was" in capsys.readouterr().err
    assert note.read_text() == "words"

    (tmp_path / f"{NAME}{SUFFIX}").unlink()
    assert execute([*command, str(tmp_path)]) == 0
    assert held == [True, True]
    assert not run.root.exists()


def test_a_name_of_many_parts_is_refused_by_its_length(tmp_path: Path) -> None:
    source = packed(tmp_path / "name.gz", [(HEAD, listed("/".join("a" * 80_000)))])

    with pytest.raises(MalformedHistory, match="at most 255 characters, found 159999: 'a/a/a"):
        restore(source, RunStore(tmp_path / "runs"))


@pytest.mark.parametrize("more", [0, 1])
def test_zeros_behind_the_last_file_fill_one_record_and_no_more(tmp_path: Path, more: int) -> None:
    source = tmp_path / "zeros.gz"
    text = sums()
    member = tarfile.TarInfo(HEAD)
    member.size = len(text)
    with gzip.open(source, "wb") as stream:
        stream.write(member.tobuf(tarfile.USTAR_FORMAT) + text.ljust(512, b"\0"))
        stream.write(bytes(tarfile.BLOCKSIZE + tarfile.RECORDSIZE + more))

    refused = pytest.raises(MalformedHistory, match="expected at most 10,240 zeros behind its")
    with refused if more else contextlib.nullcontext():
        require_whole(source)
