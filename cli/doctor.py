"""``firedrill doctor``: the capabilities of this machine, and the commands that add
missing ones.
"""

from __future__ import annotations

import platform
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path

import click
import msgspec
from rich.console import Console
from rich.table import Table
from rich.text import Text

from cli.remote_runs import RemoteRuns
from cli.session import anywhere_option
from harness import plugins
from harness.errors import FiredrillError
from harness.exit_codes import Outcome
from harness.protocols.cluster import Requirement
from harness.protocols.faults import Fault
from harness.text import inert, inert_json
from results.store.store import RunStore

DISK_MIN_BYTES = 2 << 30  # an image, a long history and its tables side by side
GIB = 1 << 30
LOG_COLUMNS = 160  # where no terminal tells its own


class Choice(msgspec.Struct, frozen=True, kw_only=True):
    """The result of ``provider = "auto"`` on this machine; ``name`` is ``None`` where nothing can
    run.
    """

    name: str | None
    why: str


@click.command()
@click.option("--json", "as_json", is_flag=True, help="Print the findings as JSON.")
@anywhere_option
def doctor(as_json: bool, store: RunStore | RemoteRuns) -> int:
    """Say what this machine can do, and the command that adds what is missing.

    Fails only where no provider could run anything.
    """
    rows, choice = examine(store)
    if as_json:
        said = {"findings": rows, "provider": choice}
        click.echo(inert_json(msgspec.json.format(msgspec.json.encode(said), indent=2)))
    else:
        _show(rows, choice)
    return 0 if choice.name else Outcome.HARNESS_ERROR.exit_code


def examine(store: RunStore | RemoteRuns) -> tuple[list[Requirement], Choice]:
    """Return every finding, and the provider that follows from them."""
    java = _java()
    rows = [_python(), _processes(), java, *_docker(), *_plugins()]
    if isinstance(store, RemoteRuns):
        rows.append(_reached(store, java))
        store = RunStore()  # where runs are driven before they are moved there
    return [*rows, _disk(store.root)], _choice()


def _python() -> Requirement:
    return Requirement(
        name="Python", ok=True, found=f"{platform.python_version()} ({sys.executable})"
    )


def _processes() -> Requirement:
    """Check the needs of the process provider: the kernel's ``/proc``, which tells
    processes apart.
    """
    ok = Path("/proc/self/stat").exists()
    return Requirement(
        name="processes",
        ok=ok,
        found="/proc tells processes apart" if ok else "no /proc here",
        remedy="" if ok else "run on Linux",
    )


def _java() -> Requirement:
    from checkers.engine.spark.java import JAVA_MIN, find_java

    choice = find_java()
    remedy = f"apt-get install openjdk-{JAVA_MIN}-jre-headless, or check with --executor local"
    ok = choice.home is not None
    return Requirement(
        name="Java for Spark", ok=ok, found=choice.reason, remedy="" if ok else remedy
    )


def _docker() -> tuple[Requirement, ...]:
    from clusters.providers.docker.doctor import diagnose

    return diagnose()


def _plugins() -> Iterator[Requirement]:
    """Yield the findings of plugins about their needs, from a function without arguments behind
    each entry point.
    """
    foreign = {(group, name): package for group, name, package in plugins.foreign()}
    for name in plugins.names("doctors"):
        try:
            yield from _diagnosed(name)
        except FiredrillError as error:
            yield _broken("doctors", name, foreign.pop(("doctors", name), "firedrill"), error)
    for (group, name), package in foreign.items():
        yield _plugin(group, name, package)


def _diagnosed(name: str) -> tuple[Requirement, ...]:
    """What the doctor ``name`` finds. Raises ``BrokenPlugin`` for one that fails, or that finds
    something else than requirements.
    """
    diagnose = plugins.load("doctors", name)
    with plugins.naming("doctors", name):
        found = tuple(diagnose())
        for row in found:
            if not isinstance(row, Requirement):
                raise TypeError(f"expected a Requirement (got {row!r:.200})")
    return found


def _plugin(group: str, name: str, package: str) -> Requirement:
    """Check that a third-party plugin can be loaded, and, where it can be built without arguments,
    has the members of its protocol.
    """
    from checkers.engine.analyze import checkers_named

    try:
        part = plugins.load(group, name)
        if group == "checkers":
            checkers_named((name,))
        elif group == "faults":
            plugins.made(group, name, Fault, part)
    except FiredrillError as error:
        return _broken(group, name, package, error)
    return Requirement(name=_what(group, name), ok=True, found=package)


def _broken(group: str, name: str, package: str, error: FiredrillError) -> Requirement:
    remedy = f"mend or uninstall {package}"
    return Requirement(name=_what(group, name), ok=False, found=str(error), remedy=remedy)


def _what(group: str, name: str) -> str:
    return f"{group.removesuffix('s')} {name}"


def _disk(runs: Path) -> Requirement:
    # The directory may not be there yet: what counts is the disk on which it would be made.
    place = next(p for p in (runs, *runs.resolve().parents) if p.is_dir())
    free = shutil.disk_usage(place).free
    ok = free >= DISK_MIN_BYTES
    remedy = "" if ok else "give another directory with --runs-dir"
    return Requirement(
        name="disk", ok=ok, found=f"{free / GIB:.1f} GiB free for {runs}", remedy=remedy
    )


def _reached(runs: RemoteRuns, java: Requirement) -> Requirement:
    """Ask the store that runs are moved to for a list: a name node that is silent takes minutes."""
    if not java.ok:
        found = f"{runs.address} is asked by way of Java, which is missing"
        return Requirement(name="runs", ok=False, found=found, remedy=java.remedy.split(",")[0])
    try:
        runs.require_reached()
    except FiredrillError as error:
        remedy = "give another address or a directory with --runs-dir"
        return Requirement(name="runs", ok=False, found=str(error), remedy=remedy)
    return Requirement(name="runs", ok=True, found=f"{runs.address} answers")


def _choice() -> Choice:
    from cli.plan_plugins import choose_provider

    name, why = choose_provider()
    possible = name != "process" or _processes().ok
    return Choice(name=name if possible else None, why=why)


def _show(rows: list[Requirement], choice: Choice) -> None:
    table = Table(box=None, pad_edge=False, show_header=False)
    for _ in range(4):
        table.add_column(overflow="fold")  # a remedy is there to be copied: never cut short
    for row in rows:
        mark = Text("ok", style="blue") if row.ok else Text("missing", style="bold yellow")
        table.add_row(Text(row.name), mark, Text(inert(row.found)), Text(inert(row.remedy)))
    console = Console(width=None if sys.stdout.isatty() else LOG_COLUMNS)
    with console.capture() as shown:  # its lines are filled up with blanks
        console.print(table)
    click.echo("\n".join(line.rstrip() for line in shown.get().splitlines()))
    name = choice.name or "nothing"
    console.print(Text(f'\nprovider "auto" would use {name}: {inert(choice.why)}'), soft_wrap=True)
