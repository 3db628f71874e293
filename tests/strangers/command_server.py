"""A process that has imported what commands import late, and forks one for each command line that
it is sent: ``command_server.py FD``. So each begins with the same memory, however much the tests
hold or have given back, and takes no time to start.

Each line of the socket FD asks for a command, as JSON; two lines answer: its process with what it
holds at its begin, and how it ended.
"""

from __future__ import annotations

import json
import os
import socket
import sys
import traceback
from collections.abc import Mapping, Sequence
from pathlib import Path

import pyarrow.parquet  # noqa: F401  (as below)

# What commands import late: here once, so that what a command takes is the run's doing.
from cli.main import execute

_UNITS = {"kB": 1 << 10}


def highest_resident_bytes(pid: int | str) -> int:
    """The most memory that process ``pid`` has held. Raises ``OSError``, and ``ValueError`` for a
    process that has none any more.
    """
    status = Path(f"/proc/{pid}/status").read_text("utf-8", "replace")
    amount, unit = status.partition("VmHWM:")[2].partition("\n")[0].split()
    return int(amount) * _UNITS[unit]


def _serve(channel: socket.socket) -> None:
    with channel.makefile("r") as lines:
        for line in lines:
            asked = json.loads(line)
            child = os.fork()
            if child == 0:
                _tell(channel, pid=os.getpid(), held_bytes=highest_resident_bytes("self"))
                channel.close()
                os._exit(_run(**asked))
            _, status, usage = os.wait4(child, 0)
            _tell(
                channel,
                code=os.waitstatus_to_exitcode(status),
                cpu_s=usage.ru_utime + usage.ru_stime,
                # The highest of any process of the command, exactly.
                highest_bytes=usage.ru_maxrss * 1024,
            )


def _tell(channel: socket.socket, **fields: object) -> None:
    channel.sendall(json.dumps(fields).encode() + b"\n")


def _run(
    arguments: Sequence[str], environment: Mapping[str, str], cwd: str, outputs: Sequence[str]
) -> int:
    """In the child: never returns to the server."""
    code = 99
    try:
        for number, path in enumerate(outputs, start=1):
            os.dup2(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), number)
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
        sys.stdout = open(1, "w", encoding="utf-8", errors="surrogateescape", closefd=False)  # noqa: SIM115
        sys.stderr = open(2, "w", encoding="utf-8", errors="surrogateescape", closefd=False)  # noqa: SIM115
        os.chdir(cwd)
        os.environ.clear()
        os.environ.update(environment)
        code = execute(arguments)
        sys.stdout.flush()
        sys.stderr.flush()
    except BaseException:
        traceback.print_exc()
        sys.stderr.flush()
    return code


if __name__ == "__main__":
    _serve(socket.socket(fileno=int(sys.argv[1])))
