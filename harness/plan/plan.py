"""The plan of a run: one frozen value with every choice in it, read from TOML and written back.

``load`` and ``loads`` refuse unknown keys, wrong types and values out of range; ``resolved`` puts
the materialised fault schedule in, so that a run's ``plan.toml`` drives the same faults again. The
option tables of plugins stay raw here: each plugin turns its own into a struct with ``options``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar

import msgspec
import tomli_w
from msgspec import Meta

from harness.errors import PlanError
from harness.plan import planfile
from harness.plan.overrides import ONE_OF_RIVALS, PLUGINS, TOML_TIMES, Overrides, applied
from harness.protocols.faults import PlannedFault

T = TypeVar("T", bound=msgspec.Struct)

MAX_SEED = (1 << 63) - 1  # the largest TOML integer
MAX_NODES = 64  # addresses and links grow with the square; no lab of the project has more
MAX_DURATION_S = 7 * 86_400.0  # a week's soak
MAX_CONCURRENCY = 10_000  # logical processes of one driver
MAX_DRIVERS = 64  # driver processes; no host of the project has more cores
MIN_RATE_PER_S = 0.001  # an operation every quarter of an hour
MAX_RATE_PER_S = 1_000_000.0
MIN_DEADLINE_S = 0.001  # below the timer's own noise every operation would be late
MAX_DEADLINE_S = 600.0
MAX_LIMIT_S = 3_600.0  # no phase around the drive may take longer than an hour
MAX_DISK_MIB = 1 << 24  # 16 TiB
MAX_SCHEDULE = 10_000  # faults in one plan
MAX_OVERLAP = 16  # faults at once; each needs nodes of its own
SEARCH_LIMIT = 500_000  # configurations of one register: about a second
MAX_SEARCH_LIMIT = 1_000_000_000  # some hours, and as much memory as a machine has
DEFAULT_MIX = ("kill", "partition")
NAME_PATTERN = r"^[A-Za-z0-9][A-Za-z0-9_.-]{0,47}$"  # it becomes part of a directory's name

_LimitS = Annotated[float, Meta(gt=0, le=MAX_LIMIT_S)]
_DurationS = Annotated[float, Meta(gt=0, le=MAX_DURATION_S)]


class _Table(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A table of a plan, in which every key is known."""


class ClusterPlan(_Table, frozen=True, kw_only=True):
    """The source of the nodes. ``options`` are the provider's own; ``auto`` picks a provider.

    ``spares`` are provisioned beside the ``nodes`` and not started: faults let them join.
    """

    provider: str = "auto"
    nodes: Annotated[int, Meta(ge=1, le=MAX_NODES)] = 5
    spares: Annotated[int, Meta(ge=0, lt=MAX_NODES)] = 0
    options: dict[str, Any] = {}


class PluginPlan(_Table, frozen=True, kw_only=True):
    """A plugin by name and its raw option table (in TOML they are keys beside ``name``)."""

    name: str
    options: dict[str, Any] = {}


class DrivePlan(_Table, frozen=True, kw_only=True):
    """The load of the clients: closed loop, or open loop where ``rate_per_s`` is given.

    ``concurrency`` and rate are the run's, shared among ``drivers`` processes.
    """

    duration_s: _DurationS = 30.0
    concurrency: Annotated[int, Meta(ge=1, le=MAX_CONCURRENCY)] = 10
    drivers: Annotated[int, Meta(ge=1, le=MAX_DRIVERS)] = 1
    rate_per_s: Annotated[float, Meta(ge=MIN_RATE_PER_S, le=MAX_RATE_PER_S)] | None = None
    op_deadline_s: Annotated[float, Meta(ge=MIN_DEADLINE_S, le=MAX_DEADLINE_S)] = 2.0


class NemesisPlan(_Table, frozen=True, kw_only=True):
    """The faults: kinds to mix at random, or the schedule itself; never both.

    The first fault of a mix comes ``first_s`` after the drive began; each holds for ``hold_s``, and
    ``quiet_s`` without faults follow it. ``overlap`` faults of a mix come together, on distinct
    nodes. Where ``among`` names nodes, each of them gets independent faults instead, and no other
    node does: any number of them may be out at once.
    """

    mix: tuple[str, ...] = DEFAULT_MIX
    first_s: Annotated[float, Meta(ge=0, le=MAX_DURATION_S)] = 3.0
    hold_s: _DurationS = 5.0
    quiet_s: Annotated[float, Meta(ge=0, le=MAX_DURATION_S)] = 4.0
    overlap: Annotated[int, Meta(ge=1, le=MAX_OVERLAP)] = 1
    among: Annotated[tuple[str, ...], Meta(max_length=MAX_NODES)] = ()
    schedule: Annotated[tuple[PlannedFault, ...], Meta(max_length=MAX_SCHEDULE)] = ()


class CheckPlan(_Table, frozen=True, kw_only=True):
    """How the history is judged. Fewer than ``min_ok`` acknowledged operations prove nothing.

    ``auto`` judges a small history in process and any other on Spark. The search of one register
    gives up after ``search_limit`` configurations.
    """

    executor: Literal["auto", "spark", "local"] = "auto"
    min_ok: Annotated[int, Meta(ge=1)] = 100
    search_limit: Annotated[int, Meta(ge=1, le=MAX_SEARCH_LIMIT)] = SEARCH_LIMIT


class LimitsPlan(_Table, frozen=True, kw_only=True):
    """The time limits of the phases around the drive, and the size limit of the run directory: a
    run that exceeds it is ended early.
    """

    ready_s: _LimitS = 60.0
    quiesce_s: _LimitS = 60.0
    final_reads_s: _LimitS = 30.0
    disk_mib: Annotated[int, Meta(ge=1, le=MAX_DISK_MIB)] = 10_240


class Plan(_Table, frozen=True, kw_only=True):
    """One run, before it starts. Every random choice in it follows from ``seed``."""

    name: Annotated[str, Meta(pattern=NAME_PATTERN)] = "drill"
    seed: Annotated[int, Meta(ge=0, le=MAX_SEED)]
    cluster: ClusterPlan = ClusterPlan()
    system: PluginPlan = PluginPlan(name=PLUGINS["system"])
    workload: PluginPlan = PluginPlan(name=PLUGINS["workload"])
    drive: DrivePlan = DrivePlan()
    nemesis: NemesisPlan = NemesisPlan()
    check: CheckPlan = CheckPlan()
    limits: LimitsPlan = LimitsPlan()


def load(
    path: Path | None,
    overrides: Overrides | None = None,
    *,
    seed: int | None = None,
    usual: Overrides | None = None,
) -> Plan:
    """The plan in file ``path`` (``None``: ``usual``, and the defaults for all else) with
    ``overrides``.

    An override of ``None`` is a flag that was not given. ``seed`` is used where neither file nor
    overrides name one. Raises ``PlanError``.
    """
    table = (
        planfile.parse(planfile.read_text(path), str(path)) if path else applied({}, usual or {})
    )
    return _loaded(table, overrides, seed)


def loads(
    text: str,
    overrides: Overrides | None = None,
    *,
    seed: int | None = None,
    source: str = "plan",
) -> Plan:
    """``load`` for the text of a plan; ``source`` names it in messages."""
    return _loaded(planfile.parse(text, source), overrides, seed)


def _loaded(table: dict[str, Any], overrides: Overrides | None, seed: int | None) -> Plan:
    table = applied(table, overrides or {})
    if seed is not None:
        table.setdefault("seed", seed)
    plan = planfile.convert(Plan, _nested(table), "")
    _check_drivers(plan)
    _check_machines(plan)
    _check_faults(plan)
    return plan


def node_names(plan: Plan) -> tuple[str, ...]:
    """``n1`` ... in the order that everything uses: the members of the cluster at first."""
    return tuple(f"n{number + 1}" for number in range(plan.cluster.nodes))


def spare_names(plan: Plan) -> tuple[str, ...]:
    """The names of the spares, which follow those of the nodes."""
    first, count = plan.cluster.nodes + 1, plan.cluster.spares
    return tuple(f"n{number}" for number in range(first, first + count))


def machine_names(plan: Plan) -> tuple[str, ...]:
    """The names of nodes and spares: of all that is provisioned."""
    return (*node_names(plan), *spare_names(plan))


def dumps(plan: Plan) -> str:
    """``plan`` as TOML, every key written: ``loads(dumps(plan)) == plan``, and equal plans are
    equal texts.
    """
    table = _without_none(msgspec.to_builtins(plan, builtin_types=TOML_TIMES))
    for name in PLUGINS:
        table[name] = {"name": table[name]["name"], **table[name]["options"]}
    return tomli_w.dumps(table)


def options(cls: type[T], table: Mapping[str, Any], path: str) -> T:
    """A plug-in's option ``table`` as its struct ``cls`` (which forbids unknown fields).

    ``path`` is the path of the table in the plan (``workload``). Raises ``PlanError`` with the
    dotted path of the key, the expected and the found value.
    """
    return planfile.convert(cls, dict(table), path)


def resolved(plan: Plan, schedule: Sequence[PlannedFault]) -> Plan:
    """``plan`` with the materialised ``schedule`` in place of the mix."""
    nemesis = msgspec.structs.replace(plan.nemesis, mix=(), schedule=tuple(schedule))
    changed = msgspec.structs.replace(plan, nemesis=nemesis)
    _check_faults(changed)
    return changed


def _nested(table: dict[str, Any]) -> dict[str, Any]:
    """The tables as the structs have them: plugin options in a table of their own, and no default
    mix beside a schedule.
    """
    table = dict(table)
    for name, default in PLUGINS.items():
        given = table.get(name, {})
        if isinstance(given, dict):
            own = {k: v for k, v in given.items() if k != "name"}
            table[name] = {"name": given.get("name", default), "options": own}
    nemesis = table.get("nemesis")
    if isinstance(nemesis, dict) and "schedule" in nemesis:
        rows = nemesis["schedule"]
        if isinstance(rows, list):
            rows = [_from_the_begin(row) for row in rows]
        # Before the file's own keys: a mix that is written beside the schedule is still refused.
        table["nemesis"] = {"mix": [], **nemesis, "schedule": rows}
    return table


def _from_the_begin(row: Any) -> Any:  # noqa: ANN401 (any TOML value)
    """A fault that waits for a moment may come from the begin of the drive on."""
    return {"at_s": 0.0, **row} if isinstance(row, dict) and "on" in row else row


def _check_drivers(plan: Plan) -> None:
    """Each driver process needs clients, and a simulation has but one process."""
    drivers = plan.drive.drivers
    if drivers > plan.drive.concurrency:
        most = f"at most drive.concurrency, {plan.drive.concurrency}"
        raise PlanError("drive.drivers", f"expected {most} (got {drivers})")
    if drivers > 1 and plan.cluster.provider == "sim":
        raise PlanError("drive.drivers", f"expected 1 with provider 'sim' (got {drivers})")


def _check_machines(plan: Plan) -> None:
    """Spares are machines as nodes are."""
    spares, most = plan.cluster.spares, MAX_NODES - plan.cluster.nodes
    if spares > most:
        limit = f"at most {MAX_NODES} machines: {most} beside the nodes"
        raise PlanError("cluster.spares", f"expected {limit} (got {spares})")


def _check_faults(plan: Plan) -> None:
    """Check the rules for faults that types can't express."""
    if plan.nemesis.mix and plan.nemesis.schedule:
        raise PlanError("nemesis.mix", ONE_OF_RIVALS)
    for number, fault in enumerate(plan.nemesis.schedule):
        path = f"nemesis.schedule[{number}]"
        if not 0 <= fault.at_s < plan.drive.duration_s:
            limit = f"within the drive phase, 0 <= at_s < {plan.drive.duration_s:g}"
            raise PlanError(f"{path}.at_s", f"expected a time {limit} (got {fault.at_s:g})")
        if not 0 < fault.hold_s <= MAX_DURATION_S:
            bound = f"<= {MAX_DURATION_S:g}" if fault.hold_s > 0 else "> 0"
            problem = f"expected a number {bound} (got {fault.hold_s:g})"
            raise PlanError(f"{path}.hold_s", problem)


def _without_none(value: Any) -> Any:  # noqa: ANN401 (any TOML value)
    """TOML has no null: a key without a value is left out."""
    if isinstance(value, dict):
        return {k: _without_none(v) for k, v in value.items() if v is not None}
    if isinstance(value, list | tuple):
        return [_without_none(v) for v in value]
    return value
