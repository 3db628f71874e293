"""The disk of the run store fills up under a run: an honest end, and never a false verdict."""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
import time
from pathlib import Path

import pytest
from capabilities import small_disk

FIREDRILL = Path(sys.executable).with_name("firedrill")
RUN_LIMIT_S = 100
END_LIMIT_S = 60.0  # a drive of 4 s, healing, reading the rest, judging: on a loaded machine


def fill(disk: Path) -> None:
    with contextlib.suppress(OSError), (disk / "filler").open("wb", buffering=0) as filler:
        while True:
            filler.write(bytes(1 << 16))


@pytest.mark.slow
def test_a_full_store_makes_a_run_unknown_or_an_error_and_leaves_no_process(tmp_path: Path) -> None:
    with small_disk(tmp_path / "disk", "120m") as disk:
        command = (
            *(FIREDRILL, "run", "--provider", "process", "--nodes", "3", "--executor", "local"),
            *("--duration", "4", "--set", "nemesis.mix=[]", "--set", "limits.quiesce_s=5"),
            *("--set", "limits.final_reads_s=5", "--runs-dir", disk / "runs"),
        )
        process = subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )
        assert process.stderr
        said = []
        for line in process.stderr:
            said.append(line)
            if "drive for" in line:
                break
        began_s = time.monotonic()
        fill(disk)
        out, err = process.communicate(timeout=RUN_LIMIT_S)

        assert process.returncode in (2, 255), (out, err)
        assert time.monotonic() - began_s < END_LIMIT_S
        assert "Traceback" not in err
        assert "disk is full" in out + err or "No space left" in out + err
        manifest = json.loads((disk / "runs" / "latest" / "manifest.json").read_text())
        assert manifest["out_of_room"] is True
        (disk / "filler").unlink()
        cleaned = subprocess.run(
            [FIREDRILL, "cleanup", "--runs-dir", disk / "runs"],
            capture_output=True, text=True, timeout=60, check=True,
        )  # fmt: skip
        assert "removed process" not in cleaned.stdout
        checked = subprocess.run(
            [FIREDRILL, "check", "latest", "--runs-dir", disk / "runs", "--executor", "local",
             "--json"],
            capture_output=True, text=True, timeout=100, check=False,
        )  # fmt: skip
        assert checked.returncode == 2, (checked.stdout, checked.stderr)
        assert json.loads(checked.stdout)["outcome"] == "unknown"
