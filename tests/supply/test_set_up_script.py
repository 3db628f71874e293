"""``scripts/set-up`` looks for Java again where the one that it found has gone.

The script runs as it is, in a checkout of stand-ins: its ``python`` says which Java there is, and
notes what it is asked to install.
"""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

SCRIPT = Path(__file__).resolve().parents[2] / "scripts" / "set-up"
LOCKS = ("run", "build", "jre")
PYTHON = """#!/bin/sh
case "$*" in
*java_binary*) [ -e java ] && echo "$PWD/java" ;;
*jre.lock*) echo "$*" >>installed; touch java; chmod +x java ;;
*) echo "$*" >>installed ;;
esac
"""


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    for directory in ("scripts", "requirements", ".venv/bin"):
        (tmp_path / directory).mkdir(parents=True)
    shutil.copy(SCRIPT, tmp_path / "scripts")
    for lock in LOCKS:
        (tmp_path / "requirements" / f"{lock}.lock").touch()
    (tmp_path / "pyproject.toml").touch()
    python = tmp_path / ".venv" / "bin" / "python"
    python.write_text(PYTHON)
    python.chmod(0o755)
    java = tmp_path / "java"
    java.touch()
    java.chmod(0o755)
    return tmp_path


def set_up(checkout: Path) -> list[str]:
    """Run the script; return what it installed."""
    log = checkout / "installed"
    log.unlink(missing_ok=True)
    script = checkout / "scripts" / "set-up"
    subprocess.run([script, "run"], check=True, capture_output=True, timeout=60)
    return log.read_text().splitlines() if log.exists() else []


def test_java_is_looked_for_again_where_the_one_that_was_found_has_gone(checkout: Path) -> None:
    first = set_up(checkout)
    assert any("run.lock" in line for line in first)
    assert not any("jre.lock" in line for line in first)
    assert set_up(checkout) == []

    (checkout / "java").unlink()
    again = set_up(checkout)

    assert ["jre.lock" in line for line in again] == [True]
    assert set_up(checkout) == []


def test_a_stamp_of_before_java_was_noted_costs_one_look(checkout: Path) -> None:
    set_up(checkout)
    (checkout / ".venv" / ".set-up-run").write_text("")

    assert set_up(checkout) == []
    assert (checkout / ".venv" / ".set-up-run").read_text() == f"{checkout / 'java'}\n"
