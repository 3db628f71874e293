"""The file in which a campaign records every seed's result, so that it can be interrupted and
continued.

A result counts for one plan and one state of the code: other code has to be simulated again.
"""

from __future__ import annotations

import hashlib
import re
import shutil
from collections.abc import Collection
from pathlib import Path

import msgspec

import harness
from cli.campaigns.seeds import SeedResult
from harness.errors import FiredrillError
from harness.history.files import disk_failure, locked
from harness.history.manifest import RUNNING, read_manifest
from harness.outcome import Outcome
from harness.run.directory import RunDirectory

RESULTS_FILE = "campaign.jsonl"
PACKAGES = ("harness", "workloads", "nemesis", "checkers", "clusters")


_RUN_ID = re.compile(r"\d{8}-\d{6}-(?P<name>.+)-[0-9a-f]{4}")


class _Line(msgspec.Struct, frozen=True):
    code: str
    result: SeedResult


class Ledger:
    """Results by plan, below the directory of the runs."""

    def __init__(self, runs_dir: Path, code: str) -> None:
        """``code`` names the state of the code (``code_digest``)."""
        self.path = runs_dir / RESULTS_FILE
        self._code = code

    def known(self) -> dict[str, SeedResult]:
        """Return the results of this code so far, by ``plan_key``. A torn last line does not count,
        and neither does a seed without a verdict: mostly the machine was the cause, so it is tried
        again.

        A seed that showed nothing counts: the result of a simulated run depends on its plan and its
        code alone, and would be the same the next time.
        """
        try:
            lines = self.path.read_bytes().splitlines()
        except FileNotFoundError:
            return {}
        except OSError as error:
            raise disk_failure("read", self.path, error, "no seed counts as known") from error
        found = {}
        for text in lines:
            try:
                line = msgspec.json.decode(text, type=_Line)
            except msgspec.DecodeError:
                continue  # of another version, or torn: the seed is simulated again
            broken = line.result.outcome is Outcome.HARNESS_ERROR
            if line.code == self._code and not broken:
                found[line.result.key] = line.result
        return found

    def add(self, result: SeedResult) -> None:
        """Append ``result`` to the file. Raises ``HarnessError`` where the disk refuses."""
        line = msgspec.json.encode(_Line(self._code, result)) + b"\n"
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            with self.path.open("ab") as file:
                file.write(line)
        except OSError as error:
            missing = "the seed's result is not kept"
            raise disk_failure("write", self.path, error, missing) from error


def sweep(runs_dir: Path, names: Collection[str], kept: Collection[str]) -> int:
    """Remove the runs of these ``names`` that a killed campaign left: unsealed directories without
    a living writer, but for those ``kept``. Returns how many.
    """
    if not runs_dir.is_dir():
        return 0
    gone = 0
    for path in sorted(runs_dir.iterdir()):
        match = _RUN_ID.fullmatch(path.name)
        if match and match["name"] in names and str(path) not in kept and _broken_off(path):
            shutil.rmtree(path, ignore_errors=True)
            gone += 1
    return gone


def _broken_off(path: Path) -> bool:
    run = RunDirectory(path)
    try:
        if path.is_symlink() or read_manifest(run).state != RUNNING or not run.chunks.is_dir():
            return False
        with locked(run.chunks) as alone:
            return alone
    except (FiredrillError, OSError):
        return False


def code_digest() -> str:
    """Return a digest of the code that a simulated run executes: its sources, byte for byte."""
    root = Path(harness.__file__ or "").resolve().parents[1]
    whole = hashlib.sha256()
    for package in PACKAGES:
        for path in sorted((root / package).rglob("*.py")):
            content = path.read_bytes()
            whole.update(f"{path.relative_to(root)} {len(content)}\n".encode())
            whole.update(content)
    return whole.hexdigest()[:16]
