"""One seed of a campaign: a simulated run, its verdict, and its figures for the campaign's sums."""

from __future__ import annotations

import hashlib
import time
from pathlib import Path

import msgspec

from harness.errors import FiredrillError
from harness.history.files import write_atomically
from harness.history.manifest import read_manifest
from harness.outcome import Outcome
from harness.plan.plan import Plan, dumps
from harness.run.directory import RunDirectory
from harness.run.progress import Silent

MAX_REASONS = 8  # of one seed, in the campaign's file; the run directory has them all
MAX_REASON_CHARS = 500
LIVENESS = "liveness"
CRASHES = frozenset({LIVENESS, "node-exit", "panic"})
"""Anomalies that do not count in a search for a cause: that a node dies of a bug, or stands still,
says nothing about its effect on data."""


class SeedResult(msgspec.Struct, frozen=True, kw_only=True):
    """The result of one plan.

    ``key`` identifies the plan, with its seed (``plan_key``); ``run`` is the directory, empty where
    it was not kept; ``digest`` stands for the recorded history and events: equal digests are equal
    bytes. ``anomalies`` are those that decided, by name. ``changes`` counts primaries that changed
    during the drive, ``open_changes`` those of them under open transactions on their partition;
    ``tried`` are the kinds of its faults, ``hits`` counts those proven effective by kind and role
    of their target. ``cpu_s`` is the seed's CPU time, ``wall_s`` its wall time beside others.
    """

    key: str
    seed: int
    name: str
    workload: str
    outcome: Outcome
    run: str = ""
    digest: str = ""
    anomalies: dict[str, int] = {}
    reasons: tuple[str, ...] = ()
    ok: int = 0
    fail: int = 0
    info: int = 0
    changes: int = 0
    open_changes: int = 0
    tried: tuple[str, ...] = ()
    hits: dict[str, dict[str, int]] = {}
    simulated_s: float = 0.0
    wall_s: float = 0.0
    cpu_s: float = 0.0

    @property
    def ok_share(self) -> float:
        """The share of operations that succeeded, 0 to 1."""
        count = self.ok + self.fail + self.info
        return self.ok / count if count else 0.0


def plan_key(plan: Plan) -> str:
    """Return a name for exactly this plan: equal keys are equal plans."""
    return hashlib.sha256(dumps(plan).encode()).hexdigest()[:16]


def failed(plan: Plan, reason: str, run: Path | None, wall_s: float) -> SeedResult:
    """Return the result of a plan that came to no verdict."""
    return SeedResult(
        key=plan_key(plan),
        seed=plan.seed,
        name=plan.name,
        workload=plan.workload.name,
        outcome=Outcome.HARNESS_ERROR,
        run=str(run or ""),
        reasons=(reason[:MAX_REASON_CHARS],),
        wall_s=round(wall_s, 3),
    )


def run_seed(plan: Plan, runs_dir: Path, *, keep: bool) -> SeedResult:
    """Simulate ``plan`` into a new directory of ``runs_dir``, judge it in this process, and return
    its result. The directory stays where ``keep`` says so, and wherever the run is not valid.

    A run that breaks off is a result, too: a harness error. Raises ``UsageError`` for a plan that
    is refused before it starts.
    """
    from cli.wiring import run_plan
    from harness.run.stop import Stop
    from results.store.store import RunStore

    began_s = time.monotonic()
    run = run_plan(plan, runs_dir, Silent(), Stop())
    result = _judged(plan, run, began_s)
    if result.outcome is Outcome.VALID and not keep:
        RunStore(runs_dir).remove(run)
        result = msgspec.structs.replace(result, run="")
    return result


def _judged(plan: Plan, run: RunDirectory, began_s: float) -> SeedResult:
    from checkers.engine.analyze import analyze
    from cli.campaigns import run_stats
    from harness.protocols.verdict import encode

    try:
        verdict = analyze(run, executor="local")
    except FiredrillError as error:
        return failed(plan, str(error), run.root, time.monotonic() - began_s)
    write_atomically(run.verdict, encode(verdict))
    seen = run_stats.run_stats(run)
    return SeedResult(
        key=plan_key(plan),
        seed=plan.seed,
        name=plan.name,
        workload=plan.workload.name,
        outcome=verdict.outcome,
        run=str(run.root),
        digest=digest(run),
        anomalies={name: anomaly.count for name, anomaly in verdict.anomalies.items()},
        reasons=tuple(text[:MAX_REASON_CHARS] for text in verdict.reasons[:MAX_REASONS]),
        ok=seen.ok,
        fail=seen.fail,
        info=seen.info,
        changes=seen.changes,
        open_changes=seen.open_changes,
        tried=seen.tried,
        hits=seen.hits,
        simulated_s=round(seen.simulated_s, 3),
        wall_s=round(time.monotonic() - began_s, 3),
        cpu_s=round(time.process_time(), 3),
    )


def digest(run: RunDirectory) -> str:
    """Return one hash over the sealed tables of ``run``: operations, faults and events, byte for
    byte.
    """
    whole = hashlib.sha256()
    for name, checksum in sorted(read_manifest(run).checksums.items()):
        if name != run.plan.name:
            whole.update(f"{name} {checksum}\n".encode())
    return whole.hexdigest()
