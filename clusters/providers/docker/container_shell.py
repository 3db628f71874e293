"""Interactive access to a container of a run: through the daemon, which needs no key."""

from __future__ import annotations

import contextlib
import os
import select
import shutil
import socket
import struct
import sys
import termios
import tty
from collections.abc import Iterator, Sequence
from typing import Any

import docker
from docker.utils.socket import STDERR, frames_iter

from clusters.providers.docker import labels
from clusters.providers.docker.container import docker_name
from clusters.providers.docker.daemon import connect, doing
from clusters.providers.remote.program import LOG_KEPT_BYTES, LOG_LINK
from harness.errors import UsageError
from harness.history.run_directory import same_directory

BLOCK_BYTES = 1 << 16
LOG_SHOWN_BYTES = 2 * LOG_KEPT_BYTES  # all that a machine keeps of it
PROMPT_SHELL = ("sh",)


def running(run_id: str, node: str, ours: str) -> bool:
    """Whether the container of ``node`` runs, of the run whose directory has the mark ``ours``
    (``directory_mark``): anybody can write another run's identifier into a manifest. Raises
    ``NoDaemon`` and ``DaemonError``.
    """
    return _running(connect(), docker_name(run_id, node), ours)


def _running(client: docker.APIClient, name: str, ours: str) -> bool:
    with doing(f"looking for container {name}", missing_is_fine=True):
        found = client.inspect_container(name)
        made_for = (found["Config"]["Labels"] or {}).get(labels.DIRECTORY, "")
        return bool(found["State"]["Running"]) and (not made_for or same_directory(made_for, ours))
    return False


def shell(run_id: str, node: str, argv: Sequence[str], ours: str) -> int:
    """Run ``argv``, or a shell, in the container of ``node``; its exit code. The terminal is handed
    through where there is one. Blocks for as long as the user likes.

    Raises ``UsageError`` where no container of the run with the mark ``ours`` runs.
    """
    client, name = connect(), docker_name(run_id, node)
    if not _running(client, name, ours):
        raise UsageError(f"node {node!r}: its container {name} does not run (see firedrill logs)")
    terminal = sys.stdin.isatty() and sys.stdout.isatty()
    with doing(f"running a command in {name}"):
        made = client.exec_create(name, list(argv) or list(PROMPT_SHELL), stdin=True, tty=terminal)[
            "Id"
        ]
        stream = client.exec_start(made, tty=terminal, socket=True)
        if terminal:
            size = shutil.get_terminal_size()
            client.exec_resize(made, height=size.lines, width=size.columns)
        with contextlib.closing(stream), _raw(terminal):
            _exchange(_socket(stream), terminal)
        code = client.exec_inspect(made)["ExitCode"]
    return int(code if code is not None else -1)


def log(run_id: str, node: str, ours: str, *, follow: bool) -> Iterator[bytes]:
    """The output of the program on ``node`` so far, as far as its machine keeps it, and with
    ``follow`` its output from now on.

    Raises as ``shell``.
    """
    client, name = connect(), docker_name(run_id, node)
    if not _running(client, name, ours):
        raise UsageError(f"node {node!r}: its container {name} does not run")
    how = ["-F"] if follow else []
    with doing(f"reading the log of {name}"):
        argv = ["tail", f"--bytes={LOG_SHOWN_BYTES}", *how, "--", LOG_LINK]
        made = client.exec_create(name, argv)["Id"]
        stream = client.exec_start(made, socket=True)
        # A program may write nothing for hours; its reader ends the wait.
        _socket(stream).settimeout(None)
        with contextlib.closing(stream):
            frames = frames_iter(stream, tty=False)  # type: ignore[no-untyped-call]
            begun = False
            for kind, block in frames:
                if kind == STDERR:  # tail's own remarks
                    continue
                shown = block if begun else block.lstrip(b"\0")  # holes of a flood
                begun = begun or bool(shown)
                if shown:
                    yield shown


def _socket(stream: Any) -> socket.socket:  # noqa: ANN401 (the SDK's, by transport)
    """The connection below the object that the SDK returns."""
    inner = getattr(stream, "_sock", stream)
    if not isinstance(inner, socket.socket):
        raise UsageError("a shell needs a daemon on a plain socket (its connection is encrypted)")
    return inner


@contextlib.contextmanager
def _raw(terminal: bool) -> Iterator[None]:
    """The terminal hands on every key, and is as before after the block."""
    if not terminal:
        yield
        return
    before = termios.tcgetattr(sys.stdin)
    try:
        tty.setraw(sys.stdin)
        yield
    finally:
        termios.tcsetattr(sys.stdin, termios.TCSADRAIN, before)


def _exchange(connection: socket.socket, terminal: bool) -> None:
    """Carry bytes both ways until the command ends."""
    connection.settimeout(None)
    reading: list[int] = [connection.fileno(), sys.stdin.fileno()]
    held = b""
    while True:
        ready, _, _ = select.select(reading, [], [])
        if connection.fileno() in ready:
            block = connection.recv(BLOCK_BYTES)
            if not block:
                return
            # With a terminal the daemon sends plain bytes, else frames of two streams.
            held = _show(block, 1) if terminal else _shown(held + block)
        if sys.stdin.fileno() in ready:
            typed = os.read(sys.stdin.fileno(), BLOCK_BYTES)
            if typed:
                connection.sendall(typed)
            else:
                reading.remove(sys.stdin.fileno())
                # The command sees its input end, and may still answer.
                connection.shutdown(socket.SHUT_WR)


def _shown(content: bytes) -> bytes:
    """Print the whole frames of ``content`` (kind, three bytes, length, payload); the rest."""
    while len(content) >= 8:
        kind, length = struct.unpack(">BxxxL", content[:8])
        if len(content) < 8 + length:
            break
        _show(content[8 : 8 + length], kind)
        content = content[8 + length :]
    return content


def _show(block: bytes, kind: int) -> bytes:
    stream = sys.stderr if kind == STDERR else sys.stdout
    stream.buffer.write(block)
    stream.flush()
    return b""
