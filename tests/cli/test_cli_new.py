"""``firedrill new`` writes packages that are installed, found and tested as its words say."""

from __future__ import annotations

import errno
import importlib.util
import json
import subprocess
import sys
from pathlib import Path

import pytest
from example_kit import BY_WHAT_IS_HERE, COMMAND_LIMIT_S, INSTALL_LIMIT_S, firedrill

from cli.main import execute
from cli.new import KINDS

NAMES = {kind: f"my{kind}" for kind in KINDS}


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory with a package of each kind."""
    root = tmp_path_factory.mktemp("written")
    for kind, name in NAMES.items():
        assert execute(["new", kind, name, "--into", str(root)]) == 0
    return root


@pytest.fixture(scope="module")
def environment(written: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """An environment in which all of them are installed."""
    target = tmp_path_factory.mktemp("installed")
    pip = (sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", BY_WHAT_IS_HERE)
    packages = (str(written / name) for name in NAMES.values())
    subprocess.run((*pip, "--target", str(target), *packages), check=True, timeout=INSTALL_LIMIT_S)
    return {"PATH": "/usr/bin:/bin", "PYTHONPATH": str(target)}


def test_doctor_finds_what_was_written_and_list_has_its_line(
    environment: dict[str, str], tmp_path: Path
) -> None:
    code, said = firedrill(environment, tmp_path, "doctor", "--json")

    findings = {row["name"]: row for row in json.loads(said)["findings"]}
    assert code == 0, said
    for kind, name in NAMES.items():
        for group in KINDS[kind].groups:
            assert findings[f"{group.removesuffix('s')} {name}"]["ok"], (kind, name)


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_the_tests_that_were_written_pass(
    kind: str, written: Path, environment: dict[str, str]
) -> None:
    tests = (sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "tests")
    done = subprocess.run(
        tests,
        cwd=written / NAMES[kind],
        env=environment,
        capture_output=True,
        text=True,
        timeout=COMMAND_LIMIT_S,
    )

    assert done.returncode == 0, done.stdout + done.stderr


def test_nothing_of_the_example_and_no_stranger_is_named_in_what_was_written(
    written: Path,
) -> None:
    for kind, name in NAMES.items():
        for path in (written / name).rglob("*.*"):
            if path.suffix == ".pyc":  # of a test of the package that ran before this one
                continue
            assert KINDS[kind].word not in f"{path}{path.read_text()}".lower(), path
        # A name of ours is another's in the public registry.
        assert "dependencies = []" in (written / name / "pyproject.toml").read_text()


@pytest.mark.parametrize(
    ("kind", "name", "words"),
    [
        ("checker", "My-Checker", "expected 2 to 30 small letters and digits"),
        ("workload", "class", "expected no word of Python's own"),
        ("workload", "bank", "there is a workload of that name"),
        ("fault", "json", "a module of that name is another's"),
        ("fault", "msilib", "a module of that name is another's"),  # of another platform
        ("checker", "firedrill", "a module of that name is another's"),
        ("workload", "tests", "a module of that name is another's"),
        ("system", "pillow", "a package of that name is installed"),  # its module is PIL
        ("workload", "nemesis", "there is a Python package of that name"),
        ("fault", "down", "the example's code has that word for something else"),
        ("workload", "mix", "the example's code has that word for something else"),
        ("system", "options", "the example's code has that word for something else"),
        ("checker", "nothing", "the example's code has that word for something else"),
    ],
)
def test_a_name_that_can_not_be_one_is_refused(
    kind: str,
    name: str,
    words: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert execute(["new", kind, name, "--into", str(tmp_path)]) == 254

    assert words in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


def test_nothing_is_written_over(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "mine").mkdir()

    assert execute(["new", "fault", "mine", "--into", str(tmp_path)]) == 254
    assert "nothing is written over" in capsys.readouterr().err


@pytest.mark.parametrize("below", ["", "deeper/still"])
def test_a_disk_that_takes_half_a_package_is_left_none(
    below: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    whole, written = Path.write_text, list[Path]()

    def full(path: Path, text: str) -> int:
        written.append(path)
        if len(written) == 3:
            raise OSError(errno.ENOSPC, "No space left on device")
        return whole(path, text)

    monkeypatch.setattr(Path, "write_text", full)

    assert execute(["new", "fault", "mine", "--into", str(tmp_path / below)]) == 255

    assert f"{written[-1]}: No space left on device" in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []
    monkeypatch.undo()
    assert execute(["new", "fault", "mine", "--into", str(tmp_path / below)]) == 0


def test_what_is_said_next_installs_what_was_written_here(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert execute(["new", "fault", "mine"]) == 0
    said = capsys.readouterr().out
    install = next(line for line in said.splitlines() if " pip install " in line)

    aside = ["--quiet", "--target", str(tmp_path / "installed")]
    subprocess.run([*install.split(), *aside], check=True, timeout=INSTALL_LIMIT_S)

    assert (tmp_path / "installed" / "mine" / "fault.py").is_file()


def test_what_tests_need_is_said_where_it_is_missing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    found = importlib.util.find_spec
    monkeypatch.setattr(
        "importlib.util.find_spec", lambda name: None if name == "pytest" else found(name)
    )

    assert execute(["new", "fault", "mine", "--into", str(tmp_path)]) == 0

    assert " -m pip install pytest\n" in capsys.readouterr().out


@pytest.mark.parametrize("below", ["", "deeper"])
def test_a_file_in_the_place_of_the_directory_is_a_mistake_of_the_user(
    below: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "file"
    file.write_text("mine")

    assert execute(["new", "fault", "mine", "--into", str(file / below)]) == 254
    assert (
        f"--into: expected a directory, found another file in its place: {file}"
        in capsys.readouterr().err
    )
    assert file.read_text() == "mine"


def test_a_link_that_leads_nowhere_is_not_written_over(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "mylinked").symlink_to(tmp_path / "gone")

    assert execute(["new", "fault", "mylinked", "--into", str(tmp_path)]) == 254

    assert "it is there already" in capsys.readouterr().err
    assert (tmp_path / "mylinked").is_symlink()
    assert not (tmp_path / "gone").exists()
