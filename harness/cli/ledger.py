"""The file in which a campaign writes down every seed's result, so that it can be broken off.

A result counts for one plan and one state of the code: other code has to be simulated again.
"""

from __future__ import annotations

import hashlib
from pathlib import Path

import msgspec

import harness
from harness.cli.seeds import SeedResult
from harness.history.files import disk_failure

RESULTS_FILE = "campaign.jsonl"
PACKAGES = ("harness", "workloads", "nemesis", "checkers", "clusters")


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
        """What this code came to before, by ``plan_key``. A torn last line does not count."""
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
            if line.code == self._code:
                found[line.result.key] = line.result
        return found

    def add(self, result: SeedResult) -> None:
        """Write ``result`` down. Raises ``HarnessError`` where the disk refuses."""
        line = msgspec.json.encode(_Line(self._code, result)) + b"\n"
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            with self.path.open("ab") as file:
                file.write(line)
        except OSError as error:
            missing = "the seed's result is not kept"
            raise disk_failure("write", self.path, error, missing) from error


def code_digest() -> str:
    """A name for the code that a simulated run executes: its sources, byte for byte."""
    root = Path(harness.__file__ or "").resolve().parents[1]
    whole = hashlib.sha256()
    for package in PACKAGES:
        for path in sorted((root / package).rglob("*.py")):
            content = path.read_bytes()
            whole.update(f"{path.relative_to(root)} {len(content)}\n".encode())
            whole.update(content)
    return whole.hexdigest()[:16]
