"""``cleanup`` and ``check`` know a run by what it is, not by what its path is called."""

from __future__ import annotations

from pathlib import Path

import pytest

from cli.main import execute
from harness.history.manifest import write_manifest
from harness.history.run_directory import SCHEMA_VERSION, Manifest, RunDirectory
from harness.protocols.promise import Declaration

RUN_ID = "20261121-104500-drill-1a2b"


@pytest.fixture
def asked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[str | None]:
    """Whose containers are asked for; nothing is removed."""
    found: list[str | None] = []

    def cleanup(
        run_id: str | None = None, *, kept: bool = False, directory: str = "", force: bool = False
    ) -> list[str]:
        found.append(run_id)
        return []

    monkeypatch.setattr("clusters.providers.docker.cleanup.cleanup", cleanup)
    monkeypatch.setenv("FIREDRILL_RUNS_DIR", str(tmp_path / "runs"))
    return found


def begun(root: Path) -> RunDirectory:
    root.mkdir(parents=True)
    run = RunDirectory(root)
    manifest = Manifest(
        schema_version=SCHEMA_VERSION,
        run_id=RUN_ID,
        state="running",
        versions={},
        machine={},
        declaration=Declaration(system="reference", mode="SC", promises=()),
        workload="list-append",
        checkers=(),
    )
    write_manifest(run, manifest)
    return run


def test_whatever_a_path_is_called_the_run_is_found(
    tmp_path: Path, asked: list[str | None], monkeypatch: pytest.MonkeyPatch
) -> None:
    runs = tmp_path / "runs"
    run = begun(runs / RUN_ID)
    (runs / "latest").symlink_to(RUN_ID)
    monkeypatch.chdir(run.root)

    for name in (str(runs / "latest"), ".", f"../{RUN_ID}", "latest", RUN_ID):
        assert execute(["cleanup", name]) == 0

    assert asked == [RUN_ID] * 5


def test_a_run_that_was_moved_keeps_its_identifier(tmp_path: Path, asked: list[str | None]) -> None:
    begun(tmp_path / "archive" / "that-bad-one")

    assert execute(["cleanup", str(tmp_path / "archive" / "that-bad-one")]) == 0
    assert asked == [RUN_ID]


def test_a_damaged_run_is_cleaned_up_by_its_name(tmp_path: Path, asked: list[str | None]) -> None:
    run = begun(tmp_path / "runs" / RUN_ID)
    run.undo.mkdir()
    run.manifest.write_text("{")

    assert execute(["cleanup", str(run.root)]) == 0
    assert asked == [RUN_ID]


def test_a_directory_that_is_no_run_is_refused(
    tmp_path: Path, asked: list[str | None], capsys: pytest.CaptureFixture[str]
) -> None:
    assert execute(["cleanup", str(tmp_path)]) == 254
    assert asked == []
    assert "expected the directory of a run" in capsys.readouterr().err


def test_what_a_plug_ins_provider_made_is_left_to_it(
    tmp_path: Path, asked: list[str | None], capsys: pytest.CaptureFixture[str]
) -> None:
    run = begun(tmp_path / "runs" / RUN_ID)
    run.plan.write_text('[cluster]\nprovider = "of-a-plug-in"\n')
    run.undo.mkdir()
    (run.undo / "processes.json").write_text("the plug-in's own")

    assert execute(["cleanup", "--all"]) == 0
    assert execute(["cleanup", RUN_ID]) == 255
    said = capsys.readouterr().err
    assert f"{RUN_ID}: only provider 'of-a-plug-in' knows what it made" in said
    assert "no list of processes" not in said


@pytest.mark.parametrize(
    ("provider", "kept", "code"), [("docker", True, 255), ("process", False, 0)]
)
def test_a_cluster_that_nobody_looked_at_stays_marked_as_kept(
    provider: str, kept: bool, code: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DOCKER_HOST", f"unix://{tmp_path}/no-daemon")
    run = begun(tmp_path / "runs" / RUN_ID)
    run.plan.write_text(f'[cluster]\nprovider = "{provider}"\n')
    run.undo.mkdir()
    run.kept.touch()

    assert execute(["cleanup", str(run.root)]) == code
    assert run.kept.exists() is kept


def test_force_needs_a_name(asked: list[str | None], capsys: pytest.CaptureFixture[str]) -> None:
    assert execute(["cleanup", "--force"]) == 254
    assert asked == []
    assert "--force is for runs that are named" in capsys.readouterr().err


def test_check_of_a_dot_says_which_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(begun(tmp_path / RUN_ID).root)

    execute(["check", ".", "--executor", "local"])

    assert f"{RUN_ID} was not sealed" in capsys.readouterr().err
