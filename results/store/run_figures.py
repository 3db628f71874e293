"""The figures of a judged run that comparisons and trends are made of, kept beside its verdict.

``analysis/figures.json`` follows from the run's tables and its verdict alone; it is written with
the verdict, so that no command has to read a history to list or compare runs.
"""

from __future__ import annotations

import contextlib
import hashlib
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import msgspec
from msgspec import Meta

from harness.errors import MalformedHistory
from harness.history.regular_files import read_small
from harness.history.run_directory import RunDirectory, require_plain
from harness.protocols.verdict import SEAL_BYTES
from harness.text import inert

FIGURES_FILE = "figures.json"
MAX_FIGURES_BYTES = 1 << 20
FAULTS_MAX = 1_000_000
VALUE_MAX = 1e12  # of any figure; more is no measurement
KINDS_MAX, KIND_CHARS = 100, 48
VERSION = 5  # of how they are measured: figures of another one are measured again


_Value = Annotated[float, Meta(ge=0, le=VALUE_MAX)]


class FaultCount(msgspec.Struct, frozen=True, kw_only=True):
    """Faults of one kind: all that were ``planned``, and the ``effective`` ones of them, whose
    effect was proven.
    """

    planned: Annotated[int, Meta(ge=0, le=FAULTS_MAX)]
    effective: Annotated[int, Meta(ge=0, le=FAULTS_MAX)]


class RunFigures(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What a run measured. ``None``: it could not be.

    ``ok_per_s`` are acknowledged transactions a second of the drive; ``p50_ms``, ``p95_ms`` and
    ``p99_ms`` their latency from their intended start; ``unavailable_s`` is the time of the drive
    in stretches of at least ``UNAVAILABLE_S`` in which the store acknowledged nothing;
    ``recover_s`` the mean time from the begin of a fault to 90 % of the rate before it, and
    ``takeover_s`` to another node's holding a role of its target; ``indefinite_share`` the share of
    transactions without a known outcome, conflicts left out; ``lost_inside`` counts acknowledged
    writes that a reset lost inside its envelope, in a mode that permits it. ``faults`` are by kind.
    """

    version: int = 0
    ok_per_s: _Value | None = None
    p50_ms: _Value | None = None
    p95_ms: _Value | None = None
    p99_ms: _Value | None = None
    unavailable_s: _Value | None = None
    recover_s: _Value | None = None
    takeover_s: _Value | None = None
    indefinite_share: _Value | None = None
    lost_inside: _Value | None = None
    faults: dict[str, FaultCount] = {}
    seal: str = ""
    """The sum of all else, and of the verdict's seal: of other figures, or beside another verdict,
    it is another one."""

    def value(self, figure: str) -> float | None:
        """The figure of that name; ``None`` where it was not measured."""
        found: float | None = getattr(self, figure)
        return found


class Host(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The machine that a run was driven from, and its calibrator's figures as the run began: the
    time of a fixed loop of CPU, and of a synced append. ``None``, or empty: not recorded.
    """

    system: str = ""
    architecture: str = ""
    cores: int | None = None
    memory_mib: int | None = None
    cpu_ms: float | None = None
    fsync_us: float | None = None


def figures_path(run: RunDirectory) -> Path:
    """The file of the figures, which need not exist."""
    return run.analysis / FIGURES_FILE


def sealed(figures: RunFigures, run: RunDirectory) -> RunFigures:
    """Return ``figures`` with the seal that they have beside the verdict of ``run``. Raises
    ``OSError`` where that verdict's own can't be read.
    """
    content = encode(msgspec.structs.replace(figures, seal=""))
    with contextlib.suppress(FileNotFoundError):  # judged by a version that sealed none
        content += read_small(run.verdict_seal, SEAL_BYTES)
    return msgspec.structs.replace(figures, seal=hashlib.sha256(content).hexdigest())


def encode(figures: RunFigures) -> bytes:
    """The figures as their file holds them: equal figures are equal bytes."""
    return msgspec.json.format(msgspec.json.encode(figures, order="sorted"), indent=2) + b"\n"


def read_figures(run: RunDirectory, *, plain: bool = False) -> RunFigures | None:
    """Return the figures that lie beside the verdict; ``None`` where there are none of this
    version, or the file is not one of figures, or not that of the run's verdict: the directory may
    come from elsewhere, and the run is measured again. ``plain``: the caller
    has just called ``require_plain``.
    """
    try:
        if not plain:
            require_plain(run)
        content = read_small(figures_path(run), MAX_FIGURES_BYTES)
        found = msgspec.json.decode(content, type=RunFigures)
        if found.version != VERSION or found != sealed(found, run):
            return None
    except (OSError, MalformedHistory, msgspec.MsgspecError, RecursionError, UnicodeDecodeError):
        return None
    kinds = list(found.faults.items())[:KINDS_MAX]
    faults = {inert(kind, KIND_CHARS): count for kind, count in kinds}
    return msgspec.structs.replace(found, faults=faults)


def host_of(machine: Mapping[str, Any]) -> Host:
    """Return the host that a manifest's ``machine`` describes; what is no such value is absent."""
    calibrator = machine.get("calibrator")
    measured = calibrator if isinstance(calibrator, dict) else {}
    return Host(
        system=_name(machine.get("system")),
        architecture=_name(machine.get("architecture")),
        cores=_count(machine.get("cores")),
        memory_mib=_count(machine.get("memory_mib")),
        cpu_ms=_positive(measured.get("cpu_ms")),
        fsync_us=_positive(measured.get("fsync_us")),
    )


def _name(value: object) -> str:
    return value[:80] if isinstance(value, str) and value.isprintable() else ""


def _count(value: object) -> int | None:
    return value if type(value) is int and 0 < value < 1 << 40 else None


def _positive(value: object) -> float | None:
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    return float(value) if 0 < value < math.inf else None
