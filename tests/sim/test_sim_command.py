"""The command line runs a plan on the virtual loop as it runs it on containers."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pyarrow.parquet as pq

FIREDRILL = Path(sys.executable).with_name("firedrill")
ROOT = Path(__file__).resolve().parents[2]
PLAN = ROOT / "scenarios" / "reference" / "drill.toml"


def drill(store: Path, *flags: str) -> subprocess.CompletedProcess[str]:
    fixed = ["--provider", "sim", "--executor", "local", "--duration", "12", "--no-report"]
    fixed += ["--concurrency", "3"]  # what a simulation costs is its operations
    return subprocess.run(
        [FIREDRILL, "run", PLAN, *fixed, *flags, "--runs-dir", store],
        capture_output=True,
        text=True,
        timeout=600,
    )


def test_one_seed_is_one_history(tmp_path: Path) -> None:
    for name in ("first", "second"):
        done = drill(tmp_path / name, "--seed", "11")
        assert done.returncode == 0, done.stderr

    first, second = (tmp_path / name / "latest" for name in ("first", "second"))
    files = sorted(p.relative_to(first.resolve()) for p in first.resolve().rglob("*.parquet"))
    histories = [p for p in files if p.parts[0] != "analysis"]
    assert len(histories) >= 6
    assert pq.read_metadata(first / "history" / "transactions.parquet").num_rows > 100
    for path in histories:
        assert (first / path).read_bytes() == (second / path).read_bytes(), path


def test_an_unknown_system_is_refused_by_name(tmp_path: Path) -> None:
    done = drill(tmp_path, "--system", "nonesuch")

    assert done.returncode == 254
    assert "unknown system 'nonesuch'" in done.stderr
