"""Runs inside a container of the node's image, once: a cluster of one node on loopback, ended in
order, so that its Java writes down the archive of classes that every later node maps.

Usage: ``python3 train.py LIMIT_S ARGV...``. Imports nothing but Python's own.
"""

import json
import signal
import subprocess
import sys
import time
import urllib.request

REST = "http://127.0.0.1:10300/management/v1"


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


def main() -> int:
    ends = time.monotonic() + float(sys.argv[1])
    node = subprocess.Popen(sys.argv[2:])
    try:
        until(node, "/node/state", ends)
        body: dict[str, object] = {
            "metaStorageNodes": ["n1"],
            "cmgNodes": ["n1"],
            "clusterName": "training",
        }
        ask("/cluster/init", body)
        until(node, "/node/state", ends, b"STARTED")
        node.send_signal(signal.SIGTERM)
        node.wait(timeout=max(1.0, ends - time.monotonic()))
    finally:
        node.kill()
    return 0


if __name__ == "__main__":
    sys.exit(main())
