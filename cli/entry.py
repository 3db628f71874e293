"""The console script: handles Ctrl-C and errors before the command line is imported.

Importing it takes a moment in which Ctrl-C would show a traceback. Nothing has begun then, so the
process may exit at once. An error there, as of a module that finds no memory, must not end the
process with Python's own code, which is that of a violation.
"""

from __future__ import annotations

import os
import signal
import sys
import traceback
from types import FrameType

# As in ``harness.exit_codes``, which is not imported yet.
_INTERRUPTED, _HARNESS_ERROR = 130, 255
_WATCHED = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


def main() -> None:
    """Import the command line and run it; exits with its code."""
    # A script's shell starts background jobs with SIGINT ignored; that stays so.
    asked = [number for number in _WATCHED if signal.getsignal(number) is not signal.SIG_IGN]
    before = {number: signal.signal(number, _leave) for number in asked}
    try:
        from cli.main import main as command_line

        # The others stay, until the command line sets its own: by default they end a process.
        if signal.SIGINT in before:
            signal.signal(signal.SIGINT, before[signal.SIGINT])
        command_line()
    except KeyboardInterrupt:  # before or after the command line's own handling
        _leave()
    except Exception:
        traceback.print_exc()
        sys.exit(_HARNESS_ERROR)


def _leave(_number: int = 0, _frame: FrameType | None = None) -> None:
    try:
        # The signal may have come within a write to sys.stderr, whose lock would still be held.
        os.write(2, b"firedrill: interrupted\n")
    finally:
        os._exit(_INTERRUPTED)
