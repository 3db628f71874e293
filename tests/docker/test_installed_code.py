"""What a machine has once a program was installed there."""

from __future__ import annotations

import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from clusters.providers.remote.install import Places, install
from harness.protocols.cluster import Program, PythonTree


class Here:
    """A session with this machine."""

    node = "here"

    def run(self, argv: Sequence[str], *, stdin: bytes = b"", **_: object) -> bytes:
        return subprocess.run(argv, input=stdin, capture_output=True, check=True).stdout


def test_a_first_start_finds_its_code_compiled(tmp_path: Path) -> None:
    source = tmp_path / "source"
    source.mkdir()
    (source / "__init__.py").write_text("")
    (source / "sound.py").write_text("x = 1\n")
    (source / "broken.py").write_text("x = (\n")
    places = Places(
        code=str(tmp_path / "code"), work=str(tmp_path / "work"), pid_file=str(tmp_path / "pid")
    )
    here: Any = Here()
    program = Program(
        argv=("python3", "-m", "shop.sound"),
        python=(PythonTree(source=str(source), package="shop"),),
        files={},
    )

    install(here, program, places)

    compiled = {path.name.split(".")[0] for path in (tmp_path / "code").rglob("*.pyc")}
    assert compiled == {"__init__", "sound"}
