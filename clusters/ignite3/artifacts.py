"""The parts of a release on this machine: jars by Maven, a Java runtime by jlink, our driver by
javac; kept in the user's cache by a hash of what they are made from.

Blocking; meant for set-up, not for a run.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import tempfile
from collections.abc import Callable
from pathlib import Path

from clusters.ignite3.options import RELEASE
from harness.errors import HarnessError, UsageError

HERE = Path(__file__).resolve().parent
POM, JAVA = HERE / "pom.xml", HERE / "java"
SUMS = "SHA256SUMS"
TRAINER = HERE / "train.py"
TRAIN_LIMIT_S = 240
MAVEN_LIMIT_S, JLINK_LIMIT_S, JAVAC_LIMIT_S = 600, 180, 120
OLDEST_JAVA = "11"
# All that Java SE has, and what the store reaches below it: its own choice is not published.
MODULES = "java.se,jdk.unsupported,jdk.management,jdk.crypto.ec,jdk.zipfs,jdk.naming.dns,jdk.attach"
DRIVER_JVM = (
    *("-Xms32m", "-Xmx256m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1"),
    "-XX:+ExitOnOutOfMemoryError",
    # Of the threads of one connection, which opens selectors for each: by itself twice the CPUs.
    "-Dio.netty.eventLoopThreads=1",
)
REMEDIES = {
    "mvn": "install Maven (Debian: apt-get install maven)",
    "javac": "install a JDK (Debian: apt-get install openjdk-17-jdk-headless)",
    "jlink": "install a JDK (Debian: apt-get install openjdk-17-jdk-headless)",
}


class NotPrepared(UsageError):
    """Something that a run needs has not been made on this machine."""

    def __init__(self, what: str) -> None:
        super().__init__(f"ignite3: {what} is missing; scripts/prepare-ignite makes it")


def lacking() -> tuple[str, ...]:
    """The tools that are not installed here."""
    return tuple(tool for tool in REMEDIES if shutil.which(tool) is None)


def lacking_tools() -> tuple[str, ...]:
    """The tools that are not installed here, each with how to get it."""
    return tuple(f"{tool}: {REMEDIES[tool]}" for tool in lacking())


def root() -> Path:
    """Where the parts are kept."""
    cache = os.environ.get("XDG_CACHE_HOME") or str(Path.home() / ".cache")
    return Path(cache, "firedrill", "ignite3", RELEASE)


def jars(profile: str) -> Path:
    """The directory of the jars of ``profile`` (``node`` or ``client``), fetched if need be."""
    name = f"{profile}-{digest(POM.read_bytes())}"
    return made(name, lambda into: _fetch(profile, into))


def runtime() -> Path:
    """A Java runtime for nodes, cut out of the JDK that is installed here."""
    release = Path(os.path.realpath(_tool("javac"))).parents[1] / "release"
    text = release.read_bytes() if release.is_file() else b""
    return made(f"jre-{digest(text + MODULES.encode())}", _link)


def driver() -> Path:
    """The directory of the compiled driver, whose jars are as they were fetched."""
    verify(jars("client"))
    return made(f"driver-{driver_digest()}", _compile)


def driver_digest() -> str:
    """What tells this driver from every other: its source and what it is built on."""
    return digest(b"".join(path.read_bytes() for path in _sources()) + POM.read_bytes())


def _sources() -> list[Path]:
    return sorted(JAVA.glob("*.java"))


def driver_command() -> tuple[str, ...]:
    """What starts the driver. Raises ``NotPrepared`` where set-up has not been run."""
    classes, library = (
        root() / f"driver-{driver_digest()}",
        root() / f"client-{digest(POM.read_bytes())}",
    )
    java = shutil.which("java")
    if java is None or not classes.is_dir() or not library.is_dir():
        raise NotPrepared("the driver of clients")
    return (java, *DRIVER_JVM, "-cp", f"{classes}:{library}/*", "Driver")


def verify(directory: Path) -> None:
    """Raises ``HarnessError`` for a file of ``directory`` that is not as it was fetched, and for a
    jar that was not: who runs the library takes them all.
    """
    sums = [line.split("  ", 1) for line in (directory / SUMS).read_text().splitlines()]
    if more := sorted({path.name for path in directory.glob("*.jar")} - {name for _, name in sums}):
        raise HarnessError(f"{directory / more[0]}: was not fetched; remove {directory}")
    for expected, name in sums:
        path = directory / name
        found = _sha256(path) if path.is_file() else "no file"
        if found != expected:
            raise HarnessError(f"{path}: expected {expected} (got {found}); remove {directory}")


def made(name: str, make: Callable[[Path], None]) -> Path:
    """``root()/name``, there at once and whole: made beside it and renamed."""
    target = root() / name
    if target.is_dir():
        return target
    root().mkdir(parents=True, exist_ok=True)
    partial = Path(tempfile.mkdtemp(prefix=f"{name}.", suffix=".partial", dir=root()))
    try:
        make(partial / "made")
        (partial / "made").rename(target)
    except OSError as error:
        if not target.is_dir():  # another set-up was quicker
            raise HarnessError(f"{target}: {error.strerror or error}") from error
    finally:
        shutil.rmtree(partial, ignore_errors=True)
    return target


def _fetch(profile: str, into: Path) -> None:
    run(
        MAVEN_LIMIT_S,
        *(_tool("mvn"), "--batch-mode", "--quiet", "--file", str(POM), "--activate-profiles"),
        *(profile, f"-Drelease={RELEASE}", "dependency:copy-dependencies"),
        *("-DincludeScope=runtime", f"-DoutputDirectory={into}"),
    )
    sums = (f"{_sha256(path)}  {path.name}\n" for path in sorted(into.glob("*.jar")))
    (into / SUMS).write_text("".join(sums))


def _link(into: Path) -> None:
    strip = ("--strip-debug", "--no-header-files", "--no-man-pages")
    run(JLINK_LIMIT_S, _tool("jlink"), "--add-modules", MODULES, *strip, "--output", str(into))
    # The archive of our classes is a layer upon that of the runtime's own.
    run(JLINK_LIMIT_S, str(into / "bin" / "java"), "-XX:+UseSerialGC", "-Xshare:dump")


def _compile(into: Path) -> None:
    library = f"{jars('client')}/*"
    into.mkdir()
    wanted = ("--release", OLDEST_JAVA, "-Xlint:all", "-cp", library, "-d", str(into))
    run(JAVAC_LIMIT_S, _tool("javac"), *wanted, *map(str, _sources()))


def _tool(name: str) -> str:
    found = shutil.which(name)
    if found is None:
        raise UsageError(f"ignite3: {name} is not installed; {REMEDIES[name]}")
    return found


def run(limit_s: int, *argv: str) -> None:
    """Run a command to its end. Raises ``HarnessError`` with what it said."""
    try:
        done = subprocess.run(
            argv,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            timeout=limit_s,
            check=False,
        )
    except subprocess.TimeoutExpired as error:
        raise HarnessError(f"{argv[0]} took longer than {limit_s} s") from error
    if done.returncode != 0:
        said = done.stdout.decode("utf-8", "replace").strip()[-600:]
        raise HarnessError(f"{argv[0]} exited with {done.returncode} and said: {said}")


def digest(content: bytes) -> str:
    """What tells ``content`` from every other, short enough for a name."""
    return hashlib.sha256(content).hexdigest()[:12]


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
