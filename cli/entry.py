"""The console script: handles Ctrl-C and errors before the command line is imported.

Importing it takes a moment in which Ctrl-C would show a traceback. Nothing has begun then, so the
process may exit at once. An error there, as of a module that finds no memory, must not end the
process with Python's own code, which is that of a violation.
"""

from __future__ import annotations

import os
import resource
import signal
import sys
import traceback
from collections.abc import Sequence
from importlib import import_module
from types import FrameType, ModuleType

# As in ``harness.exit_codes``, which is not imported yet.
_INTERRUPTED, _HARNESS_ERROR = 130, 255
_WATCHED = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
# Libraries that end the process, or crash, where a limit of its addresses (``ulimit -v``) leaves
# no room to load them, by what has to be loaded of each.
_ENDING = {"numpy": "numpy", "pyarrow": "pyarrow.parquet"}


class _TriedFirst:
    """A finder of modules that finds none: it has a copy of this process load a library first, and
    refuses one that ends the copy.
    """

    def __init__(self) -> None:
        self._left = dict(_ENDING)

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> None:
        """See ``importlib.abc.MetaPathFinder``. Raises ``HarnessError``."""
        if name not in self._left:
            return
        child = os.fork()
        if child == 0:
            loaded = self._left[name]
            self._left.clear()
            _load_and_end(loaded)
        _, status = os.waitpid(child, 0)
        if status:
            from harness.errors import HarnessError

            limit_mib = resource.getrlimit(resource.RLIMIT_AS)[0] >> 20
            why = f"it can't be loaded within {limit_mib} MiB of addresses (ulimit -v)"
            raise HarnessError(f"{name}: {why}")
        del self._left[name]


def _load_and_end(name: str) -> None:
    code = 1
    try:
        quiet = os.open(os.devnull, os.O_WRONLY)
        os.dup2(quiet, 1)
        os.dup2(quiet, 2)
        import_module(name)
        code = 0
    finally:
        os._exit(code)


def main() -> None:
    """Import the command line and run it; exits with its code."""
    # A script's shell starts background jobs with SIGINT ignored; that stays so.
    asked = [number for number in _WATCHED if signal.getsignal(number) is not signal.SIG_IGN]
    before = {number: signal.signal(number, _leave) for number in asked}
    if resource.getrlimit(resource.RLIMIT_AS)[0] != resource.RLIM_INFINITY:
        sys.meta_path.insert(0, _TriedFirst())
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
