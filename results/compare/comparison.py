"""Two sets of runs compared: findings by fingerprint, figures by cell and seed, faults by effect.

The outcome is the worst of what was found:

``violation``   a finding that the base does not have
``unknown``     a fault that took effect in the base no longer does; more runs show nothing; or
                there is nothing to compare: no cell on both sides, the same runs on both, or too
                few (``Rules.findings_suffice``)
``regression``  a figure is worse, by the tests and by at least the effect that matters; or a known
                finding is met more often
``valid``       none of these: known findings stay known
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

import msgspec
import pandas as pd

from harness.exit_codes import Outcome, worst
from results.compare.comparable_cells import frame, host_of_side, hosts_differ
from results.compare.effect_thresholds import Rules
from results.compare.figures import FigureChange, figure_changes, resolvable
from results.compare.significance import holm, share_changed, share_fell
from results.store.run_entry import RecordedFinding, RunEntry
from results.store.run_figures import Host

SIDES = ("new", "base")
BUILDS_MAX = 8
SHOWN = 3  # names of cells in one sentence
EFFECT_FELL = 0.1  # of a share of faults that took effect: less matters to no reader
GONE_SHARE = 0.5  # of the base's faults of a kind, for none at all to be no chance
TOO_FEW = (
    "too few runs: no change of any figure, however large, could be told from chance "
    "(ten seeds a cell tell more: run --repeat 10)"
)
UNKNOWN_SHARE = 0.02  # of runs that show nothing, as a campaign forgives them


class FindingChange(msgspec.Struct, frozen=True, kw_only=True):
    """A finding, in ``new`` of ``of_new`` runs that could have it and ``base`` of ``of_base``.
    ``first_run`` is the first of the new side, or of the base where the new one has none;
    ``p_value`` is Fisher's for the two shares, corrected (Holm). ``note`` says what a reader should
    know beside.
    """

    fingerprint: str
    promise: str
    anomaly: str
    fault: str
    role: str
    system: str
    new: int
    of_new: int
    base: int
    of_base: int
    p_value: float
    first_run: str
    example: str = ""
    note: str = ""

    @property
    def words(self) -> str:
        """The finding in a few words."""
        role = f" of {self.role}" if self.role else ""
        return f"{self.anomaly} ({self.promise}), {self.fault}{role}"


class FaultChange(msgspec.Struct, frozen=True, kw_only=True):
    """The faults of a ``kind`` in ``cell`` that took effect, of those that were planned. ``fell``:
    it is no chance.
    """

    cell: str
    kind: str
    new: int
    of_new: int
    base: int
    of_base: int
    p_value: float
    fell: bool


class HostPair(msgspec.Struct, frozen=True, kw_only=True):
    """The hosts of a cell's runs on the two sides; ``differ`` says why times can't be compared,
    and is empty where they can, or are simulated.
    """

    cell: str
    new: Host
    base: Host
    differ: str = ""
    simulated: bool = False


class SideSummary(msgspec.Struct, frozen=True, kw_only=True):
    """A side: how many runs, of which builds, from when to when, and their outcomes by name."""

    runs: int
    builds: tuple[str, ...] = ()
    first: str = ""
    last: str = ""
    outcomes: dict[str, int] = {}


class Comparison(msgspec.Struct, frozen=True, kw_only=True):
    """What ``compare`` found. ``reasons`` explain the outcome in sentences, the worst first;
    ``notes`` are what else a reader should know. ``findings_changed`` are those of
    ``findings_known`` that are met more or less often; ``findings_untried`` are the base's whose
    cells the new side did not run: they are not gone.
    """

    outcome: Outcome
    reasons: tuple[str, ...]
    new: SideSummary
    base: SideSummary
    level: float
    notes: tuple[str, ...] = ()
    findings_new: tuple[FindingChange, ...] = ()
    findings_gone: tuple[FindingChange, ...] = ()
    findings_changed: tuple[FindingChange, ...] = ()
    findings_known: tuple[FindingChange, ...] = ()
    findings_untried: tuple[FindingChange, ...] = ()
    figures: tuple[FigureChange, ...] = ()
    faults: tuple[FaultChange, ...] = ()
    hosts: tuple[HostPair, ...] = ()


def compare(
    new: Sequence[RunEntry], base: Sequence[RunEntry], *, rules: Rules | None = None
) -> Comparison:
    """Compare the runs ``new`` with the runs ``base``, in any order. A run without ``figures`` (one
    of an older version, see ``results.compare.run_selection``) counts for findings alone.
    """
    rules = rules or Rules()
    table = frame(new, base, rules.across)
    both = set(table[table["side"] == "new"]["cell"]) & set(table[table["side"] == "base"]["cell"])
    hosts = _hosts(table, both)
    apart = frozenset(pair.cell for pair in hosts if pair.differ)
    figures = figure_changes(table[table["cell"].isin(both)], rules, apart)
    faults = _fault_changes(table[table["cell"].isin(both)], rules.level)
    findings = _finding_changes(table)
    news = [each for each in findings if each.new and not each.base]
    back = [each for each in news if each.fingerprint in rules.known]
    judged_known = _corrected([each for each in findings if each.new and each.base] + back)
    changed = tuple(each for each in judged_known if each.p_value <= rules.level)
    gone = [each for each in findings if not each.new]
    found = Comparison(
        outcome=Outcome.VALID,
        reasons=(),
        new=_summary(new),
        base=_summary(base),
        level=rules.level,
        notes=tuple(_notes(table, both, hosts, figures, rules)),
        findings_new=tuple(each for each in news if each not in back),
        findings_gone=tuple(each for each in gone if each.of_new),
        findings_changed=changed,
        findings_known=tuple(judged_known),
        findings_untried=tuple(each for each in gone if not each.of_new),
        figures=tuple(figures),
        faults=tuple(faults),
        hosts=tuple(hosts),
    )
    if _too_few(hosts, figures, rules) and not rules.findings_suffice:
        found = msgspec.structs.replace(found, notes=(*found.notes, _told_of_few(found)))
    reasons = _reasons(found, both, rules)
    shared = _on_both_sides(new, base)
    if shared and len(shared) == len(new) == len(base):
        same = f"nothing to compare: both sides are the same {len(shared)} runs"
        reasons.append((Outcome.UNKNOWN, same))
    elif shared:
        told = f"{len(shared)} runs are on both sides, and as good as themselves"
        found = msgspec.structs.replace(found, notes=(*found.notes, told))
    outcome = worst([Outcome.VALID, *(outcome for outcome, _ in reasons)])
    ordered = sorted(reasons, key=lambda each: list(Outcome).index(each[0]))
    return msgspec.structs.replace(
        found, outcome=outcome, reasons=tuple(text for _, text in ordered)
    )


def _reasons(found: Comparison, both: set[str], rules: Rules) -> list[tuple[Outcome, str]]:
    reasons = [
        (
            Outcome.VIOLATION,
            f"new finding: {each.words}: {each.new} of {each.of_new} runs, none of {each.of_base} "
            f"in the base (first in {each.first_run})",
        )
        for each in found.findings_new
    ]
    if not both:
        reasons.append((Outcome.UNKNOWN, _nothing_common(found)))
    for each in found.faults:
        if each.fell:
            reasons.append(
                (
                    Outcome.UNKNOWN,
                    f"{each.kind} no longer takes effect: {each.new} of {each.of_new} faults, "
                    f"{each.base} of {each.of_base} in the base ({each.cell})",
                )
            )
    if doubt := _shows_less(found.new, found.base, rules.level):
        reasons.append((Outcome.UNKNOWN, doubt))
    if _too_few(found.hosts, found.figures, rules) and not rules.findings_suffice:
        reasons.append((Outcome.UNKNOWN, TOO_FEW))
    reasons += [(Outcome.REGRESSION, each.sentence) for each in found.figures if each.worse]
    reasons += [
        (
            Outcome.REGRESSION,
            f"met more often: {each.words}: {each.new} of {each.of_new} runs, {each.base} of "
            f"{each.of_base} in the base (p {each.p_value:.2g})",
        )
        for each in found.findings_changed
        if each.new * each.of_base > each.base * each.of_new
    ]
    return reasons


def _on_both_sides(new: Sequence[RunEntry], base: Sequence[RunEntry]) -> list[RunEntry]:
    """Return the runs of ``new`` that ``base`` has as well."""
    named = {entry.run: entry for entry in base}
    return [entry for entry in new if named.get(entry.run) == entry]


def _told_of_few(found: Comparison) -> str:
    """What runs that are too few for a test of figures tell all the same."""
    counts = {
        "new": len(found.findings_new),
        "gone": len(found.findings_gone),
        "known": len(found.findings_known),
    }
    findings = ", ".join(f"{count or 'none'} {word}" for word, count in counts.items())
    sides = (
        (sum(each.new for each in found.faults), sum(each.of_new for each in found.faults)),
        (sum(each.base for each in found.faults), sum(each.of_base for each in found.faults)),
    )
    (new, of_new), (base, of_base) = sides
    return (
        f"told all the same: findings ({findings}) and faults ({new} of {of_new} took effect, "
        f"{base} of {of_base} in the base); figures stand as they were measured"
    )


def _too_few(hosts: Sequence[HostPair], figures: Sequence[FigureChange], rules: Rules) -> bool:
    """Whether figures are to be judged, and no change of any could be called."""
    judged = any(not pair.differ for pair in hosts)
    return judged and not resolvable(figures, rules.level)


def _nothing_common(found: Comparison) -> str:
    if not found.new.runs or not found.base.runs:
        return f"nothing to compare: {found.new.runs} runs with {found.base.runs} in the base"
    return (
        "nothing to compare: no cell (system, mode, workload, faults, provider, nodes, load) is on "
        "both sides (--across leaves parts of it out)"
    )


def _shows_less(new: SideSummary, base: SideSummary, level: float) -> str:
    """Return why the new side is no evidence: more of its runs than of the base's show nothing."""

    def nothing(side: SideSummary) -> int:
        shown = sum(side.outcomes.get(each, 0) for each in (Outcome.VALID, Outcome.VIOLATION))
        return side.runs - shown

    one, other = nothing(new), nothing(base)
    if not new.runs or one <= UNKNOWN_SHARE * new.runs:
        return ""
    if one < new.runs and share_fell(other, base.runs, one, new.runs) > level:
        return ""
    return f"{one} of {new.runs} runs show nothing, {other} of {base.runs} in the base"


def _hosts(table: pd.DataFrame, both: set[str]) -> list[HostPair]:
    found = []
    for cell, rows in table[table["cell"].isin(both)].groupby("cell", sort=True):
        new, base = (
            host_of_side(rows[rows["side"] == side]["entry"].tolist()) for side in ("new", "base")
        )
        simulated = not rows["timed"].any()
        differ = "" if simulated else hosts_differ(new, base)
        pair = HostPair(cell=str(cell), new=new, base=base, differ=differ, simulated=simulated)
        found.append(pair)
    return found


def _fault_changes(table: pd.DataFrame, level: float) -> list[FaultChange]:
    """Return for each cell and kind of fault how many took effect on both sides."""
    rows = [
        (cell, kind, side, count.planned, count.effective)
        for cell, side, entry in zip(table["cell"], table["side"], table["entry"], strict=True)
        if entry.figures is not None
        for kind, count in entry.figures.faults.items()
    ]
    columns = ["cell", "kind", "side", "planned", "effective"]
    found = []
    for (cell, kind), of_kind in pd.DataFrame(rows, columns=columns).groupby(["cell", "kind"]):
        sums = of_kind.groupby("side")[["effective", "planned"]].sum().reindex(SIDES, fill_value=0)
        (new, of_new), (base, of_base) = (map(int, pair) for pair in sums.to_numpy().tolist())
        change = FaultChange(
            cell=str(cell),
            kind=str(kind),
            new=new,
            of_new=of_new,
            base=base,
            of_base=of_base,
            p_value=share_fell(new, of_new, base, of_base),
            fell=False,
        )
        found.append(change)
    corrected = holm([each.p_value for each in found])
    return [
        msgspec.structs.replace(each, p_value=p_value, fell=_fell(each, p_value, level))
        for each, p_value in zip(found, corrected, strict=True)
    ]


def _fell(change: FaultChange, p_value: float, level: float) -> bool:
    if not change.of_new or not change.of_base:
        return False
    new, base = change.new / change.of_new, change.base / change.of_base
    if change.new == 0 and base >= GONE_SHARE:
        return True  # however few there were: a fault without effect shows nothing
    return base - new >= EFFECT_FELL and p_value <= level


def _finding_changes(table: pd.DataFrame) -> list[FindingChange]:
    """Return every finding of either side, in the order of its words."""
    judged = [
        (side, cell, entry)
        for side, cell, entry in zip(table["side"], table["cell"], table["entry"], strict=True)
        if entry.outcome is not None and entry.outcome != Outcome.HARNESS_ERROR
    ]
    met: dict[str, list[tuple[str, str, RunEntry, RecordedFinding]]] = {}
    for side, cell, entry in judged:
        for finding in entry.findings:
            met.setdefault(finding.fingerprint, []).append((side, cell, entry, finding))
    alike: dict[tuple[str, str, str], set[str]] = {}
    for rows in met.values():
        for side, _, entry, finding in rows:
            if side == "base":
                role = f" of {finding.role}" if finding.role else ""
                name = (finding.promise, finding.anomaly, entry.system)
                alike.setdefault(name, set()).add(f"{finding.fault}{role}")
    found = [_finding_change(print_, rows, judged, alike) for print_, rows in met.items()]
    return sorted(found, key=lambda each: (each.words, each.fingerprint))


def _finding_change(
    fingerprint: str,
    rows: Sequence[tuple[str, str, RunEntry, RecordedFinding]],
    judged: Sequence[tuple[str, str, RunEntry]],
    alike: dict[tuple[str, str, str], set[str]],
) -> FindingChange:
    cells = {cell for _, cell, _, _ in rows}
    of = {side: sum(s == side and cell in cells for s, cell, _ in judged) for side in SIDES}
    runs = {side: {entry.run for s, _, entry, _ in rows if s == side} for side in SIDES}
    new, base = len(runs["new"]), len(runs["base"])
    _, _, entry, finding = rows[0]
    note = ""
    others = alike.get((finding.promise, finding.anomaly, entry.system), set())
    if not base and others:
        note = f"the base has this anomaly under {', '.join(sorted(others)[:SHOWN])}"
    return FindingChange(
        fingerprint=fingerprint,
        promise=finding.promise,
        anomaly=finding.anomaly,
        fault=finding.fault,
        role=finding.role,
        system=entry.system,
        new=new,
        of_new=of["new"],
        base=base,
        of_base=of["base"],
        p_value=share_changed(new, of["new"], base, of["base"]),
        first_run=min(runs["new"] or runs["base"]),
        example=finding.example,
        note=note,
    )


def _corrected(found: Sequence[FindingChange]) -> list[FindingChange]:
    corrected = holm([each.p_value for each in found])
    return [
        msgspec.structs.replace(each, p_value=p_value)
        for each, p_value in zip(found, corrected, strict=True)
    ]


def _summary(entries: Sequence[RunEntry]) -> SideSummary:
    builds = {
        f"{entry.release} {entry.commit}".strip() or entry.system or "unnamed" for entry in entries
    }
    begun = sorted(entry.begun for entry in entries if entry.begun is not None)
    outcomes = pd.Series([entry.outcome or "no verdict" for entry in entries], dtype=object)
    return SideSummary(
        runs=len(entries),
        builds=tuple(sorted(builds)[:BUILDS_MAX]),
        first=f"{begun[0]:%Y-%m-%d %H:%M}" if begun else "",
        last=f"{begun[-1]:%Y-%m-%d %H:%M}" if begun else "",
        outcomes={str(name): int(count) for name, count in outcomes.value_counts().items()},
    )


def _notes(
    table: pd.DataFrame,
    both: set[str],
    hosts: Sequence[HostPair],
    figures: Sequence[FigureChange],
    rules: Rules,
) -> Iterator[str]:
    for side, words in (("new", "the new side"), ("base", "the base")):
        alone = sorted(set(table[table["side"] == side]["cell"]) - both)
        if alone and both:
            yield f"only in {words}: {_some(alone)}"
    differing: dict[str, list[str]] = {}
    for pair in hosts:
        if pair.differ:
            differing.setdefault(pair.differ, []).append(pair.cell)
    for why, cells in differing.items():
        yield f"times are told and not judged, the hosts differ ({why}): {_some(cells)}"
    unmeasured = sum(entry.figures is None for entry in table["entry"])
    if unmeasured:
        yield f"{unmeasured} runs have no figures: they count for findings alone"
    if _too_few(hosts, figures, rules) and rules.findings_suffice:
        yield f"{TOO_FEW}: findings and faults alone were compared"
    counted = [each for each in figures if not each.untested]
    weak = [each for each in counted if each.least * len(counted) > rules.level]
    if weak and not resolvable(figures, rules.level):
        return
    if weak:
        needed = math.ceil(math.log2(len(counted) / rules.level))
        yield (
            f"{len(weak)} of {len(counted)} tests have too few runs to be called alone; with "
            f"{needed} seeds a cell every one could"
        )


def _some(names: Sequence[str]) -> str:
    rest = len(names) - SHOWN
    return "; ".join(names[:SHOWN]) + (f" and {rest} more" if rest > 0 else "")
