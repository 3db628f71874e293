"""From a run directory to its verdict: a pure function of what the directory holds."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import Any, TypeVar

import attrs
import msgspec
import pyarrow as pa
import pyarrow.parquet as pq

from checkers.engine import stages
from checkers.engine.chains import Chain, chains
from checkers.engine.kernel_output import ENTERING, Joined, KernelOutput, apply, describe, of
from checkers.engine.plugin_contract import complete
from checkers.engine.source import Source
from checkers.engine.spark.options import ON_THIS_MACHINE, SparkOptions
from checkers.explain.attribution_table import by_examples, table
from checkers.explain.words import KEY_NAMES
from checkers.promises import always_on
from checkers.promises.assignments import CHECKER as ASSIGNMENTS
from checkers.promises.broken_claims import CHECKER as CLAIMS
from checkers.promises.data_nodes import CHECKER as DATA_NODES
from checkers.promises.envelope import CHECKER as RESETS
from checkers.promises.lost_write import ATTRIBUTION
from checkers.promises.replicas import CHECKER as REPLICAS
from checkers.promises.stays_up import patterns_of
from harness import plugins
from harness.errors import MalformedHistory, NotStored, Outweighed, UsageError
from harness.exit_codes import Outcome, worst
from harness.history import durable_files
from harness.history.consistency import missing_faults
from harness.history.load import History, load
from harness.history.parquet import read_key_names
from harness.history.run_directory import BankRules, RunDirectory
from harness.history.store_events import resets_in
from harness.plan import planfile
from harness.plan.plan import (
    MAX_DEADLINE_S,
    CheckPlan,
    asked_rate,
    of_drive,
    planned_schedule,
    promise_of,
)
from harness.protocols.checker import EXAMPLES_MAX, Checker, Exchange, Kernel, Part, Tables
from harness.protocols.client import READ_WRITE
from harness.protocols.consistency_models import (
    OF_LIMITS,
    OF_NODES,
    OF_RESTARTS,
    OF_SERVICE,
    PANIC,
    STRICT_SERIALIZABLE,
    Meaning,
    Meanings,
    canonical,
    decides,
    left_open,
    meaning_of,
    ruled_out,
)
from harness.protocols.fault_kinds import possible
from harness.protocols.promise import Declaration
from harness.protocols.setting import Setting
from harness.protocols.verdict import (
    Anomaly,
    Availability,
    ControllerLoad,
    Coverage,
    LogLines,
    Verdict,
    fitted,
    read_outcome,
    reason_of,
)
from harness.run.change_recorder import read_changes
from harness.run.claim_log import read_claims
from harness.run.state_log import read_states

EXECUTORS = ("local", "spark")
EVIDENCE = "evidence"
OF_ANY_RUN = frozenset({EVIDENCE, "availability", "statistics"})  # they judge no values
UNTESTED = "vacuous: of the run's checkers none looks at what transactions read and wrote"
OUT_OF_ROOM = "the disk of the run was full, and what lies on it fails for that alone"
LOGS_UNPROVEN = (
    "the controller died before it sealed the run, so that nothing shows that the logs of the "
    "nodes are what they wrote in it"
)
# Those of firedrill's checkers that have no entry point.
OWN = (*always_on.CHECKERS, REPLICAS, CLAIMS, ASSIGNMENTS, DATA_NODES, RESETS)
T = TypeVar("T")
Executor = Callable[[Iterable[Kernel], Source, Setting], KernelOutput]


@attrs.frozen(kw_only=True)
class Analysis:
    """A verdict, the tables behind it by name, and the checkers that gave up, which it leaves
    out.
    """

    verdict: Verdict
    tables: Tables
    gave_up: tuple[str, ...] = ()


def analyze(
    run: RunDirectory,
    *,
    executor: str,
    model: str | None = None,
    search_limit: int | None = None,
    spark: SparkOptions = ON_THIS_MACHINE,
    crashed: Mapping[str, str] = MappingProxyType({}),
    unstored: Callable[[NotStored], None] | None = None,
) -> Verdict:
    """Judge the sealed run in ``run`` with the checkers that its manifest names.

    ``model`` defaults to the one that the run's system declares, ``search_limit`` to the plan's.
    ``crashed`` names kernels and checkers that ended the process of an earlier analysis, and how:
    they are not tried again. Writes the tables behind the verdict into ``analysis/``; the caller
    writes the verdict itself, last. Calls ``unstored`` with the error where the disk does not take
    the tables, or where a checker gave up and a violation of the same manifest is stored, which
    stays with its tables: the findings hold. Without ``unstored`` raises that error.

    Raises ``MalformedHistory`` for a directory that is not what it claims to be, ``UsageError`` for
    an unknown executor, model or checker, ``HarnessError`` where Spark does not start.
    """
    history = load(run)
    declaration = history.manifest.declaration
    states = read_states(run.root, history.manifest.checksums)
    claims = read_claims(run.root, history.manifest.checksums)
    key_names = read_key_names(run, history.manifest.checksums)
    changes = read_changes(run.root, history.manifest.checksums)
    told = (
        *((REPLICAS,) if states["states"].num_rows else ()),
        *((CLAIMS,) if claims["claims_judged"].num_rows else ()),
        *((ASSIGNMENTS,) if changes["assignments"].num_rows else ()),
        *((DATA_NODES,) if changes["topology"].num_rows else ()),
    )
    analysis = judge(
        Source.of_files(history.transactions_file, history.micro_op_files),
        setting=_setting(history, _asked(model, declaration), search_limit),
        checkers=(
            # Each once: a manifest may repeat a name for ever.
            *checkers_named(tuple(dict.fromkeys(_with_evidence(history.manifest.checkers)))),
            *always_on.CHECKERS,
            *told,
        ),
        faults=history.faults(),
        events=history.events(),
        beside=states | claims | changes | always_on.tables(history) | {KEY_NAMES: key_names},
        executor=executor,
        spark=spark,
        crashed=crashed,
    )
    history.require_unchanged()
    try:
        _require_nothing_lost(run, analysis.gave_up)
        _write(run.analysis, analysis.tables)
    except NotStored as error:
        if unstored is None:
            raise
        unstored(error)
    return analysis.verdict


def judge(
    source: Source,
    *,
    setting: Setting,
    checkers: tuple[Checker, ...],
    faults: pa.Table,
    events: pa.Table,
    beside: Tables = MappingProxyType({}),
    executor: str = "local",
    spark: SparkOptions = ON_THIS_MACHINE,
    crashed: Mapping[str, str] = MappingProxyType({}),
) -> Analysis:
    """Judge tables of any origin. ``beside`` are the tables that are no history: states of
    replicas, lines of logs, the controller's load.
    """
    setting = msgspec.structs.replace(setting, resets=resets_in(events))
    checkers = (*checkers, *((RESETS,) if setting.resets else ()))
    asked = chains(checkers, OWN)
    kernels = [k for chain in asked for k in chain.kernels if k.name not in crashed]
    given = _executor(executor, spark)(kernels, source, setting)
    small = {"faults": faults, "events": events, **beside, **given.tables}
    # Read where a checker asks: the memory of most does not grow with the history.
    loading = {"transactions": lambda: source.transactions}
    last = apply(of(kernels, Exchange.ONE_PLACE), Joined(small, {}, loading), setting)
    broken = {**last.broken, **given.broken, **crashed}
    tables = Joined(last.tables, small, loading)
    judged = [_part(chain, tables, broken, setting, source) for chain in asked]
    ENTERING.get()("")
    gave_up = tuple(
        chain.checker.name for chain, (_, whole) in zip(asked, judged, strict=True) if not whole
    )
    return attrs.evolve(_combined([part for part, _ in judged], setting), gave_up=gave_up)


def _untested(names: tuple[str, ...]) -> tuple[str, ...]:
    return (UNTESTED,) if OF_ANY_RUN.issuperset(names) else ()


def _with_evidence(names: tuple[str, ...]) -> tuple[str, ...]:
    """Add the checkers of evidence: no workload chooses whether a run may be judged green."""
    return names if EVIDENCE in names else (*names, EVIDENCE)


def checkers_named(names: tuple[str, ...]) -> tuple[Checker, ...]:
    """Load the installed checkers of these names. Raises ``UnknownPlugin`` and ``BrokenPlugin``."""
    return tuple(map(_checker, names))


def _checker(name: str) -> Checker:
    factory = partial(plugins.load, "checkers", name)
    checker: Checker = plugins.made("checkers", name, Checker, factory)
    with plugins.naming("checkers", name):
        plugins.require_name("checkers", name, checker.name)
    return checker


def declared_model(declaration: Declaration) -> str:
    """Return the model that the system promises to its read-write transactions."""
    promised = {p.kind: p.model for p in declaration.promises}
    return promised.get(READ_WRITE) or next(iter(promised.values()), STRICT_SERIALIZABLE)


def _asked(model: str | None, declaration: Declaration) -> str:
    return canonical(declared_model(declaration) if model is None else model)


def _executor(name: str, options: SparkOptions) -> Executor:
    if name == "local":
        return stages.run_in_process
    if name == "spark":
        # Importing the package takes a second, which an analysis in process does not need.
        from checkers.engine.spark.executor import run_on_spark

        return lambda kernels, source, setting: run_on_spark(kernels, source, setting, options)
    raise UsageError(f"unknown executor {name!r} (known: {', '.join(EXECUTORS)})")


def _setting(history: History, model: str, search_limit: int | None) -> Setting:
    manifest = history.manifest
    planned = history.planned
    # A history that no plan of ours drove is judged as recorded, if anything in it succeeded.
    table = planfile.read_table(history.run.plan, history.run.plan.name) if planned else {}
    schedule = planned_schedule(table)
    check = _check_plan(table) if planned else CheckPlan(min_ok=1)
    origin = None if isinstance(manifest.origin, msgspec.UnsetType) else manifest.origin
    patterns, logs = patterns_of(manifest.declaration), history.logs
    looks_at_logs = patterns is not None
    # A line that breaks a promise may be in what nobody reads; other lines only explain.
    decides = any(pattern.breaks for pattern in patterns or ())
    missing = (*logs.missing, *logs.unsealed, *(logs.incomplete if decides else ()))
    remarks = (logs.remarks + (() if decides else logs.incomplete)) if looks_at_logs else ()
    return Setting(
        model=model,
        declaration=manifest.declaration,
        planned=planned,
        rate_per_s=asked_rate(table),
        op_deadline_s=of_drive(table, "op_deadline_s", MAX_DEADLINE_S) or 0.0,
        min_ok=check.min_ok,
        search_limit=search_limit or check.search_limit,
        limits=promise_of(table),
        schedule=schedule,
        missing=(
            *history.unnamed,
            *history.contradictions,
            *missing_faults(manifest, schedule, history.faults()),
            *_untested(manifest.checkers),
            *(missing if looks_at_logs else ()),
        ),
        remarks=remarks + history.unexplained,
        bank=BankRules() if origin is None else origin.bank,
        state=manifest.state,
        interrupted=manifest.interrupted,
        trouble=manifest.trouble,
        phases=manifest.phases,
        cut_ns=manifest.cut_ns,
        out_of_room=manifest.out_of_room is True,
        logs_unproven=manifest.recovered is True,
        fault_kinds=possible(manifest.arsenal),
    )


def _check_plan(table: dict[str, Any]) -> CheckPlan:
    """Return the plan's ``[check]``, with defaults for the keys that the plan leaves out."""
    return planfile.convert(CheckPlan, table.get("check", {}), "check")


def _part(
    chain: Chain,
    tables: Tables,
    broken: Mapping[str, str],
    setting: Setting,
    source: Source,
) -> tuple[Part, bool]:
    """Return the part of a checker, and whether it is whole; a checker that breaks gives
    ``unknown`` and the reason.
    """
    checker, why = chain.checker, chain.refused
    names = (checker.name, *(kernel.name for kernel in chain.kernels))
    # A kernel that misses a broken one's tables breaks as well; the cause comes first in the order.
    if why is None:
        why = next((broken[name] for name in names if name in broken), None)
    if why is None:
        ENTERING.get()(checker.name)
        try:
            return complete(checker.name, checker.judge(tables, setting, source)), True
        # ``SystemExit`` as well: a broken checker must not end the others.
        except (Exception, SystemExit) as error:
            why = describe(error)
    reasons = (f"checker {checker.name} gave up: {why}",)
    return Part(outcome=Outcome.UNKNOWN, reasons=reasons), False


def _meanings(parts: Iterable[Part]) -> Meanings:
    """Return the meanings of all checkers' anomalies; of a name that two checkers define, both
    meanings.
    """
    found: dict[str, Meaning] = {}
    for part in parts:
        for name, meaning in part.meanings.items():
            other = found.get(name, meaning)
            found[name] = Meaning(
                breaks=tuple(dict.fromkeys((*other.breaks, *meaning.breaks))),
                promise=other.promise or meaning.promise,
            )
    return found


def _together(first: Anomaly, second: Anomaly) -> Anomaly:
    """Merge the anomalies that two checkers found under one name."""
    examples = (*first.examples, *second.examples)[:EXAMPLES_MAX]
    return Anomaly(count=first.count + second.count, examples=examples)


def _combined(parts: list[Part], setting: Setting) -> Analysis:
    """Combine all parts into one verdict."""
    found: dict[str, Anomaly] = {}
    tables: dict[str, pa.Table] = {}
    statistics: dict[str, Any] = {}
    node_logs: dict[str, dict[str, LogLines]] = {}
    for part in parts:
        for name, anomaly in part.anomalies.items():
            found[name] = _together(found[name], anomaly) if name in found else anomaly
        tables |= part.tables
        statistics |= part.statistics
        node_logs |= part.node_logs
    if examples := table(setting.declaration.mode, by_examples(found)):
        statistics[ATTRIBUTION] = [*statistics.get(ATTRIBUTION, ()), *examples]
    meanings = _meanings(parts)
    deciding = {
        name: a for name, a in sorted(found.items()) if decides(name, setting.model, meanings)
    }
    spared = _spared(deciding, setting)
    for names in spared.values():
        deciding = {name: anomaly for name, anomaly in deciding.items() if name not in names}
    weakest, above = ruled_out(found, meanings)
    outcomes = [part.outcome for part in parts] + [Outcome.VIOLATION] * bool(deciding)
    reasons = [
        reason_of(name, a, meaning_of(name, meanings).promise or setting.model)
        for name, a in deciding.items()
    ]
    # An excused finding leaves the promise undecided: it was seen, so the run is not valid.
    for reason, names in spared.items():
        outcomes.append(Outcome.UNKNOWN)
        reasons.append(f"undecided: {', '.join(names)} was seen, but {reason}")
    if left_open(setting.model, found, meanings):
        outcomes.append(Outcome.UNKNOWN)
        reasons.append(_left_open(setting.model, found))
    verdict = Verdict(
        outcome=worst(outcomes),
        model=setting.model,
        anomalies=deciding,
        not_=weakest,
        also_not=above,
        observed={name: a for name, a in sorted(found.items()) if name not in deciding},
        reasons=(*reasons, *(reason for part in parts for reason in part.reasons)),
        statistics=statistics,
        limits=tuple(limit for part in parts for limit in part.limits),
        availability=_told((part.availability for part in parts), Availability()),
        coverage=_told((part.coverage for part in parts), Coverage()),
        controller=_told((part.controller for part in parts), ControllerLoad()),
        node_logs=node_logs,
    )
    return Analysis(verdict=fitted(verdict), tables=tables)


def _told(given: Iterable[T | None], otherwise: T) -> T:
    """Return the last of ``given``: the part of a verdict that one checker alone computes."""
    return [otherwise, *(part for part in given if part is not None)][-1]


def _spared(deciding: Mapping[str, Anomaly], setting: Setting) -> dict[str, tuple[str, ...]]:
    """Return the findings that decide nothing, by reason."""
    found = {
        OUT_OF_ROOM: (OF_NODES | OF_SERVICE | OF_LIMITS | OF_RESTARTS).intersection(
            deciding if setting.out_of_room else ()
        ),
        LOGS_UNPROVEN: {PANIC}.intersection(deciding if setting.logs_unproven else ()),
    }
    return {why: tuple(sorted(these)) for why, these in found.items() if these}


def _left_open(model: str, found: Iterable[str]) -> str:
    return (
        f"undecided: whether {model} holds can't be told; it would follow from a stronger model, "
        f"but those that can be decided are ruled out by {', '.join(sorted(found))}"
    )


def _require_nothing_lost(run: RunDirectory, gave_up: tuple[str, ...]) -> None:
    """Raise ``Outweighed`` where a violation is stored that may be of those that ``gave_up``."""
    if not gave_up:
        return
    with suppress(MalformedHistory):  # what no reader takes for a verdict is replaced
        if read_outcome(run) is Outcome.VIOLATION:
            left_out = f"it leaves out {', '.join(gave_up)}"
            raise Outweighed(f"{left_out}, and the violation that is stored stays")


def _write(directory: Path, tables: Tables) -> None:
    """Write each table atomically and durably, before the verdict that rests on it is written."""
    try:
        with durable_files.held(directory, make=True) as place:
            for name, table in sorted(tables.items()):
                _write_table(place / f"{name}.parquet", table)
    except OSError as error:
        missing = "the tables behind the verdict are missing"
        raise durable_files.disk_failure("write into", directory, error, missing) from error


def _write_table(path: Path, table: pa.Table) -> None:
    unfinished = durable_files.begin(path)
    try:
        pq.write_table(table, unfinished, compression="zstd")
        durable_files.publish(unfinished, path)
    except OSError:
        # What is to be told is the failed write, not that its rest could not be removed.
        with suppress(OSError):
            unfinished.unlink()
        raise
