"""A store in which another user keeps a run to himself: the others are listed and judged."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from capabilities import lacking

RUNS = Path(__file__).parents[1] / "evidence" / "runs"
MINE, THEIRS, SHUT = (f"20261123-00112{n}-drill-00a{n}" for n in range(3))
NOBODY = 65534
LIMIT_S = 120
# A test that is root's reads and writes everything; without these it is a user like others.
WITHOUT = "-dac_override,-dac_read_search,-fowner"


def firedrill(*arguments: str, store: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", "from cli.main import main; main()", *arguments]
    if os.geteuid() == 0:
        command = ["setpriv", "--bounding-set", WITHOUT, *command]
    return subprocess.run(
        [*command, "--runs-dir", str(store)], capture_output=True, text=True, timeout=LIMIT_S
    )


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Path]:
    if os.geteuid() == 0 and not shutil.which("setpriv"):
        lacking("setpriv, to drop what root may do")
    root = tmp_path / "runs"
    for name in (MINE, THEIRS, SHUT):
        shutil.copytree(RUNS / "sim-valid", root / name)
    (root / THEIRS / "states.parquet").chmod(0)
    (root / SHUT).chmod(0)
    if os.geteuid() == 0:
        for path in (root / THEIRS / "states.parquet", root / SHUT):
            os.chown(path, NOBODY, NOBODY)
    yield root
    (root / SHUT).chmod(0o700)  # pytest tidies up


@pytest.mark.parametrize(
    ("command", "code", "said"),
    [
        (["runs"], 0, "3 runs"),
        (["check", "--executor", "local", MINE], 0, "VALID"),
        (["check", "--executor", "local", THEIRS], 254, "states.parquet: it can't be read"),
        (["check", "--executor", "local", SHUT], 254, "it can't be read: Permission denied"),
        (["report", SHUT], 254, "it can't be read: Permission denied"),
        (["runs", "archive", THEIRS, "--to", "."], 254, "states.parquet: it can't be read"),
        (["runs", "archive", SHUT, "--to", "."], 254, "it can't be read: Permission denied"),
        (["runs", "prune", "--keep-last", "0", "--dry-run"], 0, "would remove"),
        (["cleanup"], 255, f"{SHUT} is passed over"),
    ],
)
def test_a_run_that_another_user_keeps_to_himself_stops_no_other(
    store: Path, command: list[str], code: int, said: str
) -> None:
    ended = firedrill(*command, store=store)

    told = ended.stdout + ended.stderr
    assert ended.returncode == code, told
    assert said in told
    assert "unexpected" not in told


@pytest.mark.parametrize("command", ["check", "report", "status"])
def test_a_directory_that_may_not_be_looked_into_is_refused_as_that(
    store: Path, command: str
) -> None:
    shut = store / "from elsewhere"
    (store / SHUT).rename(shut)
    try:
        ended = firedrill(command, str(shut), store=store)
    finally:
        shut.rename(store / SHUT)

    assert (ended.returncode, ended.stdout) == (254, ""), ended
    assert f"{shut}: Permission denied" in ended.stderr
