"""A real HDFS of one data node, from Hadoop's ``hadoop-client-minicluster`` by Maven."""

from __future__ import annotations

import shutil
import subprocess
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pyspark
from capabilities import lacking

from checkers.engine.java import find_java

JARS = Path(pyspark.__file__).parent / "jars"
SERVER = Path(__file__).with_name("MiniHdfs.java")
FETCH_LIMIT_S = 300.0
START_LIMIT_S = 120.0


def minicluster() -> Path:
    """The jar, of the version of pyspark's own client; skips the test where it can't be had."""
    (client,) = JARS.glob("hadoop-client-api-*.jar")
    version = client.stem.removeprefix("hadoop-client-api-")
    artifact = f"org.apache.hadoop:hadoop-client-minicluster:{version}:jar"
    here = Path(tempfile.gettempdir()) / f"firedrill-tests-hdfs-{version}"
    jar = here / f"hadoop-client-minicluster-{version}.jar"
    if jar.exists():
        return jar
    if shutil.which("mvn") is None:
        lacking("no Maven to fetch a small HDFS with", promised=False)
    command = ["mvn", "-q", "-B", "dependency:copy", f"-Dartifact={artifact}"]
    command.append(f"-DoutputDirectory={here}")
    done = subprocess.run(command, capture_output=True, text=True, timeout=FETCH_LIMIT_S)
    if done.returncode or not jar.exists():
        lacking(f"Maven does not fetch {artifact}: {done.stdout[-300:]}", promised=False)
    return jar


@contextmanager
def hdfs(directory: Path) -> Iterator[str]:
    """Start it below ``directory``; yields its address; it ends after the block."""
    java = find_java().home
    if java is None:
        lacking("no Java for a small HDFS")
    classes = f"{minicluster()}:{JARS}/*"
    command = [str(java / "bin" / "java"), "-Xmx400m", "-XX:TieredStopAtLevel=1", "-cp", classes]
    with (directory / "hdfs.log").open("wb") as log:
        server = subprocess.Popen(
            [*command, str(SERVER), str(directory / "hdfs")],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=log,
            cwd=directory,
        )
    limit = threading.Timer(START_LIMIT_S, server.kill)
    limit.start()
    try:
        assert server.stdout is not None
        line = next((line for line in server.stdout if line.startswith(b"PORT ")), b"")
        assert line, (directory / "hdfs.log").read_text()[-2000:]
        limit.cancel()
        yield f"hdfs://127.0.0.1:{int(line.split()[1])}"
    finally:
        limit.cancel()
        server.kill()
        server.wait()
