"""Names of a run directory that stand for something else: links of every kind, FIFOs, sockets,
devices, directories. No command follows, opens, writes or removes what they lead to.
"""

from __future__ import annotations

import os
import shutil
import socket
import stat
from collections.abc import Callable
from pathlib import Path

import pytest
from stranger_kit import (
    CPU_LIMIT_S,
    MEMORY_LIMIT_BYTES,
    NAME,
    SECRET,
    Canaries,
    copied,
    firedrill,
    forge,
    reached,
    sound_run,
    usual,
    written_in,
)

from harness.history.run_directory import RunDirectory

FILES = (
    "plan.toml",
    "manifest.json",
    "faults.parquet",
    "events.parquet",
    "controller.parquet",
    "states.parquet",
    "logs.parquet",
    "assignments.parquet",
    "topology.parquet",
    "report.html",
    "traceback.txt",
    "shrunk.toml",
    "trace.jsonl",
    "trace.svg",
    "reaper.log",
    ".report.html.partial",
    ".manifest.json.partial",
    ".plan.toml.partial",
    "history/transactions.parquet",
    "history/micro_ops-0000.parquet",
    "history/notes.parquet",
    "history/keys.parquet",
    "history/.transactions.parquet.partial",
    "chunks/w0-000000.chunk",
    "chunks/reserve-0",
    "analysis/verdict.json",
    "analysis/.verdict.json.partial",
    "analysis/figures.json",
    "analysis/.figures.json.partial",
    "analysis/cycles.parquet",
    "analysis/.cycles.parquet",
    "undo/processes.json",
    "undo/kept",
    "undo/fault-000000.json",
    "nodes/n1/node.log",
    "nodes/n1/container.log",
)
DIRECTORIES = ("history", "chunks", "analysis", "undo", "nodes", "nodes/n1")


def _link(target: Callable[[Canaries], Path]) -> Callable[[Path, Canaries], None]:
    def plant(path: Path, canaries: Canaries) -> None:
        path.symlink_to(target(canaries))

    return plant


def _socket(path: Path, _: Canaries) -> None:
    here = Path.cwd()
    os.chdir(path.parent)  # a socket's path has at most 107 bytes
    try:
        with socket.socket(socket.AF_UNIX) as listener:
            listener.bind(path.name)
    finally:
        os.chdir(here)


def _device(path: Path, _: Canaries) -> None:
    try:
        os.mknod(path, stat.S_IFCHR | 0o666, os.makedev(1, 5))  # /dev/zero: it never ends
    except PermissionError:
        os.mkfifo(path)  # only root makes devices; elsewhere it is one FIFO more


def _file(path: Path, _: Canaries) -> None:
    path.write_text("x")


def _of_itself(path: Path, _: Canaries) -> None:
    path.symlink_to(path.name)


PLANTS: dict[str, Callable[[Path, Canaries], None]] = {
    "a link to a secret": _link(lambda canaries: canaries.file),
    "a link to a plan": _link(lambda canaries: canaries.plan),
    "a link to nothing": _link(lambda canaries: canaries.directory / "new"),
    "a link to a directory": _link(lambda canaries: canaries.directory),
    "a link to a FIFO": _link(lambda canaries: canaries.root / "fifo"),
    "a link to itself": _of_itself,
    "a FIFO": lambda path, _: os.mkfifo(path),
    "a socket": _socket,
    "a device": _device,
    "a file": _file,
}
CASES = [
    (name, kind)
    for name in (*FILES, *DIRECTORIES)
    for kind in PLANTS
    # A directory goes by less: what leads elsewhere at all, and what is none.
    if (name in FILES and kind != "a file")
    or (name in DIRECTORIES and kind in ("a link to a directory", "a link to nothing", "a FIFO"))
]
# A node's own directory is named by what lies below it: a file there is no node.
PLAIN = [(name, "a file") for name in DIRECTORIES if name != "nodes/n1"]

WHOLE = os.environ.get("FIREDRILL_STRANGERS") == "all"
COMMANDS = (
    ("check", "--executor", "local", NAME),
    ("report", NAME),
    ("logs", NAME, "n1"),
    ("replay", NAME),
    ("shrink", NAME),
    ("cleanup", NAME),
)
STORE_COMMANDS = (
    ("runs",),
    ("runs", "--json"),
    ("runs", "prune", "--older-than", "1h", "--dry-run"),
    ("cleanup",),
)


@pytest.fixture(scope="module")
def sound(tmp_path_factory: pytest.TempPathFactory) -> RunDirectory:
    return sound_run(tmp_path_factory.mktemp("strangers") / NAME)


@pytest.fixture(scope="module")
def unsealed(tmp_path_factory: pytest.TempPathFactory) -> RunDirectory:
    return sound_run(tmp_path_factory.mktemp("strangers") / NAME, sealed=False)


def planted(original: RunDirectory, store: Path, name: str, kind: str, canaries: Canaries) -> Path:
    """A copy of ``original`` in ``store`` in which ``name`` is ``kind``, and no sum of it."""
    run = copied(original, store / NAME)
    path = run.root / name
    if path.is_dir():
        shutil.rmtree(path)
    path.unlink(missing_ok=True)
    path.parent.mkdir(exist_ok=True)
    if name != "manifest.json":
        manifest = forge(run)
        del manifest
    PLANTS[kind](path, canaries)
    return run.root


def assert_harmless(
    store: Path, canaries: Canaries, commands: tuple[tuple[str, ...], ...]
) -> list[tuple[tuple[str, ...], int, str]]:
    """Run ``commands``; nothing outside ``store`` is opened or changed, nothing of it is told."""
    told = []
    before = canaries.state()
    for command in commands:
        watch = canaries.watch()
        ended = firedrill(*command, "--runs-dir", str(store), cwd=store.parent)
        events = reached(watch)
        said = f"{' '.join(command)}: {ended.said}"
        assert events == b"", said
        assert SECRET not in ended.said
        assert "unexpected" not in ended.said, said
        assert "Traceback" not in ended.said, said
        judged = ended.code != 254 and command[0] in ("check", "report")
        # One without a sound run to be held against may take no more than one that judges nothing.
        like = usual()[command[0] if command[0] in usual() else "runs"]
        assert ended.cpu_s < CPU_LIMIT_S + (like.cpu_s if judged else 0), said
        assert ended.memory_bytes < MEMORY_LIMIT_BYTES + like.memory_bytes, said
        told.append((command, ended.code, ended.said))
    assert canaries.state() == before
    assert SECRET not in written_in(store)
    return told


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        pytest.param(name, kind, id=f"{name} is {kind}")
        for number, (name, kind) in enumerate(CASES)
        if WHOLE or number % 9 == 0
    ]
    + [pytest.param(name, kind, id=f"{name} is {kind}") for name, kind in PLAIN],
)
def test_what_stands_for_something_else_is_refused_by_name(
    name: str, kind: str, sound: RunDirectory, tmp_path: Path
) -> None:
    canaries = Canaries(tmp_path / "outside")
    store = tmp_path / "runs"
    store.mkdir()
    planted(sound, store, name, kind, canaries)

    for _command, code, said in assert_harmless(store, canaries, COMMANDS):
        assert code == 254, said
        assert name in said
        assert f"expected a {'directory' if kind == 'a file' else 'file'}" in said
    for command, code, said in assert_harmless(store, canaries, STORE_COMMANDS):
        assert code == (255 if command == ("cleanup",) else 0), said


@pytest.mark.parametrize("name", ["history", "chunks", "chunks/reserve-0", "analysis"])
def test_a_run_that_is_to_be_sealed_is_refused_before_anything_is_written(
    name: str, unsealed: RunDirectory, tmp_path: Path
) -> None:
    canaries = Canaries(tmp_path / "outside")
    store = tmp_path / "runs"
    store.mkdir()
    planted(unsealed, store, name, "a link to a directory", canaries)

    for _command, code, said in assert_harmless(store, canaries, COMMANDS[:2]):
        assert code == 254, said


def test_a_run_that_is_sound_is_judged_drawn_and_listed(
    sound: RunDirectory, tmp_path: Path
) -> None:
    canaries = Canaries(tmp_path / "outside")
    store = tmp_path / "runs"
    store.mkdir()
    copied(sound, store / NAME)

    told = assert_harmless(store, canaries, (*COMMANDS[:3], *STORE_COMMANDS))

    assert [code for _, code, _ in told] == [0] * len(told), told
    assert "VALID: every promise" in told[0][2]


def test_a_run_may_be_named_by_a_link_and_latest_is_one(
    sound: RunDirectory, tmp_path: Path
) -> None:
    store = tmp_path / "runs"
    store.mkdir()
    copied(sound, store / NAME)
    (store / "latest").symlink_to(NAME)
    (tmp_path / "mine").symlink_to(store / NAME)
    (tmp_path / "others").symlink_to(store)

    for path in ("latest", str(tmp_path / "mine"), str(tmp_path / "others" / NAME)):
        ended = firedrill(
            "check", path, "--executor", "local", "--runs-dir", str(store), cwd=tmp_path
        )
        assert (ended.code, "VALID: every promise" in ended.out) == (0, True), ended.said


def test_what_a_node_keeps_below_its_directory_may_be_anything(
    sound: RunDirectory, tmp_path: Path
) -> None:
    canaries = Canaries(tmp_path / "outside")
    store = tmp_path / "runs"
    store.mkdir()
    run = copied(sound, store / NAME)
    (run.node("n1") / "work").mkdir()
    (run.node("n1") / "python").symlink_to(canaries.directory)
    (run.node("n1") / "work" / "data").symlink_to(canaries.file)
    os.mkfifo(run.node("n1") / "work" / "pipe")

    told = assert_harmless(store, canaries, COMMANDS[:3])

    assert [code for _, code, _ in told] == [0, 0, 0], told
