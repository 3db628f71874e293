"""Writes docs/track-record.md: what was found in released stores, and every planted bug.

From docs/track-record.json, which is measured:

    python -m scripts.track_record                     # the page from what is recorded
    python -m scripts.track_record --hunt --rounds 3   # the planted bugs that are not recorded yet
    python -m scripts.track_record --hunt no-fsync
    python -m scripts.track_record --runs runs         # counts those of released stores in a store
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path

import msgspec

from cli.selftest import anomalies_naming, checker_of, drilled, plan_of
from harness.campaigns.cell import CellResult
from harness.campaigns.rates import METHOD, between, until_found
from harness.exit_codes import Outcome
from harness.plan.plan import Plan, load
from results.store.index import Condition, Query, opened
from results.store.store import RunStore

ROOT = Path(__file__).resolve().parents[1]
RECORD = ROOT / "docs" / "track-record.json"
PAGE = ROOT / "docs" / "track-record.md"
JUDGED = (Outcome.VALID.value, Outcome.VIOLATION.value, Outcome.UNKNOWN.value)


class Released(msgspec.Struct, kw_only=True, frozen=True):
    """A defect of a released store: ``found`` in ``of`` runs of ``plan``; neither where its runs
    were looked at and not counted.
    """

    defect: str
    text: str
    release: str
    plan: str
    seed: int | None
    anomalies: tuple[str, ...]
    outcome: str
    found: int | None
    of: int | None


class Planted(msgspec.Struct, kw_only=True, frozen=True):
    """A planted bug: ``found`` in ``of`` simulated drills, ``seed`` the first of them, with
    ``cpu_s`` of a core for each finding.
    """

    bug: str
    seed: int | None
    found: int
    of: int
    cpu_s: float
    anomalies: dict[str, int]


class Record(msgspec.Struct, kw_only=True, frozen=True):
    """``track-record.json``."""

    released: tuple[Released, ...] = ()
    planted: tuple[Planted, ...] = ()


def hunted(bug: str, rounds: int, max_seeds: int, jobs: int | None) -> Planted:
    """Drill seed after seed until ``bug`` was found ``rounds`` times."""

    def hit(result: CellResult) -> bool:
        return bool(anomalies_naming(bug, result))

    plans = (plan_of(bug, seed, on=True) for seed in range(1, 1 + rounds * max_seeds))
    with (
        tempfile.TemporaryDirectory(prefix="track-record-") as ground,
        drilled(plans, Path(ground), jobs) as work,
    ):
        results = list(until_found(work, hit, rounds, max_seeds))
    hits = [result for result in results if hit(result)]
    names = Counter(name for result in hits for name in anomalies_naming(bug, result))
    return Planted(
        bug=bug,
        seed=hits[0].seed if hits else None,
        found=len(hits),
        of=len(results),
        cpu_s=round(sum(result.cpu_s for result in results) / max(1, len(hits)), 1),
        anomalies=dict(sorted(names.items(), key=lambda item: (-item[1], item[0]))),
    )


def counted(defect: Released, store: RunStore) -> Released:
    """Count ``defect`` in the runs of its plan in ``store``, where there are any; those that came
    to no verdict do not count.
    """
    plan = load(ROOT / defect.plan, {"seed": 0})
    condition = Condition(name="name", operator="=", value=plan.name)
    with opened(store) as index:
        entries = index.entries(Query(conditions=(condition,)))
    # A plan that names no release is of the one that it was written for.
    mine = [entry for entry in entries if entry.release in ("", defect.release)]
    judged = [entry for entry in mine if entry.outcome in JUDGED]
    if not judged or not defect.anomalies:
        return defect
    found = sum(
        any(each.anomaly in defect.anomalies for each in entry.findings) for entry in judged
    )
    return msgspec.structs.replace(defect, found=found, of=len(judged))


def page(record: Record) -> str:
    """Return the page about ``record``."""
    return "\n".join(_lines(record)) + "\n"


def command_of(defect: Released) -> str:
    """Return the command that shows ``defect`` again."""
    seed = "" if defect.seed is None else f" --seed {defect.seed}"
    return f"firedrill run {defect.plan}{seed}"


def hunt_of(bug: Planted) -> str:
    """Return the command that shows ``bug`` again, in the drill that found it."""
    return f"firedrill selftest --bug {bug.bug} --seed {bug.seed} --rounds 1 --clean 1"


def _lines(record: Record) -> Iterator[str]:
    yield "# What it has found"
    yield ""
    source = "[track-record.json](track-record.json), which is measured"
    yield f"Written by `python -m scripts.track_record` from {source}. Intervals: {METHOD}."
    yield ""
    yield "## In released stores"
    yield ""
    yield "| defect | what | store | plan | drive | checker | how often | outcome | again |"
    yield "|---|---|---|---|---:|---|---|---|---|"
    for each in record.released:
        plan = load(ROOT / each.plan, {"seed": each.seed or 0})
        checkers = ", ".join(dict.fromkeys(map(checker_of, each.anomalies))) or "events"
        cells = (
            each.defect,
            each.text,
            f"{plan.system.name} {each.release}",
            f"[{Path(each.plan).stem}](../{each.plan})",
            f"{plan.drive.duration_s:g} s",
            checkers,
            _often(each.found, each.of),
            each.outcome,
            f"`{command_of(each)}`",
        )
        yield f"| {' | '.join(cells)} |"
    yield ""
    yield "A run takes its drive and about half a minute around it. Before the first:"
    yield "`scripts/prepare-containers`, `scripts/prepare-ignite`."
    yield ""
    yield "## Planted in the reference store"
    yield ""
    found = sum(each.found > 0 for each in record.planted)
    yield f"{found} of {len(record.planted)} are found, in simulated drills; time is of one core,"
    yield "for each finding. What each bug is says `firedrill list bugs`."
    yield ""
    yield "| bug | drill | first seed | checker | reported as | how often | time | again |"
    yield "|---|---|---:|---|---|---|---:|---|"
    for bug in sorted(record.planted, key=lambda each: each.bug):
        drill = _drill(plan_of(bug.bug, bug.seed or 1, on=True))
        names = ", ".join(f"{name} ({count})" for name, count in bug.anomalies.items())
        row = (
            bug.bug,
            drill,
            "" if bug.seed is None else str(bug.seed),
            ", ".join(dict.fromkeys(map(checker_of, bug.anomalies))),
            names or "not found",
            _often(bug.found, bug.of),
            f"{bug.cpu_s:.1f} s",
            f"`{hunt_of(bug)}`" if bug.seed is not None else "",
        )
        yield f"| {' | '.join(row)} |"


def _often(found: int | None, of: int | None) -> str:
    if found is None or of is None:
        return "seen, not counted"
    return f"{found} of {of} ({between(found, of)})"


def _drill(plan: Plan) -> str:
    kinds = plan.nemesis.mix or tuple(dict.fromkeys(row.kind for row in plan.nemesis.schedule))
    where = f"{plan.cluster.nodes} nodes, {plan.drive.duration_s:g} s"
    return f"{plan.workload.name}, {where}: {', '.join(kinds) or 'no fault'}"


def _write(record: Record) -> None:
    encoded = msgspec.json.format(msgspec.json.encode(record), indent=1)
    RECORD.write_bytes(encoded + b"\n")
    PAGE.write_text(page(record))


def main(arguments: Sequence[str]) -> int:
    """Measure what is asked for, and write the page."""
    from clusters.reference.node.bugs import KNOWN

    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--hunt", nargs="*", metavar="BUG", help="all that are not recorded")
    parser.add_argument("--rounds", type=int, default=3, help="findings of each bug")
    parser.add_argument("--max-seeds", type=int, default=50, help="for one finding")
    parser.add_argument("--jobs", type=int, help="seeds at once")
    parser.add_argument("--runs", type=Path, help="a run store with runs of released stores")
    given = parser.parse_args(arguments)
    record = msgspec.json.decode(RECORD.read_bytes(), type=Record)
    if given.runs:
        released = tuple(counted(each, RunStore(given.runs)) for each in record.released)
        record = msgspec.structs.replace(record, released=released)
    if given.hunt is not None:
        known = {each.bug: each for each in record.planted if each.bug in KNOWN}
        for bug in given.hunt or sorted(KNOWN.keys() - known.keys()):
            known[bug] = hunted(bug, given.rounds, given.max_seeds, given.jobs)
            print(bug, known[bug].found, "of", known[bug].of, flush=True)
            record = msgspec.structs.replace(record, planted=tuple(known.values()))
            _write(record)  # each one counts, also where this is broken off
    _write(record)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
