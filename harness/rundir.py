"""The layout of a run directory: all that a run leaves behind, all that anything later reads."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import attrs
import msgspec

from harness.arsenal import FaultKind
from harness.promise import Declaration

SCHEMA_VERSION = 1


class Origin(msgspec.Struct, frozen=True, kw_only=True):
    """The file that a history came from which was not recorded here.

    ``operations`` counts everything in it, ``remarks`` what was of no client (a nemesis),
    ``incomplete`` the transactions without a completion; ``real_time`` says that the times are the
    file's own.
    """

    file: str
    operations: int
    remarks: int = 0
    incomplete: int = 0
    real_time: bool = True


class Manifest(msgspec.Struct, frozen=True, kw_only=True):
    """``manifest.json``. ``state`` is ``running``, ``sealed`` or ``prefix``.

    ``phases`` are (name, start in ns) pairs; ``checksums`` map relative paths to SHA-256.
    ``interrupted`` says that the user ended the run early; ``trouble`` what went wrong around the
    store (a fault unproven, a quiesce that timed out), each a sentence: any makes the run
    inconclusive. ``out_of_room`` is set where the disk of the run was full: whatever lies on it, a
    node's data and logs as well, may have failed for that alone. ``origin`` is unset for what was
    recorded here, ``arsenal`` (the faults that were possible) for what was recorded elsewhere.
    """

    schema_version: int
    run_id: str
    state: str
    versions: dict[str, str]
    machine: dict[str, Any]
    declaration: Declaration
    workload: str
    checkers: tuple[str, ...]
    splits: int = 0
    key_hash: str = "fibonacci-64"
    phases: tuple[tuple[str, int], ...] = ()
    cut_ns: int | None = None
    interrupted: bool = False
    trouble: tuple[str, ...] = ()
    checksums: dict[str, str] = {}
    # Not ``None``: what is unset is not written, so that the digests of older manifests hold.
    origin: Origin | msgspec.UnsetType = msgspec.UNSET
    arsenal: tuple[FaultKind, ...] | msgspec.UnsetType = msgspec.UNSET
    out_of_room: bool | msgspec.UnsetType = msgspec.UNSET


@attrs.frozen
class RunDirectory:
    """Paths inside a run directory. Making one touches nothing."""

    root: Path

    @property
    def plan(self) -> Path:
        """The resolved plan: written before anything starts."""
        return self.root / "plan.toml"

    @property
    def manifest(self) -> Path:
        """Versions, machine, checksums, state."""
        return self.root / "manifest.json"

    @property
    def chunks(self) -> Path:
        """The write-ahead chunks; removed once sealed."""
        return self.root / "chunks"

    @property
    def history(self) -> Path:
        """``transactions.parquet`` and ``micro_ops-NNNN.parquet``, split by key hash."""
        return self.root / "history"

    @property
    def faults(self) -> Path:
        """One row a fault."""
        return self.root / "faults.parquet"

    @property
    def events(self) -> Path:
        """One row an event of the store."""
        return self.root / "events.parquet"

    @property
    def controller(self) -> Path:
        """How late the controller's loop ran, and how much CPU it used, second by second."""
        return self.root / "controller.parquet"

    @property
    def undo(self) -> Path:
        """The undo journal and the list of what the run owns outside this directory."""
        return self.root / "undo"

    @property
    def kept(self) -> Path:
        """There while the run's cluster is left up on purpose."""
        return self.undo / "kept"

    @property
    def analysis(self) -> Path:
        """``verdict.json`` and the tables behind it."""
        return self.root / "analysis"

    @property
    def verdict(self) -> Path:
        """The verdict; written last, so its absence means that there is none."""
        return self.analysis / "verdict.json"

    @property
    def report(self) -> Path:
        """The page that a person reads."""
        return self.root / "report.html"

    def node(self, name: str) -> Path:
        """Logs and final state of node ``name``."""
        return self.root / "nodes" / name
