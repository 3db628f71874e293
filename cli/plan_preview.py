"""``firedrill plan``: what a plan comes to on this machine, without a run."""

from __future__ import annotations

import secrets
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import attrs
import click
import msgspec
import tomli_w
from rich.table import Table
from rich.text import Text

from cli.environment import SIMULATED, prepare
from cli.listing import print_table
from cli.reaping.guard import ReaperGuard
from cli.run import (
    naming_source,
    overrides,
    plan_flags,
    refuse_without_java,
    require_possible,
)
from cli.session import Session, runs_option
from harness.errors import FiredrillError, HarnessError, MissingCapability
from harness.exit_codes import EXIT_USAGE, Outcome
from harness.history.run_directory import RunDirectory
from harness.plan.plan import MAX_SEED, Plan, as_table, converted_options, load
from harness.protocols.faults import PlannedFault
from harness.run.disk_budget import require_room
from harness.scratch import scratch_directory
from harness.text import inert, inert_json
from results.store.store import RunStore

if TYPE_CHECKING:
    from cli.wiring import ResolvedPlan


@attrs.frozen(kw_only=True)
class Preview:
    """A resolved plan; the tables of its plug-ins by path, with every key that they have; and what
    of it this machine lacks.
    """

    ready: ResolvedPlan
    own: Mapping[str, dict[str, Any]]
    missing: tuple[FiredrillError, ...]


@click.command(name="plan")
@plan_flags
@runs_option
@click.option("--json", "as_json", is_flag=True, help="Print plan and findings as JSON.")
@click.option("--schema", is_flag=True, help="Print the JSON schema of plans, for editors.")
@click.option("--reference", is_flag=True, help="Print the page of all keys (docs/plan.md).")
@click.option("--own", is_flag=True, help="With these two: without plug-ins of other packages.")
@click.pass_obj
def plan_command(
    session: Session,
    /,
    plan: Path | None,
    store: RunStore,
    as_json: bool,
    schema: bool,
    reference: bool,
    own: bool,
    **flags: Any,  # noqa: ANN401
) -> int:
    """Say what PLAN comes to, and run nothing: every key, the schedule as its seed draws it, and
    what this machine lacks for it (exit code 254, or 255 where the environment fails).
    """
    if schema or reference:
        click.echo(_schema(own) if schema else _reference(own), nl=False)
        return 0
    given = overrides(flags)
    seed = secrets.randbelow(MAX_SEED)
    with naming_source(plan, given, partial(require_possible, plan, seed=seed)):
        chosen = load(plan, given, seed=seed)
        found = examined(chosen, store.root)
    if as_json:
        _print_json(found)
    else:
        _print(found)
    return _code(found.missing)


def examined(plan: Plan, runs: Path) -> Preview:
    """Resolve ``plan`` and try what this machine can do for it. Raises ``UsageError`` for a plan
    that can be carried out nowhere.
    """
    from cli.wiring import refuse_impossible, resolve

    missing: list[FiredrillError] = []
    with converted_options() as converted:
        refuse_impossible(plan)  # first, as in a run: of several mistakes both tell the same
        ready = resolve(plan)
        try:
            require_room(ready.plan, runs)
        except HarnessError as error:
            missing.append(error)
        try:
            refuse_without_java(ready.plan)
        except MissingCapability as error:
            missing.append(error)
        # Within: the environment has a say in the options of its provider.
        missing += _tried(ready)
    own = {path: msgspec.to_builtins(found) for path, found in converted.items()}
    return Preview(ready=ready, own=own, missing=tuple(missing))


def _tried(ready: ResolvedPlan) -> tuple[FiredrillError, ...]:
    """What the machine lacks, by trying: in a directory that is gone afterwards."""
    try:
        with scratch_directory("plan") as scratch:
            return _tried_in(ready, RunDirectory(scratch.path))
    except FiredrillError as error:
        return (error,)


def _tried_in(ready: ResolvedPlan, run: RunDirectory) -> tuple[FiredrillError, ...]:
    from cli.plan_plugins import build_system
    from cli.wiring import examine

    plan, found = ready.plan, list[FiredrillError]()
    environment = prepare(plan, run)
    system = build_system(plan, environment.system_extras)

    async def main() -> None:
        found.extend((await examine(plan, environment.provider, system, ready.faults)).missing)

    if plan.cluster.provider == SIMULATED:
        environment.run(main())
        return tuple(found)
    # What is tried is tried on something: a container that a dead command would leave.
    guard = ReaperGuard.start(run, plan.cluster.provider)
    try:
        environment.run(main())
        guard.release()
    finally:
        if not guard.released:
            guard.hand_over()
    return tuple(found)


def _code(missing: tuple[FiredrillError, ...]) -> int:
    if not missing:
        return 0
    failed = all(isinstance(error, HarnessError) for error in missing)
    return Outcome.HARNESS_ERROR.exit_code if failed else EXIT_USAGE


def _print_json(found: Preview) -> None:
    ready = found.ready
    said = {
        "plan": as_table(ready.plan),
        "plug_ins": found.own,
        "provider": {"name": ready.plan.cluster.provider, "why": ready.provider_reason},
        "missing": [str(error) for error in found.missing],
    }
    click.echo(inert_json(msgspec.json.format(msgspec.json.encode(said), indent=2)))


def _print(found: Preview) -> None:
    plan, schedule = found.ready.plan, found.ready.plan.nemesis.schedule
    table = as_table(plan)
    # With the schedule that was drawn, so that these keys are a plan that comes to the same.
    click.echo(_inert_lines(tomli_w.dumps(table)))
    _print_unsaid(table, found.own)
    faults = "1 fault" if len(schedule) == 1 else f"{len(schedule)} faults"
    click.echo(f"schedule: {faults} in {plan.drive.duration_s:g} s")
    if schedule:
        _print_schedule(schedule)
    click.echo(f"\nprovider {plan.cluster.provider}: {inert(found.ready.provider_reason)}")
    for error in found.missing:
        click.echo(f"missing: {inert(str(error))}")
    if not found.missing:
        click.echo("this machine can run it")


def _print_unsaid(table: Mapping[str, Any], own: Mapping[str, dict[str, Any]]) -> None:
    """Print the keys of plug-ins that the plan leaves out, as comments: a key that is written
    down may ask for more than its default.
    """
    for path, keys in sorted(own.items()):
        said = table
        for step in path.split("."):
            said = said.get(step, {})
        unsaid = _without_none({key: value for key, value in keys.items() if key not in said})
        unsaid = {key: value for key, value in unsaid.items() if value not in ({}, [], ())}
        if unsaid:
            nested: dict[str, Any] = unsaid
            for step in reversed(path.split(".")):
                nested = {step: nested}
            lines = _inert_lines(tomli_w.dumps(nested)).splitlines()
            lines[0] += ", where the plan leaves keys out:"
            click.echo("".join(f"# {line}\n" for line in lines if line))


def _without_none(value: Any) -> Any:  # noqa: ANN401 (what TOML holds)
    if isinstance(value, dict):
        return {key: _without_none(each) for key, each in value.items() if each is not None}
    return value


def _inert_lines(text: str) -> str:
    """``text`` with nothing active in any of its lines."""
    return "\n".join(inert(line) for line in text.splitlines())


def _print_schedule(schedule: tuple[PlannedFault, ...]) -> None:
    table = Table(box=None, pad_edge=False)
    for head in ("at", "for", "kind", "target", "beside"):
        right = head in ("at", "for")
        table.add_column(head, justify="right" if right else "left", overflow="fold")
    for fault in schedule:
        cells = (
            f"{fault.at_s:g} s",
            f"{fault.hold_s:g} s",
            fault.kind,
            fault.target,
            _beside(fault),
        )
        table.add_row(*(Text(inert(cell)) for cell in cells))
    print_table(table)


def _beside(fault: PlannedFault) -> str:
    """The moment that it waits for, and its kind's options."""
    nth = f" {fault.nth}" if fault.nth else ""
    on = f"on {fault.on.value}{nth}" if fault.on else ""
    by = f" by {fault.by}" if fault.by else ""
    after = f" after {fault.after_s:g} s" if fault.after_s else ""
    own = ", ".join(f"{key} = {value}" for key, value in (fault.options or {}).items())
    return "; ".join(filter(None, (f"{on}{by}{after}", own, fault.aimed)))


def _schema(own: bool) -> str:
    from harness.plan.editor_schema import schema
    from harness.plan.installed_plugins import installed

    made = msgspec.json.encode(schema(installed(own=own)))
    return inert_json(msgspec.json.format(made, indent=1)).decode() + "\n"


def _reference(own: bool) -> str:
    from harness.plan.editor_schema import schema
    from harness.plan.installed_plugins import installed
    from harness.plan.key_reference import page
    from harness.protocols.targets import described

    found = installed(own=own)
    return page(schema(found), found.faults, described())
