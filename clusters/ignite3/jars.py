"""The jars of a release as the project knows them: their sums are checked in, for a node and for a
client, so that trust in a jar rests on its content and not on where Maven got it.

``sums/RELEASE-PROFILE.sha256`` is the output of ``sha256sum`` in a local Maven repository.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path, PurePosixPath

import attrs

from harness.errors import HarnessError

SUMS_DIR = Path(__file__).resolve().parent / "sums"
_LINE = re.compile(
    r"(?P<sha256>[0-9a-f]{64})  (?P<path>(?:\w[\w.+-]*/){3,}\w[\w.+-]*\.jar)", re.ASCII
)


@attrs.frozen(kw_only=True)
class Jar:
    """One jar by its coordinates in Maven, and the SHA-256 of its bytes."""

    group: str
    artifact: str
    version: str
    file: str
    sha256: str


def known(release: str, profile: str) -> tuple[Jar, ...] | None:
    """The jars of ``release`` that ``profile`` of the POM resolves to; ``None`` where no sums of
    them are checked in.
    """
    path = SUMS_DIR / f"{release}-{profile}.sha256"
    if not path.is_file():
        return None
    return tuple(_jar(path, line) for line in path.read_text().splitlines())


def _jar(path: Path, line: str) -> Jar:
    match = _LINE.fullmatch(line)
    if match is None:
        raise HarnessError(
            f"{path}: expected a sum and a jar's path in a repository (got {line!r})"
        )
    *group, artifact, version, file = PurePosixPath(match["path"]).parts
    return Jar(
        group=".".join(group),
        artifact=artifact,
        version=version,
        file=file,
        sha256=match["sha256"],
    )


def require_known(directory: Path, sums: Iterable[tuple[str, str]], jars: Iterable[Jar]) -> None:
    """Raises ``HarnessError`` where ``sums``, pairs of a sum and a file of ``directory``, are not
    those of ``jars``, each and no other.
    """
    found = {name: sha256 for sha256, name in sums}
    expected = {jar.file: jar.sha256 for jar in jars}
    for name in sorted(expected.keys() | found.keys()):
        if expected.get(name) != found.get(name):
            wanted, got = expected.get(name, "no such jar"), found.get(name, "no file")
            what = f"expected {wanted} as checked in (got {got})"
            raise HarnessError(f"{directory / name}: {what}; remove {directory} if it is kept")
