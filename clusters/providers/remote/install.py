"""Putting a program on a machine: code below one directory, its own files in another."""

from __future__ import annotations

from pathlib import Path

import attrs

from clusters.providers.remote import bundle, requirements
from clusters.providers.remote.program import Launch
from clusters.providers.remote.session import Session
from harness.cluster import Program

UNPACK_LIMIT_S = 60.0
LIBRARIES, TREES = "libraries", "trees"

_UNPACK = 'set -eu; mkdir -p -- "$1"; tar --extract --no-same-owner --directory="$1"'


@attrs.frozen(kw_only=True)
class Places:
    """Where things stand on a machine."""

    code: str
    work: str
    pid_file: str


def install(session: Session, program: Program, places: Places) -> Launch:
    """Unpack ``program`` and return how to start it. Blocking.

    Raises ``UsageError`` for a program that can't be installed anywhere.
    """
    code = {f"{TREES}/{path}": entry for path, entry in bundle.python_trees(program.python).items()}
    interpreter = "python3"
    if program.argv[0] == "python3" or program.python or program.requirements:
        found = requirements.look(session)
        interpreter = found.path
        if program.requirements is not None:
            code |= bundle.directory(
                requirements.fetch(Path(program.requirements), found), LIBRARIES
            )
    files = {path: (content, 0o644) for path, content in program.files.items()}
    _unpack(session, places.code, bundle.archive(code))
    _unpack(session, places.work, bundle.archive(files))
    argv = program.argv
    if argv[0] == "python3":
        argv = (interpreter, *argv[1:])
    return Launch(
        argv=argv,
        env=_environment(program, places),
        work_dir=places.work,
        log=str(Path(places.work, bundle.safe_path(program.log))),
        pid_file=places.pid_file,
    )


def _environment(program: Program, places: Places) -> dict[str, str]:
    environment = {
        "PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
        # A log that is written late loses its end at kill -9, which is when it is read.
        "PYTHONUNBUFFERED": "1",
    }
    if program.python or program.requirements:
        environment["PYTHONPATH"] = f"{places.code}/{TREES}:{places.code}/{LIBRARIES}"
    return environment | program.env


def _unpack(session: Session, directory: str, data: bytes) -> None:
    session.run(
        ["sh", "-c", _UNPACK, "sh", directory],
        limit_s=UNPACK_LIMIT_S,
        name=f"unpacking into {directory}",
        stdin=data,
    )
