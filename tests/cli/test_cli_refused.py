"""What can't be done leaves nothing behind: no directory, no reaper, no claim."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest

from harness.cli.main import execute


def test_a_port_that_is_taken_is_refused_before_there_is_a_run(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]

        code = execute(
            [
                *("run", "--provider", "process", "--nodes", "1", "--executor", "local"),
                *("--set", f"cluster.options.first_port={port}", "--set", "nemesis.mix=[]"),
                *("--runs-dir", str(tmp_path)),
            ]
        )

    assert code == 255
    assert f"port {port} on 127.0.0.1 is taken" in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []
