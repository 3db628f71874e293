"""What is known of a run without reading its history: the row of a list, of a filter, of an index.

Everything is read from the run directory, which may come from elsewhere: what can't be read is
absent, never an error.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from typing import Any

import attrs
import msgspec

from harness.clock import NS_PER_S
from harness.errors import MalformedHistory, PlanError
from harness.exit_codes import Outcome
from harness.history.manifest import plan_drove, read_manifest
from harness.history.run_directory import Manifest, RunDirectory, require_plain
from harness.plan import planfile
from harness.plan.plan import MAX_SEED
from harness.protocols.consistency_models import RESET_IN_SC, RESET_WITH_MAJORITY, meaning_of
from harness.protocols.faults import MAX_DURATION_S
from harness.protocols.finding import Finding
from harness.protocols.roles import classes, parsed
from harness.protocols.verdict import Anomaly, Verdict, read_outcome, read_verdict
from harness.run.disk_budget import used_bytes
from harness.text import inert
from results.store.fingerprint import NO_FAULT, fingerprint
from results.store.retention import RunRecord, begun_at
from results.store.run_figures import Host, RunFigures, host_of, read_figures
from results.store.run_tags import read_tags, split_tag

CELL_PARTS = ("system", "mode", "workload", "faults", "provider", "nodes", "duration", "setting")
"""What two runs must have in common beside their build, to be compared: their *cell*. ``setting``
stands for all other keys of the load.
"""
SETTING_CHARS = 8
RESET = "forced reset"  # in the place of a fault
FORBIDDEN_RESETS = (RESET_IN_SC, RESET_WITH_MAJORITY)
KINDS_MAX = 100  # of a mix that a stranger's run gives
TEXT_CHARS = 200  # of a name that a stranger's run gives


class RecordedFinding(msgspec.Struct, frozen=True, kw_only=True):
    """One kind of finding of a run: the ``promise`` that the ``anomaly`` breaks, the kind of fault
    that explains its first examples and the role of that fault's target, and how often the anomaly
    was counted. ``fingerprint`` stands for all of these but the count, and the system: findings of
    two runs that share it are one finding. ``example`` is the text of the first.
    """

    fingerprint: str
    promise: str = ""
    anomaly: str
    fault: str
    role: str
    count: int
    example: str = ""


class RunEntry(msgspec.Struct, frozen=True, kw_only=True):
    """A run as lists and comparisons need it.

    ``state`` is ``running``, ``sealed``, ``prefix``, or empty without a history; ``outcome`` is
    unset where it was not judged. ``faults`` are the kinds that were planned, in order, once each;
    ``ok``, ``conflicts``, ``fail`` and ``info`` count transactions; a verdict of an older version
    counts conflicts as ``fail``. ``release``, ``commit`` and ``branch`` are the tags of these
    names, the release otherwise the plan's, or what the system said of itself. ``mix`` are the
    kinds that the schedule was drawn from, where it was drawn; ``setting`` stands for the load and
    the way that faults are drawn: runs with another one are not compared. ``refused`` says why a
    directory that has a manifest can't be read. What can't be read is ``None``, or empty.
    """

    run: str
    begun: datetime | None = None
    state: str
    outcome: str | None = None
    name: str = ""
    system: str = ""
    release: str = ""
    commit: str = ""
    branch: str = ""
    mode: str = ""
    workload: str = ""
    provider: str = ""
    faults: tuple[str, ...] = ()
    mix: tuple[str, ...] = ()
    setting: str = ""
    planned_faults: int | None = None
    tags: tuple[str, ...] = ()
    seed: int | None = None
    nodes: int | None = None
    duration_s: float | None = None
    ok: int | None = None
    conflicts: int | None = None
    fail: int | None = None
    info: int | None = None
    longest_gap_s: float | None = None
    findings: tuple[RecordedFinding, ...] = ()
    figures: RunFigures | None = None
    host: Host = Host()
    size_bytes: int = 0
    refused: str = ""


def entry_of(run: RunDirectory, *, sized: bool = True) -> RunEntry:
    """Return the entry of ``run``; its size costs a walk through the directory, and is 0 where it
    is not ``sized``.
    """
    manifest, refused, plain = None, "", False
    try:
        # Once: it looks at every directory of the run.
        require_plain(run)
        plain = True
        manifest = read_manifest(run, plain=True)
    except MalformedHistory as error:
        if os.path.lexists(run.manifest):
            refused = _text(f"{os.path.relpath(error.file, run.root)}: {error.reason}")
    plan = _plan_of(run, manifest) if plain else {}
    verdict = _verdict_of(run) if plain else None
    outcome = None
    if plain:
        outcome = verdict.outcome.value if verdict else _outcome_of(run)
    tags = read_tags(run, plain=True) if plain else ()
    named = dict(map(split_tag, tags))
    system = _text(_at(plan, "system", "name"))
    schedule = _at(plan, "nemesis", "schedule")
    return RunEntry(
        run=run.root.name,
        begun=begun_at(run.root.name),
        state=manifest.state if manifest else "",
        outcome=outcome,
        name=_text(plan.get("name")),
        system=system,
        release=named.get("release") or _release_of(plan, manifest, system),
        commit=named.get("commit", ""),
        branch=named.get("branch", ""),
        mode=_text(manifest.declaration.mode) if manifest else "",
        workload=_text(manifest.workload) if manifest else "",
        provider=_text(_at(plan, "cluster", "provider")),
        faults=_kinds(schedule),
        mix=_mix_of(manifest),
        setting=_setting_of(plan),
        planned_faults=len(schedule) if isinstance(schedule, list) else None,
        tags=tags,
        seed=_whole(plan.get("seed"), MAX_SEED),
        nodes=_nodes_of(run) if plain else None,
        duration_s=_length(_at(plan, "drive", "duration_s")),
        ok=_count(verdict, "ok"),
        conflicts=_count(verdict, "conflict"),
        fail=_count(verdict, "fail"),
        info=_count(verdict, "info"),
        longest_gap_s=_longest_gap_s(verdict),
        findings=findings_of(verdict, system),
        figures=read_figures(run, plain=True) if plain else None,
        host=host_of(manifest.machine) if manifest else Host(),
        size_bytes=used_bytes(run.root) if sized else 0,
        refused=refused,
    )


def record_of(entry: RunEntry, held: str) -> RunRecord:
    """Return what retention goes by; ``held`` is why the run must stay, empty where nothing holds
    it. A violation whose findings can't be read, as of another version's verdict, proves one of its
    own: no other run is known to prove the same.
    """
    findings = frozenset(finding.fingerprint for finding in entry.findings)
    if entry.outcome == Outcome.VIOLATION and not findings:
        findings = frozenset({entry.run})
    return RunRecord(
        run_id=entry.run,
        outcome=entry.outcome,
        held=held,
        size_bytes=entry.size_bytes,
        findings=findings,
    )


def cell_key(entry: RunEntry, across: Iterable[str] = ()) -> tuple[str, ...]:
    """Return the parts of the cell of ``entry``; those named by ``across`` are empty."""
    length = "" if entry.duration_s is None else f"{entry.duration_s:g} s"
    parts = {
        "system": entry.system,
        "mode": entry.mode,
        "workload": entry.workload,
        "faults": "+".join(sorted({*(entry.mix or entry.faults)})) or NO_FAULT,
        "provider": entry.provider,
        "nodes": "" if entry.nodes is None else f"{entry.nodes} nodes",
        "duration": length,
        "setting": entry.setting,
    }
    left_out = frozenset(across)
    return tuple("" if name in left_out else parts[name] for name in CELL_PARTS)


def _plan_of(run: RunDirectory, manifest: Manifest | None) -> dict[str, Any]:
    """The tables of the plan that drove ``run``, also where its manifest can't be read."""
    if manifest is not None and not plan_drove(run, manifest):
        return {}
    try:
        return planfile.read_table(run.plan)
    except (MalformedHistory, PlanError):
        return {}


def _verdict_of(run: RunDirectory) -> Verdict | None:
    try:
        return read_verdict(run)
    except MalformedHistory:
        return None


def _outcome_of(run: RunDirectory) -> str | None:
    try:
        # Alone: the rest of a verdict may be of another version.
        found = read_outcome(run)
    except MalformedHistory:
        return None
    return found.value if found else None


def _at(table: Mapping[str, Any], *path: str) -> Any:  # noqa: ANN401 (any TOML value)
    """Return the value at ``path``; ``None`` where there is none."""
    found: Any = table
    for step in path:
        if not isinstance(found, dict):
            return None
        found = found.get(step)
    return found


def _text(value: object) -> str:
    return inert(value, TEXT_CHARS) if isinstance(value, str) else ""


def _whole(value: object, most: int) -> int | None:
    # A bool is an instance of int.
    return value if type(value) is int and 0 <= value <= most else None


def _length(value: object) -> float | None:
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    return float(value) if 0 <= value <= MAX_DURATION_S else None


def _kinds(schedule: object) -> tuple[str, ...]:
    if not isinstance(schedule, list):
        return ()
    kinds = (_text(_at(row, "kind")) for row in schedule if isinstance(row, dict))
    return tuple(dict.fromkeys(kind for kind in kinds if kind))


def _setting_of(plan: Mapping[str, Any]) -> str:
    """Return a digest of what clients do and how faults are drawn: not of the system, whose builds
    are compared, nor of what follows from the seed.
    """
    nemesis = plan.get("nemesis")
    drawn = nemesis if isinstance(nemesis, dict) else {}
    parts = {
        "drive": plan.get("drive"),
        "workload": plan.get("workload"),
        "nemesis": {k: v for k, v in drawn.items() if k not in ("mix", "schedule")},
    }
    try:
        text = msgspec.json.encode(parts, order="sorted")
    except (TypeError, ValueError, RecursionError):
        return ""  # a stranger's plan may hold anything
    return hashlib.sha256(text).hexdigest()[:SETTING_CHARS]


def _release_of(plan: Mapping[str, Any], manifest: Manifest | None, system: str) -> str:
    told = manifest.versions.get(system) if manifest else None  # also where no plan names it
    return _text(_at(plan, "system", "release")) or _text(told)


def _mix_of(manifest: Manifest | None) -> tuple[str, ...]:
    if manifest is None or isinstance(manifest.mix, msgspec.UnsetType):
        return ()
    return tuple(dict.fromkeys(_text(kind) for kind in manifest.mix[:KINDS_MAX]))


def _nodes_of(run: RunDirectory) -> int | None:
    return sum(path.is_dir() for path in run.node("any").parent.glob("*")) or None


def _count(verdict: Verdict | None, kind: str) -> int | None:
    if verdict is None:
        return None
    return _whole(_at(verdict.statistics, "transactions", kind), 1 << 62)


def _longest_gap_s(verdict: Verdict | None) -> float | None:
    if verdict is None or verdict.availability.drive is None:
        return None
    return verdict.availability.drive.longest_gap_ns / NS_PER_S


def findings_of(verdict: Verdict | None, system: str) -> tuple[RecordedFinding, ...]:
    """Return the findings of a run by their causes; none without a verdict.

    What a forced reset did that is itself a finding is that finding: one defect of a store is one
    finding, in runs where the reset lost something and where it did not.
    """
    if verdict is None:
        return ()
    resets = _Resets.of(verdict)
    findings = [
        finding
        for name, anomaly in sorted(verdict.anomalies.items())
        for finding in _by_cause(name, anomaly, system, verdict.model, resets)
    ]
    root = next((name for name in FORBIDDEN_RESETS if name in verdict.anomalies), None)
    followed = [f for f in findings if root and f.fault == RESET and f.anomaly != root]
    return tuple(_with_effects(f, followed, root) for f in findings if f not in followed)


def _with_effects(
    finding: RecordedFinding, followed: Sequence[RecordedFinding], root: str | None
) -> RecordedFinding:
    """Return ``finding``; that of the ``root`` with what followed from it beside its example."""
    if not followed or finding.anomaly != root:
        return finding
    effects = ", ".join(f"{effect.anomaly} ({effect.count})" for effect in followed)
    return msgspec.structs.replace(finding, example=_text(f"{effects} by it; {finding.example}"))


@attrs.frozen(kw_only=True)
class _Resets:
    """The moments of the forced resets that discarded writes (``taken_ns``), and of those behind
    which writes were acknowledged that were outvoted (``outvoted_ns``).
    """

    taken_ns: tuple[int, ...]
    outvoted_ns: tuple[int, ...]

    @classmethod
    def of(cls, verdict: Verdict) -> _Resets:
        """Those that explain what ``verdict`` found."""
        told = [
            example.explained_by
            for anomaly in verdict.anomalies.values()
            for example in anomaly.examples
            if example.explained_by is not None
        ]
        return cls(
            taken_ns=tuple(reset.at_ns for why in told for reset in why.resets),
            outvoted_ns=tuple(
                why.under_reset.at_ns
                for why in told
                if why.under_reset is not None and why.reset is None
            ),
        )

    def explain(self, example: Finding) -> bool:
        """Whether one explains a finding: it discarded the write, or came between the operations
        that contradict each other, or before what was outvoted.
        """
        if example.explained_by is not None and example.explained_by.resets:
            return True
        begin_ns = min((each.invoke_ns for each in example.operations), default=0)
        end_ns = max((each.complete_ns for each in example.operations), default=0)
        return any(begin_ns < at_ns < end_ns for at_ns in self.taken_ns) or any(
            at_ns < end_ns for at_ns in self.outvoted_ns
        )


def _by_cause(
    name: str, anomaly: Anomaly, system: str, model: str, resets: _Resets
) -> list[RecordedFinding]:
    """Return a finding for each cause that the examples of ``anomaly`` name. Only a few examples
    are kept of many: the first cause has the whole count.
    """
    causes: dict[tuple[str, str], str] = {}
    for example in anomaly.examples:
        told = example.explained_by
        if name in FORBIDDEN_RESETS or resets.explain(example):
            # Whichever fault came before it: what a reset discards is one finding.
            fault, role = RESET, ""
        else:
            fault = told.kind if told and told.kind and not told.no_fault else NO_FAULT
            role = _role_class(told.roles) if told and told.roles else ""
        causes.setdefault((_text(fault), _text(role)), example.text)
    if not causes:
        causes[NO_FAULT, ""] = ""
    promise = meaning_of(name).promise or _text(model)
    return [
        RecordedFinding(
            fingerprint=fingerprint(
                promise=promise, anomaly=name, fault=fault, role=role, system=system
            ),
            promise=promise,
            anomaly=_text(name),
            fault=fault,
            role=role,
            count=anomaly.count if number == 0 else 0,
            example=_text(text),
        )
        for number, ((fault, role), text) in enumerate(causes.items())
    ]


def _role_class(roles: tuple[str, ...]) -> str:
    """Return the first class of ``roles`` that coverage counts by: what else a target held, and
    which partitions, differs from run to run, and the finding is the same.
    """
    found = classes(parsed(roles))
    return found[0] if found else min(role.partition(" of ")[0] for role in roles)
