"""Runs inside a container of the node's image, once: a cluster of one node on loopback, where a
table is made, written and read; ended in order, so that its Java writes down the archive of classes
that every later node maps.

Usage: ``python3 train.py LIMIT_S ARGV... -- STATEMENT...``. Imports nothing but Python's own.
"""

import json
import signal
import socket
import subprocess
import sys
import time
import urllib.request

REST = "http://127.0.0.1:10300/management/v1"
CLIENT = ("127.0.0.1", 10800)
SQL_EXEC, PAGE_ROWS, LIMIT_MS = 50, 1024, 30_000
ERROR_FLAG = 4


def ask(path: str, body: "dict[str, object] | None" = None) -> bytes:
    data = None if body is None else json.dumps(body).encode()
    headers = {"Content-Type": "application/json"}
    request = urllib.request.Request(f"{REST}{path}", data=data, headers=headers)  # noqa: S310
    with urllib.request.urlopen(request, timeout=30) as answer:  # noqa: S310
        return bytes(answer.read())


def until(node: "subprocess.Popen[bytes]", path: str, ends: float, wanted: bytes = b"") -> None:
    while time.monotonic() < ends and node.poll() is None:
        try:
            if wanted in ask(path):
                return
        except OSError:
            pass
        time.sleep(0.2)
    raise SystemExit(f"{path} did not answer in time")


def packed(*values: "int | str | bytes | None") -> bytes:
    """MessagePack of the few kinds that a request has."""
    out = b""
    for value in values:
        if value is None:
            out += b"\xc0"
        elif isinstance(value, int):  # as short as can be: the node takes a version for a short
            out += value.to_bytes(1, "big") if value < 128 else b"\xcd" + value.to_bytes(2, "big")
        elif isinstance(value, bytes):
            out += b"\xc4" + len(value).to_bytes(1, "big") + value
        else:
            text = value.encode()
            out += b"\xda" + len(text).to_bytes(2, "big") + text
    return out


def exactly(at: socket.socket, size: int) -> bytes:
    found = b""
    while len(found) < size:
        piece = at.recv(size - len(found))
        if not piece:
            raise SystemExit("the node ended the client's connection")
        found += piece
    return found


def exchange(at: socket.socket, request: bytes, magic: bytes = b"") -> bytes:
    at.sendall(magic + len(request).to_bytes(4, "big") + request)
    exactly(at, len(magic))
    return exactly(at, int.from_bytes(exactly(at, 4), "big"))


def execute(statements: "list[str]") -> None:
    """Over the thin client's protocol: the release's REST takes no SQL."""
    with socket.create_connection(CLIENT, timeout=60) as at:
        exchange(at, packed(3, 0, 0, 2, b"", 0), b"IGNI")
        for number, text in enumerate(statements):
            wanted = (None, "PUBLIC", PAGE_ROWS, LIMIT_MS, None, None, 0, b"\x00", text, None, 0)
            answer = exchange(at, packed(SQL_EXEC, number, *wanted))
            if answer[1] & ERROR_FLAG:  # after the request's number, which is a byte so far
                raise SystemExit(f"{text}: {answer!r}")


def main() -> int:
    ends = time.monotonic() + float(sys.argv[1])
    apart = sys.argv.index("--")
    node = subprocess.Popen(sys.argv[2:apart])
    try:
        until(node, "/node/state", ends)
        body: dict[str, object] = {
            "metaStorageNodes": ["n1"],
            "cmgNodes": ["n1"],
            "clusterName": "training",
        }
        ask("/cluster/init", body)
        until(node, "/node/state", ends, b"STARTED")
        execute(sys.argv[apart + 1 :])
        node.send_signal(signal.SIGTERM)
        node.wait(timeout=max(1.0, ends - time.monotonic()))
    finally:
        node.kill()
    return 0


if __name__ == "__main__":
    sys.exit(main())
