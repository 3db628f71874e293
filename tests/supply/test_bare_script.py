"""The parts of ``scripts/bare`` that need no root."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from pathlib import Path

BARE = Path(__file__).parents[2] / "scripts" / "bare"
LIMIT_S = 20
# What another one does that starts between the making of a directory and its lock: once, at the
# first two directories.
MKTEMP = """#!/bin/sh
made=$(PATH={path} mktemp "$@") || exit
echo "$made" >>{log}
case $(wc -l <{log}) in
1) rmdir "$made" ;;
2) setsid flock "$made" sleep 600 9<&- >/dev/null 2>&1 & echo $! >{log}.pid
   until ! flock --nonblock "$made" true; do :; done ;;
esac
echo "$made"
"""


def function(name: str) -> str:
    lines = BARE.read_text().splitlines()
    first = lines.index(f"{name}() {{")
    return "\n".join(lines[first : lines.index("}", first) + 1])


def test_a_directory_that_another_one_takes_first_is_left_and_a_new_one_held(
    tmp_path: Path,
) -> None:
    cache, log, shim = tmp_path / "cache", tmp_path / "log", tmp_path / "bin" / "mktemp"
    for directory in (cache, shim.parent):
        directory.mkdir()
    shim.write_text(MKTEMP.format(path=os.environ["PATH"], log=log))
    shim.chmod(0o755)
    script = "\n".join(
        [
            "set -euo pipefail",
            f"CACHE={cache} NEW_TRIES=3",
            'fail() { echo "bare: $1" >&2; exit 254; }',
            function("hold_new_directory"),
            'hold_new_directory; echo "$work"; flock --nonblock "$work" true || echo held',
        ]
    )
    try:
        told = subprocess.run(
            ["bash", "-c", script],
            env=os.environ | {"PATH": f"{shim.parent}:{os.environ['PATH']}"},
            capture_output=True,
            text=True,
            timeout=LIMIT_S,
        )
    finally:
        # The holder leads a session of its own.
        os.killpg(int((tmp_path / "log.pid").read_text()), signal.SIGKILL)

    made = log.read_text().splitlines()
    assert len(made) == 3, told.stderr
    assert told.stdout.splitlines() == [made[2], "held"], told.stderr
    assert told.returncode == 0


def test_a_root_of_last_month_is_made_anew(tmp_path: Path) -> None:
    now_s = time.time()
    for name, days in (("new.tar", 29), ("old.tar", 31), ("old.partial", 31)):
        (tmp_path / name).touch()
        os.utime(tmp_path / name, (now_s - days * 86_400,) * 2)
    settings = f"set -euo pipefail; CACHE={tmp_path} ROOT_DAYS=30"
    script = "\n".join([settings, function("forget_old"), "forget_old"])

    subprocess.run(["bash", "-c", script], check=True, timeout=LIMIT_S)

    assert sorted(path.name for path in tmp_path.iterdir()) == ["new.tar", "old.partial"]
