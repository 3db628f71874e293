"""Whether a run is evidence at all: a vacuous or broken one must not pass for a good one."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Any

import attrs
import pyarrow as pa
import pyarrow.compute as pc

from checkers.engine.arrays import OK, TYPES, codes, ints
from checkers.promises.statistics import STEPS, steps_by_f
from harness.driving.in_flight import CLIENT_BUG
from harness.exit_codes import Outcome
from harness.history.records import FaultState
from harness.protocols.checker import Kernel, Lookup, Part, Tables
from harness.protocols.setting import Setting
from harness.text import seconds

ERRORS_SHOWN = 3
RATE_MISSED_SHARE = 0.1
RATE_MISSED_DEVIATIONS = 4.0


@attrs.frozen
class Vacuity:
    """Makes a run ``unknown`` that shows too little, with all the reasons."""

    name: str = "evidence"
    kernels: tuple[Kernel, ...] = (STEPS,)

    def judge(self, tables: Tables, setting: Setting, lookup: Lookup) -> Part:
        """Return ``valid`` or ``unknown``."""
        ends = _ends(lookup, setting)
        reasons = (
            *_incomplete(setting),
            *_unreached(ends),
            *_vacuous(ends, tables, setting),
            *_not_recovered(ends, tables),
            *_unproven(tables),
            *setting.missing,
            *setting.trouble,
        )
        outcome = Outcome.UNKNOWN if reasons else Outcome.VALID
        # Remarks are told with the reasons, and put nothing in doubt.
        remarks = (*_overloaded(ends, setting), *setting.remarks)
        return Part(outcome=outcome, reasons=tuple(dict.fromkeys((*reasons, *remarks))))


def _incomplete(setting: Setting) -> Iterator[str]:
    if setting.state == "prefix":
        cut = "" if setting.cut_ns is None else f", cut at {seconds(setting.cut_ns)}"
        yield f"the history is incomplete: a prefix of the run{cut}"
    if setting.interrupted:
        yield "the run was interrupted before its end"


@attrs.define
class _Ends:
    """How the transactions ended: all of them, those that are ok, ``driven`` before the final reads
    among them, and ``begun`` in the drive phase; the errors of those that got no connection, and
    those that clients and workloads raised themselves. ``last_ok_ns`` is the last invocation of an
    ok one.
    """

    count: int = 0
    ok: int = 0
    driven: int = 0
    begun: int = 0
    last_ok_ns: int | None = None
    unconnected: Counter[str] = attrs.field(factory=Counter)
    bugs: Counter[str] = attrs.field(factory=Counter)


def _ends(lookup: Lookup, setting: Setting) -> _Ends:
    marks, ends = dict(setting.phases), _Ends()
    for piece in lookup.pieces(("type", "phase", "error", "invoke_ns")):
        ok, invoked = codes(piece, "type", TYPES) == OK, ints(piece, "invoke_ns")
        driven = ok & (invoked < marks["final-reads"]) if "final-reads" in marks else ok
        ends.count += piece.num_rows
        ends.ok += int(ok.sum())
        ends.driven += int(driven.sum())
        if "drive" in marks and "heal" in marks:
            ends.begun += int(((invoked >= marks["drive"]) & (invoked < marks["heal"])).sum())
        if ok.any():
            latest = int(invoked[ok].max())
            ends.last_ok_ns = max(latest, ends.last_ok_ns or latest)
        errors = piece["error"].cast(pa.string()).fill_null("")
        connecting = pc.equal(piece["phase"].cast(pa.string()).fill_null(""), "connect")
        _count(ends.unconnected, errors.filter(connecting))
        _count(ends.bugs, errors.filter(pc.starts_with(errors, CLIENT_BUG)))
    return ends


def _count(counts: Counter[Any], values: pa.ChunkedArray) -> None:
    # In the order in which they first came, in which those of equal number are told.
    for row in pc.value_counts(values.combine_chunks()).to_pylist():
        counts[row["values"]] += row["counts"]


def _unreached(ends: _Ends) -> Iterator[str]:
    """Report a cluster that no client reached: it has kept no promise, and broken none."""
    unconnected = ends.unconnected.total()
    if not ends.count or ends.ok:
        return
    if 2 * unconnected > ends.count:
        told = ", ".join(
            f"{code or 'no code'} {count}"
            for code, count in ends.unconnected.most_common(ERRORS_SHOWN)
        )
        yield (
            f"the cluster was unreachable: no transaction succeeded, and {unconnected} of "
            f"{ends.count} got no connection ({told})"
        )


def _vacuous(ends: _Ends, tables: Tables, setting: Setting) -> Iterator[str]:
    count = ends.driven
    if count < setting.min_ok:
        before = " before the final reads" if "final-reads" in dict(setting.phases) else ""
        yield f"vacuous: {count} ok transactions{before}, expected at least {setting.min_ok}"
    if not setting.planned:
        # An import's crashed writes are evidence where they were read: each checker reports
        # what it lacks.
        return
    for f, counts in steps_by_f(tables).items():
        if not counts["ok"]:
            tried = sum(counts.values())
            yield f"vacuous: no {f!r} ever succeeded (of {tried} tried{_bugs(ends)})"


def _overloaded(ends: _Ends, setting: Setting) -> Iterator[str]:
    """Report an open loop that fell behind: the run is evidence, of less load than was asked for.
    Arrivals are a Poisson process, so a short run may miss some.
    """
    marks = dict(setting.phases)
    if setting.rate_per_s is None or "drive" not in marks or "heal" not in marks:
        return
    span_s = (marks["heal"] - marks["drive"]) / 1e9
    asked = setting.rate_per_s * max(0.0, span_s)
    # The variance of a Poisson count is its mean.
    if ends.begun < (1 - RATE_MISSED_SHARE) * asked - RATE_MISSED_DEVIATIONS * asked**0.5:
        yield (
            f"the load fell behind: {setting.rate_per_s:,.6g} transactions a second were asked "
            f"for, {ends.begun / span_s:,.4g} were begun (latency counts from their intended start)"
        )


def _bugs(ends: _Ends) -> str:
    """Return the errors that clients and workloads raised and the store did not, as an explanation
    of why nothing succeeded; empty where there was none.
    """
    told = ", ".join(f"{code} {count}" for code, count in ends.bugs.most_common(ERRORS_SHOWN))
    return f"; {told}" if told else ""


def _proven_here(tables: Tables) -> list[dict[str, Any]]:
    """Return the faults whose effect and healing the harness had to prove: not those of an imported
    history.
    """
    return [row for row in tables["faults"].to_pylist() if row["state"] != FaultState.RECORDED]


def _not_recovered(ends: _Ends, tables: Tables) -> Iterator[str]:
    """Report that no transaction invoked after the last heal succeeded: the store's recovery is
    unproven.
    """
    healed = [row["healed_ns"] for row in _proven_here(tables) if row["healed_ns"]]
    if not healed:
        return
    if ends.last_ok_ns is None or ends.last_ok_ns < max(healed):
        yield f"no ok transaction after the last heal at {seconds(max(healed))}"


def _unproven(tables: Tables) -> Iterator[str]:
    """Report faults without a proof. One whose moment never came is none, unless all were such."""
    rows = _proven_here(tables)
    missed = [row for row in rows if row["state"] == FaultState.MISSED]
    if missed and len(missed) == len(rows):
        yield f"no fault came: fault {missed[0]['fault']}: {missed[0]['reason']}"
    for row in rows:
        if row["state"] == FaultState.MISSED:
            continue
        what = f"fault {row['fault']} ({row['kind']} of {row['target']})"
        why = f": {row['reason']}" if row.get("reason") else ""
        if row["effective_ns"] is None:
            yield f"{what} was never proven effective{why}"
        elif row["healed_ns"] is None:
            yield f"{what} was never proven healed{why}"
        elif row["state"] == FaultState.UNPROVEN:
            yield f"{what} is gone, and who was hit never served again{why}"


CHECKER = Vacuity()
