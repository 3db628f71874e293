"""How a process shows that it was ended: a terminal that is closed, a signal while Python ends."""

from __future__ import annotations

import os
import pty
import select
import signal
import subprocess
import sys
from pathlib import Path

from harness.exit_codes import EXIT_INTERRUPTED

CODE = "import sys; sys.argv = ['firedrill', *{}]; from cli.entry import main; main()"
PATIENCE_S = 120


def command(*arguments: str) -> list[str]:
    return [sys.executable, "-P", "-c", CODE.format(list(arguments))]


def test_a_terminal_that_is_closed_is_an_interruption(tmp_path: Path) -> None:
    # It writes a line for each seed that breaks a promise.
    simulation = ("--seeds", "500", "--bug", "ack-before-quorum", "--runs-dir", str(tmp_path))
    child, terminal = pty.fork()
    if child == 0:
        os.execv(sys.executable, command("sim", *simulation))  # noqa: S606
    seen = b""
    while b"seed" not in seen:
        assert select.select([terminal], [], [], PATIENCE_S)[0]
        seen += os.read(terminal, 1 << 16)
    os.close(terminal)

    _, status = os.waitpid(child, 0)

    assert os.waitstatus_to_exitcode(status) == EXIT_INTERRUPTED


LATE = """
import os, signal, sys

class Late:
    '''Is removed when Python has ended everything else.'''

    def __del__(self, kill=os.kill, own=os.getpid(), number=signal.SIGTERM):
        kill(own, number)

sys.late = Late()
sys.argv = ["firedrill", "list", "faults"]
from cli.main import main
main()
"""


def test_a_signal_while_python_ends_changes_no_exit_code() -> None:
    ended = subprocess.run(
        [sys.executable, "-P", "-c", LATE], capture_output=True, timeout=PATIENCE_S, check=False
    )

    assert ended.returncode == 0, ended.stderr
    assert signal.SIGTERM.name not in ended.stderr.decode()
