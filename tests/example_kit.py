"""An example's package as its reader would use it: installed, and found from the command line."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]
INSTALL_LIMIT_S, COMMAND_LIMIT_S = 120, 180
BY_WHAT_IS_HERE = "--no-build-isolation"  # or each install would fetch what builds it


def installed_into(target: Path, example: Path) -> dict[str, str]:
    """An environment in which the package in ``example`` is installed, below ``target``."""
    pip = (sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", BY_WHAT_IS_HERE)
    command = (*pip, "--target", str(target), str(example))
    subprocess.run(command, check=True, timeout=INSTALL_LIMIT_S)
    return {**os.environ, "PYTHONPATH": str(target)}


def firedrill(environment: dict[str, str], runs: Path, *words: str) -> tuple[int, str]:
    """The exit code of a command over the store ``runs``, and what it said."""
    command = Path(sys.executable).with_name("firedrill")
    done = subprocess.run(
        (str(command), *words, "--runs-dir", str(runs)),
        env=environment,
        capture_output=True,
        text=True,
        timeout=COMMAND_LIMIT_S,
        cwd=runs,
    )
    return done.returncode, done.stdout + done.stderr
