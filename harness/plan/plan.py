"""The plan of a run: one frozen value with every choice in it, read from TOML and written back.

``load`` and ``loads`` refuse unknown keys, wrong types and values out of range; ``resolved`` puts
the materialised fault schedule in, so that a run's ``plan.toml`` drives the same faults again. The
option tables of plugins stay raw here: each plugin turns its own into a struct with ``options``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from pathlib import Path
from typing import Annotated, Any, Literal, NoReturn, TypeVar

import msgspec
import tomli_w
from msgspec import Meta

from harness import plugins
from harness.errors import PlanError
from harness.plan import planfile
from harness.plan.overrides import ONE_OF_RIVALS, PLUGINS, TOML_TIMES, Overrides, applied
from harness.protocols.faults import MAX_DURATION_S, PlannedFault

T = TypeVar("T", bound=msgspec.Struct)

MAX_SEED = (1 << 63) - 1  # the largest TOML integer
MAX_NODES = 64  # addresses and links grow with the square; no lab of the project has more
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
SEARCH_LIMIT = 500_000  # configurations of one register: a few seconds
MAX_SEARCH_LIMIT = 1_000_000_000  # some hours, and as much memory as a machine has
DEFAULT_MIX = ("kill", "partition")
NAME_PATTERN = r"^[A-Za-z0-9][A-Za-z0-9_.-]{0,47}\Z"  # it becomes part of a directory's name
NAME_FORM = {
    planfile.FORM: "1 to 48 letters, digits, '_', '.' and '-', a letter or digit first, such as "
    "'nightly-2'"
}

_LimitS = Annotated[float, Meta(gt=0, le=MAX_LIMIT_S)]
_DurationS = Annotated[float, Meta(gt=0, le=MAX_DURATION_S)]


class _Table(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A table of a plan, in which every key is known."""


class ClusterPlan(_Table, frozen=True, kw_only=True):
    """The source of the nodes."""

    provider: Annotated[
        str,
        Meta(
            description="Where nodes come from. `auto`: containers where a Docker daemon answers, "
            "else local processes."
        ),
    ] = "auto"
    nodes: Annotated[
        int, Meta(ge=1, le=MAX_NODES, description="How many nodes: `n1`, `n2` and so on.")
    ] = 5
    spares: Annotated[
        int,
        Meta(
            ge=0,
            lt=MAX_NODES,
            description="Machines that are provisioned beside the nodes and not started: faults "
            "let them join.",
        ),
    ] = 0
    options: Annotated[dict[str, Any], Meta(description="The provider's own keys.")] = {}


class PluginPlan(_Table, frozen=True, kw_only=True):
    """A plugin by name and its raw option table (in TOML they are keys beside ``name``)."""

    name: Annotated[str, Meta(description="The plug-in, by the name of its entry point.")]
    options: Annotated[dict[str, Any], Meta(description="The plug-in's own keys.")] = {}


class DrivePlan(_Table, frozen=True, kw_only=True):
    """The load of the clients: closed loop, or open loop where ``rate_per_s`` is given."""

    duration_s: Annotated[
        _DurationS, Meta(description="How long clients go on, faults among them.")
    ] = 30.0
    overtime_s: Annotated[
        float,
        Meta(
            ge=0,
            le=MAX_DURATION_S,
            description="How much longer they go on, at most, while a fault is not over, and how "
            "much longer than usual each may wait for its target, or for data to move.",
        ),
    ] = 0.0
    concurrency: Annotated[
        int,
        Meta(
            ge=1,
            le=MAX_CONCURRENCY,
            description="Logical client processes of the run, shared among its driver processes.",
        ),
    ] = 10
    drivers: Annotated[
        int, Meta(ge=1, le=MAX_DRIVERS, description="Driver processes; a simulation has one.")
    ] = 1
    rate_per_s: Annotated[
        Annotated[float, Meta(ge=MIN_RATE_PER_S, le=MAX_RATE_PER_S)] | None,
        Meta(
            description="Operations of the run that begin in a second, whatever happened to those "
            "before (an open loop). Without it a client waits for its answer (a closed loop)."
        ),
    ] = None
    op_deadline_s: Annotated[
        float,
        Meta(
            ge=MIN_DEADLINE_S,
            le=MAX_DEADLINE_S,
            description="How long a client waits for a transaction before its outcome counts as "
            "not known.",
        ),
    ] = 2.0


class NemesisPlan(_Table, frozen=True, kw_only=True):
    """The faults: kinds to mix at random, or the schedule itself; never both."""

    mix: Annotated[
        tuple[str, ...],
        Meta(description="Kinds of faults to draw a schedule of; `[]`: no faults."),
    ] = DEFAULT_MIX
    first_s: Annotated[
        float,
        Meta(ge=0, le=MAX_DURATION_S, description="When the first fault of a mix comes."),
    ] = 3.0
    hold_s: Annotated[
        _DurationS, Meta(description="How long each fault of a mix holds, at most.")
    ] = 5.0
    quiet_s: Annotated[
        float,
        Meta(
            ge=0,
            le=MAX_DURATION_S,
            description="Without faults of a mix after each of them, at least.",
        ),
    ] = 4.0
    overlap: Annotated[
        int,
        Meta(
            ge=1,
            le=MAX_OVERLAP,
            description="How many faults of a mix come together, on distinct nodes.",
        ),
    ] = 1
    among: Annotated[
        tuple[str, ...],
        Meta(
            max_length=MAX_NODES,
            description="Nodes each of which gets independent faults of the mix, in place of the "
            "drawn targets; no other node does. Any number of them may be out at once.",
        ),
    ] = ()
    schedule: Annotated[
        tuple[PlannedFault, ...],
        Meta(max_length=MAX_SCHEDULE, description="The faults one by one, in place of a mix."),
    ] = ()


class CheckPlan(_Table, frozen=True, kw_only=True):
    """How the history is judged."""

    executor: Annotated[
        Literal["auto", "spark", "local"],
        Meta(
            description="Where checkers run; `auto`: small histories in process, others on Spark."
        ),
    ] = "auto"
    min_ok: Annotated[
        int,
        Meta(
            ge=1,
            description="Fewer acknowledged operations prove nothing: the run is `unknown`. A plan "
            "whose open loop does not begin as many is refused.",
        ),
    ] = 100
    search_limit: Annotated[
        int,
        Meta(
            ge=1,
            le=MAX_SEARCH_LIMIT,
            description="Configurations, beside 200 for each operation, after which the search of "
            "one register gives up.",
        ),
    ] = SEARCH_LIMIT


class LimitsPlan(_Table, frozen=True, kw_only=True):
    """The time limits of the phases around the drive, and the size limit of the run directory."""

    ready_s: Annotated[_LimitS, Meta(description="For the cluster to come up and serve.")] = 60.0
    quiesce_s: Annotated[
        _LimitS, Meta(description="For the cluster to become whole after the last fault.")
    ] = 60.0
    final_reads_s: Annotated[_LimitS, Meta(description="For the reads after the drive.")] = 30.0
    disk_mib: Annotated[
        int,
        Meta(
            ge=1,
            le=MAX_DISK_MIB,
            description="A run whose directory grows larger is ended early.",
        ),
    ] = 10_240


class ServiceLimits(_Table, frozen=True, kw_only=True):
    """Limits of the service that clients get; a limit that is not given promises nothing."""

    longest_gap_s: Annotated[
        _LimitS | None,
        Meta(
            description="The longest time in which clients asked and nothing was acknowledged: by "
            "the store as a whole, and by each partition. A time of which none asked for more than "
            "a quarter is cut there, whatever the limit is."
        ),
    ] = None
    p99_ms: Annotated[
        Annotated[float, Meta(gt=0, le=MAX_LIMIT_S * 1000)] | None,
        Meta(
            description="99 % of the acknowledged transactions took at most so long. Where more "
            "took longer it is a violation if chance would hardly bring so many (less than 1 in "
            "30,000: 11 of 200, 26 of 1,000, 143 of 10,000), and left open else; of fewer than 100 "
            "transactions less is not tested. In a closed loop less than `drive.op_deadline_s`: "
            "later than that none is acknowledged."
        ),
    ] = None
    recovered_within_s: Annotated[
        _LimitS | None,
        Meta(
            description="So long after each fault is healed 90 % of the rate before it is served "
            "again, and from then on, and each partition acknowledges. Of few transactions, where "
            "a rate that is back would often be counted lower, so much less is enough, 80 % at "
            "least; of an open loop's the share is counted that was served of those that were due. "
            "What is less is a violation where chance does not explain it, and left open "
            "else. It needs a calm behind a fault of so long and what 200 transactions take, 1 to "
            "5 s."
        ),
    ] = None
    indefinite_share: Annotated[
        Annotated[float, Meta(ge=0, lt=1)] | None,
        Meta(
            description="Of all transactions at most this share has an outcome that is not known; "
            "those that gave way to another (conflicts) do not count. More is a violation where "
            "chance would hardly bring so many (less than 1 in 30,000), and left open else; of "
            "fewer than 100 transactions less is not tested."
        ),
    ] = None
    refused_within_s: Annotated[
        _LimitS | None,
        Meta(
            description="Except in mode HA: so long after it was made a request to a partition "
            "without the majority of its voters is refused, from 3 s after the loss on. It needs a "
            "fault that takes a partition's majority (`majority of partition P`) and leaves "
            "metastorage its own, or nothing is certain of partitions."
        ),
    ] = None
    serves_within_s: Annotated[
        _LimitS | None,
        Meta(
            description="In mode HA: so long after a partition has lost the majority of its voters "
            "it acknowledges writes again. Of the faults it needs what `refused_within_s` does."
        ),
    ] = None

    @property
    def given(self) -> dict[str, float]:
        """The limits that are given, by key."""
        every = {key: getattr(self, key) for key in ServiceLimits.__struct_fields__}
        return {key: value for key, value in every.items() if value is not None}


class PromisePlan(ServiceLimits, frozen=True, kw_only=True):
    """Limits whose breach is a violation: over the whole drive, and in `[promise.KIND]` while a
    fault of that kind is in force (`recovered_within_s`: after it).
    """

    during: Annotated[
        dict[str, ServiceLimits], Meta(description="Limits while a fault of a kind is in force.")
    ] = {}

    @property
    def sections(self) -> dict[str, ServiceLimits]:
        """The limits by the path of their table: ``promise``, ``promise.kill``."""
        own = {"promise": self, **{f"promise.{kind}": of for kind, of in self.during.items()}}
        return {path: limits for path, limits in own.items() if limits.given}


class Plan(_Table, frozen=True, kw_only=True):
    """One run, before it starts. Every random choice in it follows from ``seed``."""

    name: Annotated[
        str,
        Meta(
            pattern=NAME_PATTERN,
            extra=NAME_FORM,
            description="Name of the run, a part of its identifier.",
        ),
    ] = "drill"
    seed: Annotated[
        int,
        Meta(
            ge=0,
            le=MAX_SEED,
            description="The seed of every random choice; drawn, and written down, where the file "
            "gives none.",
        ),
    ]
    cluster: ClusterPlan = ClusterPlan()
    system: PluginPlan = PluginPlan(name=PLUGINS["system"])
    workload: PluginPlan = PluginPlan(name=PLUGINS["workload"])
    drive: DrivePlan = DrivePlan()
    nemesis: NemesisPlan = NemesisPlan()
    check: CheckPlan = CheckPlan()
    promise: PromisePlan = PromisePlan()
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
    table = planfile.read_table(path) if path else applied({}, usual or {})
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
    return tomli_w.dumps(as_table(plan))


def as_table(plan: Plan) -> dict[str, Any]:
    """``plan`` as the tables of its file, every key that has a value in them."""
    table: dict[str, Any] = _without_none(msgspec.to_builtins(plan, builtin_types=TOML_TIMES))
    for name in PLUGINS:
        table[name] = {"name": table[name]["name"], **table[name]["options"]}
    promise = table.pop("promise")
    promise |= promise.pop("during")
    # Plans without limits are the texts that they were before there were any.
    return table | ({"promise": promise} if promise else {})


def promise_of(table: Mapping[str, Any]) -> PromisePlan:
    """The limits in the ``table`` of a plan's file. Raises ``PlanError``."""
    return planfile.convert(PromisePlan, _promise(table.get("promise", {})), "promise")


def of_drive(table: Mapping[str, Any], name: str, most: float) -> float | None:
    """The number ``name`` of the ``[drive]`` in the ``table`` of a plan's file; ``None`` where it
    has none, and for a value that no plan may have.
    """
    drive = table.get("drive")
    given = drive.get(name) if isinstance(drive, Mapping) else None
    known = isinstance(given, int | float) and 0 < given <= most
    return float(given) if known and given is not None else None


def asked_rate(table: Mapping[str, Any]) -> float | None:
    """The transactions a second of the open loop that a plan asks for; ``None`` of a closed one."""
    return of_drive(table, "rate_per_s", MAX_RATE_PER_S)


def planned_schedule(table: Mapping[str, Any]) -> tuple[PlannedFault, ...]:
    """The schedule in the ``table`` of a plan's file; none where it has a mix instead. Raises
    ``PlanError``.
    """
    nemesis = table.get("nemesis")
    rows = nemesis.get("schedule", []) if isinstance(nemesis, Mapping) else []
    return planfile.convert(NemesisPlan, {"schedule": rows}, "nemesis").schedule


def _promise(given: Any) -> Any:  # noqa: ANN401 (any TOML value)
    """The tables of kinds of faults in a table of their own."""
    if not isinstance(given, dict):
        return given
    during = {key: value for key, value in given.items() if isinstance(value, dict)}
    for key, value in given.items():
        if key not in during and key not in ServiceLimits.__struct_fields__:
            raise _no_limit(key, value)
    for kind, limits in during.items():
        # One by one, for their errors: those of a table of tables do not tell which one.
        planfile.convert(ServiceLimits, limits, planfile.dotted("promise", (kind,)))
    return {key: value for key, value in given.items() if key not in during} | {"during": during}


def _no_limit(key: str, value: object) -> PlanError:
    """The error of a key that is neither a limit nor the table of a kind of fault."""
    path, kinds = planfile.dotted("promise", (key,)), plugins.names("faults")
    if key in kinds:
        expected = f"a table of limits while a fault of kind {key} is in force"
        return PlanError(path, f"expected {expected} (got {planfile.shown(value)})")
    known = (*ServiceLimits.__struct_fields__, *kinds)
    return PlanError(path, f"unknown key{planfile.nearest(key, known)}")


def options(cls: type[T], table: Mapping[str, Any], path: str) -> T:
    """A plug-in's option ``table`` as its struct ``cls`` (which forbids unknown fields).

    ``path`` is the path of the table in the plan (``workload``). Raises ``PlanError`` with the
    dotted path of the key, the expected and the found value.
    """
    seek = _SEEK.get()
    if seek is not None:
        seek(cls)
    found = planfile.convert(cls, dict(table), path)
    converted = _CONVERTED.get()
    if converted is not None:
        converted[path] = found
    return found


def options_type(convert: Callable[[], object]) -> type[msgspec.Struct] | None:
    """The struct into which ``convert``, the code of a plug-in, turns its option table by
    ``options``; ``None`` where it calls ``options`` for none.
    """
    token = _SEEK.set(_tell)
    try:
        convert()
    except _OptionsFound as found:
        return found.cls
    # A plug-in that fails before it comes to its table tells nothing of it, and breaks no other's.
    except Exception:
        return None
    finally:
        _SEEK.reset(token)
    return None


@contextmanager
def converted_options() -> Iterator[dict[str, msgspec.Struct]]:
    """What ``options`` returns within the block, by path: every key of a plug-in with its value."""
    found: dict[str, msgspec.Struct] = {}
    token = _CONVERTED.set(found)
    try:
        yield found
    finally:
        _CONVERTED.reset(token)


class _OptionsFound(Exception):
    def __init__(self, cls: type[msgspec.Struct]) -> None:
        super().__init__(cls.__name__)
        self.cls = cls


def _tell(cls: type[msgspec.Struct]) -> NoReturn:
    raise _OptionsFound(cls)


_SEEK: ContextVar[Callable[[type[msgspec.Struct]], NoReturn] | None] = ContextVar(
    "seek", default=None
)
_CONVERTED: ContextVar[dict[str, msgspec.Struct] | None] = ContextVar("converted", default=None)


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
    if "promise" in table:
        table["promise"] = _promise(table["promise"])
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
    """Each driver process needs clients, and is told its end beforehand; a simulation has but one
    process.
    """
    drivers = plan.drive.drivers
    if drivers > plan.drive.concurrency:
        most = f"at most drive.concurrency, {plan.drive.concurrency}"
        raise PlanError("drive.drivers", f"expected {most} (got {drivers})")
    if drivers > 1 and plan.cluster.provider == "sim":
        raise PlanError("drive.drivers", f"expected 1 with provider 'sim' (got {drivers})")
    if drivers > 1 and plan.drive.overtime_s:
        raise PlanError("drive.drivers", f"expected 1 with drive.overtime_s (got {drivers})")


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
    overlap, nodes = plan.nemesis.overlap, plan.cluster.nodes
    if plan.nemesis.mix and overlap > nodes:
        most = f"at most cluster.nodes, {nodes}: faults that come together have nodes of their own"
        raise PlanError("nemesis.overlap", f"expected {most} (got {overlap})")
    for number, fault in enumerate(plan.nemesis.schedule):
        path = f"nemesis.schedule[{number}]"
        if not fault.at_s < plan.drive.duration_s:
            limit = f"within drive.duration_s, 0 <= at_s < {plan.drive.duration_s:g}"
            raise PlanError(f"{path}.at_s", f"expected a time {limit} (got {fault.at_s:g})")


def _without_none(value: Any) -> Any:  # noqa: ANN401 (any TOML value)
    """TOML has no null: a key without a value is left out."""
    if isinstance(value, dict):
        return {k: _without_none(v) for k, v in value.items() if v is not None}
    if isinstance(value, list | tuple):
        return [_without_none(v) for v in value]
    return value
