"""What is named on the command line and can't be used is refused by its name, in a form that can be
printed; files that say one thing twice are refused, too.
"""

from __future__ import annotations

import io
import os
import shutil
import socket
import tarfile
from pathlib import Path

import msgspec
import pytest
from stranger_kit import NAME, Ended, copied, firedrill, forge, sound_run

from harness.history.manifest import read_manifest
from harness.history.run_directory import RunDirectory
from harness.protocols.promise import MAX_LOG_PATTERNS, LogPattern

ODD = os.fsdecode(b"h\xff\x1b[2Jx")
SHOWN = "h\\xff\\x1b[2Jx"
HISTORY = """\
{:type :invoke, :process 0, :f :txn, :value [[:append 1 1]], :index 0}
{:type :ok, :process 0, :f :txn, :value [[:append 1 1]], :index 1}
{:type :invoke, :process 1, :f :txn, :value [[:r 1 nil]], :index 2}
{:type :ok, :process 1, :f :txn, :value [[:r 1 [1]]], :index 3}
"""


@pytest.fixture(scope="module")
def sound(tmp_path_factory: pytest.TempPathFactory) -> RunDirectory:
    return sound_run(tmp_path_factory.mktemp("named") / NAME)


@pytest.fixture
def store(sound: RunDirectory, tmp_path: Path) -> Path:
    copied(sound, tmp_path / "runs" / NAME)
    return tmp_path / "runs"


def refused(ended: Ended, *said: str) -> None:
    assert ended.code == 254, ended.said
    assert "unexpected" not in ended.said
    assert "Traceback" not in ended.said
    for each in said:
        assert each in ended.said, ended.said


@pytest.mark.parametrize(
    "words",
    [
        ("check", f"{ODD}.edn"),
        ("check", f"{ODD}.edn", "--json"),
        ("check", NAME, "--output", ODD),
        ("report", ODD),
        ("runs", "--runs-dir", ODD),
        ("runs", "archive", NAME, "--to", ODD),
        ("runs", "tag", NAME, ODD),
        ("export", NAME, "--edn", "-o", ODD),
        ("compare", NAME, ODD),
        ("campaign", f"{ODD}.toml"),
        ("cleanup", ODD),
        (ODD,),
    ],
)
def test_a_name_that_is_no_utf_8_is_refused_in_a_form_that_can_be_printed(
    words: tuple[str, ...], store: Path, tmp_path: Path
) -> None:
    (tmp_path / f"{ODD}.edn").write_text(HISTORY)
    shutil.copytree(store, tmp_path / ODD)

    ended = firedrill(*words, cwd=tmp_path)

    refused(ended, "expected UTF-8", SHOWN)


@pytest.mark.parametrize("variable", ["FIREDRILL_RUNS_DIR", "TMPDIR"])
def test_so_is_one_of_the_environment(variable: str, store: Path, tmp_path: Path) -> None:
    ended = firedrill("check", NAME, cwd=tmp_path, env={variable: ODD})

    refused(ended, f"{variable}: expected UTF-8", SHOWN)


def test_so_is_the_working_directory(store: Path, tmp_path: Path) -> None:
    (tmp_path / ODD).mkdir()
    shutil.copytree(store / NAME, tmp_path / ODD / NAME)

    ended = firedrill("check", ".", cwd=tmp_path / ODD / NAME)

    refused(ended, "the working directory: expected UTF-8", SHOWN)


@pytest.mark.parametrize("name", [f"nodes/{ODD}", f"nodes/n1/{ODD}.log", f"history/{ODD}", ODD])
def test_so_is_one_within_a_run(name: str, store: Path, tmp_path: Path) -> None:
    path = store / NAME / name
    if path.parent.name == "nodes":
        path.mkdir()
        (path / "node.log").write_text("panic: x\n")
    else:
        path.write_text("x")

    for command in ("check", "report", "replay", "shrink", "cleanup"):
        refused(firedrill(command, NAME, cwd=tmp_path), SHOWN, "expected a name in UTF-8")
    listed = firedrill("runs", cwd=tmp_path)
    assert listed.code == 0, listed.said


@pytest.mark.parametrize("name", ["./nothere.edn", "nothere.edn", "no/nothere.json", "/no/where"])
@pytest.mark.parametrize("command", ["check", "report"])
def test_a_file_that_is_not_there_is_not_called_a_run(
    command: str, name: str, tmp_path: Path
) -> None:
    ended = firedrill(command, name, cwd=tmp_path)

    refused(ended, f"firedrill: {name}: No such file or directory")


@pytest.mark.parametrize(
    ("name", "why"),
    [
        ("x" * 300 + ".edn", "File name too long"),
        ("x" * 300, ""),
        ("file.edn/x", "Not a directory"),
    ],
)
def test_a_name_that_the_system_refuses_is_refused(name: str, why: str, tmp_path: Path) -> None:
    (tmp_path / "file.edn").write_text(HISTORY)

    refused(firedrill("check", name, cwd=tmp_path), why)


@pytest.mark.parametrize("name", ["history.edn", "plain"])
@pytest.mark.parametrize("what", ["a FIFO", "a socket", "a device"])
def test_what_is_neither_a_file_nor_a_directory_is_called_what_it_is(
    what: str, name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)  # the path of a socket has few characters
    with socket.socket(socket.AF_UNIX) as listener:
        if what == "a FIFO":
            os.mkfifo(name)
        elif what == "a socket":
            listener.bind(name)
        else:
            os.symlink("/dev/zero", name)

        for words in (("check",), ("check", "--json"), ("report",), ("cleanup",)):
            ended = firedrill(*words, name, cwd=tmp_path)
            refused(ended, f"firedrill: {name}: it is {what}, expected ")


def test_a_file_in_the_place_of_a_run_is_called_a_file(tmp_path: Path) -> None:
    (tmp_path / "history.edn").write_text(HISTORY)

    ended = firedrill("report", "history.edn", cwd=tmp_path)

    refused(ended, "firedrill: history.edn: it is a file, expected the directory of a run")


def twice(content: bytes, key: str, value: str) -> bytes:
    """The JSON of one object in ``content``, with ``key`` before everything else in it."""
    return content.replace(b"{", f'{{"{key}": {value},'.encode(), 1)


def test_a_key_that_stands_twice_in_a_manifest_is_refused(store: Path, tmp_path: Path) -> None:
    manifest = store / NAME / "manifest.json"
    manifest.write_bytes(twice(manifest.read_bytes(), "state", '"running"'))

    for command in ("check", "report", "replay"):
        refused(firedrill(command, NAME, cwd=tmp_path), "found 'state' twice", "manifest.json")


def test_so_is_one_deep_in_it(store: Path, tmp_path: Path) -> None:
    manifest = store / NAME / "manifest.json"
    content = manifest.read_bytes()
    sums = content.index(b'"checksums": {') + len(b'"checksums": ')
    manifest.write_bytes(content[:sums] + twice(content[sums:], "plan.toml", '"00"'))

    refused(firedrill("check", NAME, cwd=tmp_path), "found 'plan.toml' twice")


def test_a_verdict_that_says_two_things_is_no_verdict(store: Path, tmp_path: Path) -> None:
    assert firedrill("check", NAME, "--executor", "local", cwd=tmp_path).code == 0
    verdict = store / NAME / "analysis" / "verdict.json"
    verdict.write_bytes(twice(verdict.read_bytes(), "outcome", '"violation"'))

    ended = firedrill("report", NAME, cwd=tmp_path)

    refused(ended, "found 'outcome' twice", "verdict.json")


def test_so_is_a_name_in_the_sums_of_an_archive(store: Path, tmp_path: Path) -> None:
    assert firedrill("runs", "archive", NAME, cwd=tmp_path).code == 0
    path = tmp_path / f"{NAME}.run.tar.gz"
    with tarfile.open(path) as tar:
        parts = [(member, tar.extractfile(member).read()) for member in tar]  # type: ignore[union-attr]
    with tarfile.open(path, "w:gz", format=tarfile.USTAR_FORMAT) as tar:
        for number, (member, content) in enumerate(parts):
            if number == 0:
                content = twice(content, "run", f'"{NAME}"')
                member.size = len(content)
            tar.addfile(member, io.BytesIO(content))

    for words in (("check", path.name), ("runs", "restore", path.name)):
        refused(firedrill(*words, "--runs-dir", "other", cwd=tmp_path), "found 'run' twice")


@pytest.mark.parametrize(
    "words",
    [("runs", "archive", NAME, "--to", "nowhere/x"), ("export", NAME, "--edn", "-o", "nowhere/x")],
)
@pytest.mark.parametrize("there", [False, True], ids=["not there", "a file"])
def test_a_target_in_a_directory_that_is_not_there_is_refused(
    there: bool, words: tuple[str, ...], store: Path, tmp_path: Path
) -> None:
    if there:
        (tmp_path / "nowhere").touch()
    # An archive's own directory is made, as far as one can be.
    elif words[0] == "runs":
        assert firedrill(*words, cwd=tmp_path).code == 0
        assert len(list((tmp_path / "nowhere" / "x").iterdir())) == 1
        return
    refused(firedrill(*words, cwd=tmp_path), "nowhere")


def test_more_patterns_of_logs_than_any_system_has_are_refused(store: Path, tmp_path: Path) -> None:
    run = RunDirectory(store / NAME)
    declared, recorded = read_manifest(run).declaration, run.manifest.read_bytes()

    def declaring(count: int, regex: str) -> None:
        logs = tuple(LogPattern(name=f"p{n}", regex=regex, breaks=True) for n in range(count))
        run.manifest.write_bytes(recorded)
        forge(run, declaration=msgspec.structs.replace(declared, logs=logs))

    declaring(MAX_LOG_PATTERNS, "^panic")
    assert firedrill("check", NAME, "--executor", "local", cwd=tmp_path).code == 0
    for count, regex in ((MAX_LOG_PATTERNS + 1, "^panic"), (1, "x" * 2000)):
        declaring(count, regex)
        for words in (("check", NAME), ("export", NAME, "--jsonl")):
            refused(firedrill(*words, cwd=tmp_path), "expected at most 200 log patterns")
