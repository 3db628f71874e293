"""The libraries that a program's lock file names, fetched for the machine it runs on.

Fetched on the controller (machines have no way out), by hash and as wheels only, and kept by the
lock file's hash in the user's cache.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
import threading
from pathlib import Path

import attrs

from clusters.providers.remote.ssh_session import Session
from harness.errors import HarnessError, UsageError

FETCH_LIMIT_S = 300.0
LOOK_LIMIT_S = 10.0
OLDEST_GLIBC_MINOR = 17  # manylinux2014; the oldest that today's wheels are built against

_LOOK = (
    "import platform, sys;"
    "print(sys.executable, *sys.version_info[:2], platform.machine(), *platform.libc_ver())"
)
_fetching = threading.Lock()


@attrs.frozen(kw_only=True)
class Interpreter:
    """The Python of a machine, as far as wheels care."""

    path: str
    version: tuple[int, int]
    machine: str
    glibc_minor: int

    @property
    def pip_options(self) -> tuple[str, ...]:
        """Options that make pip choose wheels for this interpreter instead of its own."""
        tags = [
            f"manylinux_2_{minor}_{self.machine}"
            for minor in range(self.glibc_minor, OLDEST_GLIBC_MINOR - 1, -1)
        ]
        tags.append(f"manylinux2014_{self.machine}")
        major, minor = self.version
        return (
            *(f"--platform={tag}" for tag in tags),
            f"--python-version={major}.{minor}",
            "--implementation=cp",
            f"--abi=cp{major}{minor}",
            "--abi=abi3",
            "--abi=none",
        )


def look(session: Session) -> Interpreter:
    """The machine's ``python3``. Blocking. Raises ``RemoteError`` where there is none."""
    said = session.run(
        ["python3", "-I", "-c", _LOOK], limit_s=LOOK_LIMIT_S, name="looking for python3"
    )
    fields = said.decode("utf-8", "replace").split()
    if len(fields) != 6 or fields[4] != "glibc":
        raise HarnessError(f"{session.node}: python3 must run on glibc (it said: {fields})")
    return Interpreter(
        path=fields[0],
        version=(int(fields[1]), int(fields[2])),
        machine=fields[3],
        glibc_minor=int(fields[5].split(".")[1]),
    )


def cache_root() -> Path:
    """The directory where firedrill keeps files that can be made again."""
    base = os.environ.get("XDG_CACHE_HOME") or str(Path.home() / ".cache")
    return Path(base) / "firedrill"


def fetch(lock: Path, interpreter: Interpreter) -> Path:
    """A directory with the libraries of ``lock``, importable as it is. Blocking, up to five
    minutes.

    Raises ``UsageError`` for an unreadable lock file and ``HarnessError`` where pip fails.
    """
    try:
        text = lock.read_bytes()
    except OSError as error:
        raise UsageError(f"requirements {lock}: {error.strerror or error}") from error
    label = hashlib.sha256(text + repr(interpreter).encode()).hexdigest()[:16]
    kept = cache_root() / "libraries" / label
    with _fetching:  # nodes of one run ask for the same at the same moment
        if not kept.is_dir():
            _fetch_into(kept, lock, interpreter)
    return kept


def _fetch_into(kept: Path, lock: Path, interpreter: Interpreter) -> None:
    kept.parent.mkdir(parents=True, exist_ok=True)
    fresh = Path(tempfile.mkdtemp(prefix=f"{kept.name}.", suffix=".partial", dir=kept.parent))
    try:
        _pip(lock, fresh, interpreter)
        fresh.chmod(0o755)
        try:
            fresh.rename(kept)
        except OSError:
            if not kept.is_dir():  # another run was quicker, and its result is the same
                raise
    finally:
        shutil.rmtree(fresh, ignore_errors=True)


def _pip(lock: Path, target: Path, interpreter: Interpreter) -> None:
    # Ends with this process, so that a killed controller leaves no pip behind.
    argv = ["setpriv", "--pdeathsig=KILL", sys.executable, "-P", "-m", "pip"]
    argv += ["--quiet", "--disable-pip-version-check", "install"]
    argv += ["--target", str(target), "--require-hashes", "--only-binary=:all:", "--no-deps"]
    argv += [*interpreter.pip_options, "--requirement", str(lock)]
    try:
        done = subprocess.run(
            argv,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=FETCH_LIMIT_S,
            check=False,
        )
    except subprocess.TimeoutExpired as error:
        raise HarnessError(
            f"fetching {lock.name} with pip took longer than {FETCH_LIMIT_S:g} s"
        ) from error
    if done.returncode != 0:
        raise HarnessError(f"fetching {lock.name} with pip failed: {done.stderr.strip()[-500:]}")
