"""Run as a script: ``gate.py PROGRAM ARGUMENT...`` waits for one byte, then becomes the program.

The controller lets a process through only once its identity stands on the disk. A controller that
dies before that closes the pipe, and no process is left behind. Becoming the program keeps the
process id and its start time, so the recorded identity stays true.
"""

from __future__ import annotations

import os
import sys


def main(argv: list[str]) -> int:
    """Wait for the byte, then become ``argv``. Returns only when there is no such program."""
    if not os.read(0, 1):
        return 1
    # The pipe of the gate must not stay open as the program's input.
    with open(os.devnull, "rb") as nothing:
        os.dup2(nothing.fileno(), 0)
    try:
        os.execvp(argv[0], argv)  # noqa: S606 (an argument vector, no shell)
    except OSError as error:
        print(f"cannot run {argv[0]}: {error.strerror}", file=sys.stderr)
    return 127


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
