"""Measures a judged run: from its tables and its verdict to its figures."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Sequence
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from harness.clock import NS_PER_S
from harness.errors import MalformedHistory
from harness.history.durable_files import write_held
from harness.history.load import History, load
from harness.history.records import FaultState, OpType
from harness.history.run_directory import Manifest, RunDirectory
from harness.plan import planfile
from harness.plan.plan import asked_rate
from harness.protocols.conflicts import ends
from harness.protocols.latency import percentiles
from harness.protocols.verdict import Availability, Verdict, read_verdict
from results.report.fault_recovery import Recovery, recoveries_in
from results.store.run_figures import VERSION, FaultCount, RunFigures, encode, figures_path, sealed

UNAVAILABLE_S = 0.5  # a stretch without an acknowledgement that users notice
NS_PER_MS = 1_000_000
PERCENTS = (50, 95, 99)

Ints = npt.NDArray[np.int64]


def measure(run: RunDirectory) -> RunFigures:
    """Measure ``run``. Raises ``MalformedHistory`` where it has no sealed history or no verdict."""
    verdict = read_verdict(run)
    if verdict is None:
        raise MalformedHistory(str(run.verdict), "", "there is no verdict to measure the run by")
    return figures_of(load(run), verdict)


def keep_figures(run: RunDirectory) -> RunFigures:
    """Measure ``run``, and write its figures beside its verdict. Raises ``MalformedHistory``, and
    ``HarnessError`` where the disk refuses.
    """
    figures = measure(run)
    write_held(figures_path(run), encode(sealed(figures, run)))
    return figures


def figures_of(history: History, verdict: Verdict) -> RunFigures:
    """Return the figures of a run. A history without times of its own has none but counts."""
    manifest, transactions = history.manifest, history.transactions()
    faults = history.faults().to_pylist()
    counted = RunFigures(
        version=VERSION, faults=_fault_counts(faults), lost_inside=_lost_inside(verdict)
    )
    if not _timed(manifest) or not transactions.num_rows:
        return counted
    driven, start_ns, end_ns = _driven(manifest, transactions)
    types = driven["type"].cast(pa.string())
    ok = driven.filter(pc.equal(types, OpType.OK.value))
    done = np.sort(ok["complete_ns"].to_numpy())
    inside = done[(done >= start_ns) & (done <= end_ns)]
    length_s = (end_ns - start_ns) / NS_PER_S
    p50_ms, p95_ms, p99_ms = _latencies_ms(ok)
    return msgspec.structs.replace(
        counted,
        p50_ms=p50_ms,
        p95_ms=p95_ms,
        p99_ms=p99_ms,
        ok_per_s=len(inside) / length_s if length_s > 0 else None,
        unavailable_s=_unavailable_s(inside, start_ns, end_ns),
        recover_s=_mean(
            _recover_ns(recoveries_in(manifest, transactions, faults, _asked_per_s(history)))
        ),
        takeover_s=_mean(_takeover_ns(verdict.availability)),
        indefinite_share=ends(manifest.declaration, driven).indefinite_share,
    )


def _asked_per_s(history: History) -> float | None:
    """Return the rate that the run's plan asks for, if one drove it."""
    if not history.planned:
        return None
    return asked_rate(planfile.read_table(history.run.plan, history.run.plan.name))


def _timed(manifest: Manifest) -> bool:
    return isinstance(manifest.origin, msgspec.UnsetType) or manifest.origin.real_time


def _driven(manifest: Manifest, transactions: pa.Table) -> tuple[pa.Table, int, int]:
    """Return the transactions that were begun in the drive phase, its begin and its end."""
    marks = dict(manifest.phases)
    begun = transactions["invoke_ns"].to_numpy()
    last_ns = int(pc.max(transactions["complete_ns"]).as_py() or 0)
    start_ns = marks.get("drive", int(begun.min()))
    end_ns = max(start_ns, marks.get("heal", last_ns))
    return transactions.filter(pa.array((begun >= start_ns) & (begun < end_ns))), start_ns, end_ns


def _latencies_ms(ok: pa.Table) -> list[float | None]:
    if not ok.num_rows:
        return [None] * len(PERCENTS)
    took = ok["complete_ns"].to_numpy() - ok["intended_ns"].to_numpy()
    return [float(value) / NS_PER_MS for value in percentiles(took, PERCENTS)]


def _unavailable_s(done: Ints, start_ns: int, end_ns: int) -> float:
    """Return the sum of the stretches of at least ``UNAVAILABLE_S`` without one of ``done``."""
    gaps = np.diff(np.concatenate([[start_ns], done, [end_ns]]))
    return float(gaps[gaps >= UNAVAILABLE_S * NS_PER_S].sum()) / NS_PER_S


def _recover_ns(found: Iterable[Recovery]) -> list[int]:
    """Return the time to recover of each fault of which it is known: 0 where the rate never fell;
    where it was not back until the next fault, all that time, which is the least that it took.
    """
    times = []
    for each in found:
        if not each.begin_known:
            continue
        if not each.fell:
            times.append(0)
        elif each.from_begin_ns is not None:
            times.append(each.from_begin_ns)
        else:
            last = each.after or each.during
            times.append(last.end_ns - each.during.start_ns)
    return times


def _takeover_ns(availability: Availability) -> list[int]:
    return [
        each.after_ns
        for window in availability.windows or ()
        for each in window.takeovers
        if each.after_ns is not None
    ]


def _mean(times_ns: Sequence[int]) -> float | None:
    return statistics.fmean(times_ns) / NS_PER_S if times_ns else None


def _lost_inside(verdict: Verdict) -> float | None:
    lost = verdict.statistics.get("lost_writes")
    found = lost.get("lost_by_reset") if isinstance(lost, dict) else None
    return float(found) if type(found) is int else None


def _fault_counts(faults: Sequence[dict[str, Any]]) -> dict[str, FaultCount]:
    """Count the faults by kind: also those that were skipped, or whose moment never came, since a
    fault that takes no effect, for any reason, shows nothing.
    """
    counts: dict[str, list[int]] = {}
    for row in faults:
        if row["state"] == FaultState.RECORDED:  # nobody had to prove those
            continue
        of_kind = counts.setdefault(row["kind"], [0, 0])
        of_kind[0] += 1
        of_kind[1] += row["effective_ns"] is not None
    return {
        kind: FaultCount(planned=planned, effective=effective)
        for kind, (planned, effective) in sorted(counts.items())
    }
