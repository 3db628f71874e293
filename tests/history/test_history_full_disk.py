"""A disk with no room for a run: said with the path, and no empty run is left behind."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

import pytest
from capabilities import small_disk
from run_stores import made

from cli.main import execute
from results.store.store import RunStore

DRILL = ["run", "--provider", "sim", "--executor", "local", "--set", "nemesis.mix=[]"]


def fill(disk: Path) -> None:
    with suppress(OSError), (disk / "filler").open("wb", buffering=0) as filler:
        while True:
            filler.write(bytes(4096))


@pytest.mark.parametrize(
    ("size", "filled", "begins", "file"),
    [("64k", True, "cannot write", "plan.toml"), ("1m", False, "cannot begin", "chunk")],
    ids=["not even for the plan", "not for the history"],
)
def test_a_disk_without_room_for_a_run_is_named_and_keeps_no_part_of_it(
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    size: str,
    filled: bool,
    begins: str,
    file: str,
) -> None:
    # Somebody else takes the room between the look at it and the first file.
    monkeypatch.setattr("cli.wiring.require_room", lambda plan, store: None)
    with small_disk(tmp_path / "disk", size) as disk:
        store = RunStore(disk / "runs")
        before = made(store, "before", 1_000_000_000, b"\x00\x01")
        if filled:
            fill(disk)

        code = execute([*DRILL, "--runs-dir", str(store.root)])

        said = capsys.readouterr().err.splitlines()[-1]
        assert code == 255
        assert said.startswith(f"firedrill: {begins} {store.root}/")
        assert file in said
        assert "No space left" in said
        assert store.runs() == (before,)
        assert store.resolve("latest").root == before.root.resolve()


def test_a_run_that_hardly_fits_is_refused_before_anything_is_made(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with small_disk(tmp_path / "disk", "1m") as disk:
        store = RunStore(disk / "runs")

        code = execute([*DRILL, "--runs-dir", str(store.root)])

        said = capsys.readouterr().err.splitlines()[-1]
        assert code == 255
        assert said.startswith("firedrill: the run may need ")
        assert "1 MiB are free" in said
        assert not store.root.exists()
