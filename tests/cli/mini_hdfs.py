"""A real HDFS of one data node, from Hadoop's ``hadoop-client-minicluster`` by Maven."""

from __future__ import annotations

import subprocess
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pyspark
from capabilities import lacking, maven_jar

from checkers.engine.spark.java import find_java

JARS = Path(pyspark.__file__).parent / "jars"
SERVER = Path(__file__).with_name("MiniHdfs.java")
START_LIMIT_S = 120.0


def minicluster() -> Path:
    """The jar, of the version of pyspark's own client; skips the test where it can't be had."""
    (client,) = JARS.glob("hadoop-client-api-*.jar")
    version = client.stem.removeprefix("hadoop-client-api-")
    return maven_jar(f"org.apache.hadoop:hadoop-client-minicluster:{version}")


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
