"""A standalone cluster of Spark's on the loopback: a master and workers, a JVM each, whose Python
has nothing of this package, and which are kept from a directory of the test's.
"""

from __future__ import annotations

import os
import re
import shlex
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import attrs
import pyspark
from capabilities import lacking

from checkers.engine.spark.gateway import MODULE_OPTIONS
from checkers.engine.spark.java import find_java
from checkers.engine.spark.packed_environment import INTERPRETER

SPARK = Path(pyspark.__file__).parent
START_LIMIT_S = 120.0
LOOK_S = 0.1
END_LIMIT_S = 30.0
DEPLOY = "org.apache.spark.deploy"


@attrs.frozen
class Cluster:
    """``hidden`` is a directory that no worker sees."""

    master: str
    workers: tuple[subprocess.Popen[bytes], ...]
    hidden: Path
    logs: Path


def require_parts() -> None:
    """Skip the test where a part of a cluster is missing, and name it."""
    if find_java().home is None:
        lacking("no Java for a standalone cluster of Spark")
    if bare_python() is None:
        what = f"no {INTERPRETER} without this package, for the workers of a cluster"
        lacking(what, promised=False)
    if not can_hide():
        lacking("no namespace of mounts, where workers see no directory of the driver's")


def bare_python() -> Path | None:
    """An interpreter of this version that does not have this package's modules."""
    for directory in ("/usr/bin", "/usr/local/bin", str(Path(sys.base_prefix) / "bin")):
        python = Path(directory) / INTERPRETER
        if python.exists():
            asked = [str(python), "-c", "import numpy"]
            if subprocess.run(asked, capture_output=True, cwd="/", env={}).returncode:
                return python
    return None


def with_every_module(java: Path, directory: Path) -> Path:
    """A home of ``java`` for workers, whose executors ask for a module that only MLlib uses: a
    runtime from a wheel lacks it, and starts without.
    """
    module = "jdk.incubator.vector"
    listed = subprocess.run(
        [java / "bin" / "java", "--list-modules"], capture_output=True, text=True
    )
    if module in listed.stdout:
        return java
    wrapper = directory / "java-home" / "bin" / "java"
    wrapper.parent.mkdir(parents=True, exist_ok=True)
    lines = (
        "#!/bin/bash",
        'for given; do shift; [ "$given" = --add-modules='
        + module
        + ' ] || set -- "$@" "$given"; done',
        f'exec {shlex.quote(str(java / "bin" / "java"))} "$@"',
    )
    wrapper.write_text("\n".join(lines) + "\n")
    wrapper.chmod(0o755)
    return wrapper.parent.parent


def can_hide() -> bool:
    """Whether a process may be given a view of its own of the file system, as root may."""
    if shutil.which("unshare") is None:
        return False
    tried = ["unshare", "--mount", "mount", "-t", "tmpfs", "none", "/mnt"]
    return subprocess.run(tried, capture_output=True).returncode == 0


@contextmanager
def standalone(directory: Path, *, workers: int = 2, cores: int = 1) -> Iterator[Cluster]:
    """Start a master and ``workers`` with ``cores`` each; end them after the block."""
    hidden = directory / "hidden"
    hidden.mkdir()
    port = _free_port()
    begun: list[subprocess.Popen[bytes]] = []
    master = f"spark://127.0.0.1:{port}"
    try:
        address = ["--host", "127.0.0.1", "--port", str(port), "--webui-port", "0"]
        begun.append(_started(directory, "master", f"{DEPLOY}.master.Master", address))
        _wait_for(directory / "master.log", "I have been elected leader", 1, begun)
        for number in range(workers):
            name = f"worker-{number}"
            own = ["--host", "127.0.0.1", "--webui-port", "0", "--cores", str(cores)]
            own += ["--memory", "2g", "--work-dir", str(directory / name), master]
            begun.append(_started(directory, name, f"{DEPLOY}.worker.Worker", own, hidden=hidden))
        _wait_for(directory / "master.log", "Registering worker", workers, begun)
        yield Cluster(master, tuple(begun[1:]), hidden, directory)
    finally:
        for process in begun[::-1]:
            # In order, so that a worker ends its executors.
            process.terminate()
            try:
                process.wait(END_LIMIT_S)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


def _started(
    directory: Path, name: str, main: str, arguments: list[str], hidden: Path | None = None
) -> subprocess.Popen[bytes]:
    java = find_java().home
    python = bare_python()
    assert java is not None
    assert python is not None
    own = directory / name
    own.mkdir()
    command = [str(java / "bin" / "java"), "-Xmx512m", *MODULE_OPTIONS]
    command += [f"-Djava.io.tmpdir={own}", "-cp", str(SPARK / "jars" / "*"), main, *arguments]
    if hidden is not None:
        script = f'mount -t tmpfs none {hidden} && exec "$@"'
        command = ["unshare", "--mount", "sh", "-c", script, "sh", *command]
    environment = {
        "PATH": f"{python.parent}:/usr/bin:/bin",
        "SPARK_HOME": str(SPARK),
        "SPARK_LOCAL_IP": "127.0.0.1",
        "SPARK_SCALA_VERSION": "2.13",  # what its shell scripts would set
        "TMPDIR": str(own),
        "JAVA_HOME": str(with_every_module(java, directory)),
    }
    with (directory / f"{name}.log").open("wb") as log:
        return subprocess.Popen(command, stderr=log, stdout=log, cwd=own, env=environment)


def _free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])


def _wait_for(log: Path, words: str, times: int, processes: list[subprocess.Popen[bytes]]) -> None:
    ends_s = time.monotonic() + START_LIMIT_S
    while len(re.findall(words, text := log.read_text(errors="replace"))) < times:
        dead = [process for process in processes if process.poll() is not None]
        assert not dead, text[-2000:]
        assert time.monotonic() < ends_s, text[-2000:]
        time.sleep(LOOK_S)


def executors_of(worker: subprocess.Popen[bytes]) -> list[int]:
    """The executors that a worker runs."""
    found = []
    for entry in os.listdir("/proc"):
        if entry.isdigit() and _parent(int(entry)) == worker.pid:
            found.append(int(entry))
    return found


def _parent(pid: int) -> int:
    try:
        return int(Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[1])
    except OSError:
        return -1
