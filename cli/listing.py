"""``firedrill list``: what a plan may name on this machine, plug-ins included."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator

import click
import msgspec
from rich.console import Console
from rich.table import Table
from rich.text import Text

from harness import plugins
from harness.errors import FiredrillError
from harness.plan.installed_plugins import every
from harness.protocols.cluster import PlantsBugs
from harness.text import inert, inert_json

LOG_COLUMNS = 160  # where no terminal tells its own
_NODES = ("n1", "n2", "n3")  # a system is built to be asked for its bugs


class Row(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One entry: ``package`` brings it where it is no part of firedrill, ``system`` has it where it
    is of one.
    """

    name: str
    text: str
    system: str = ""
    package: str = ""


def _of_group(group: str) -> Callable[[], Iterator[Row]]:
    def rows() -> Iterator[Row]:
        packages = {name: by for found, name, by in plugins.foreign() if found == group}
        for plugin in every(group):
            package = packages.get(plugin.name, "")
            yield Row(name=plugin.name, text=_plain(plugin.text), package=package)

    return rows


def _targets() -> Iterator[Row]:
    from harness.protocols.targets import described

    for name, text in described().items():
        yield Row(name=name, text=_plain(text))


def _bugs() -> Iterator[Row]:
    for name in plugins.names("systems"):
        try:
            factory = plugins.load("systems", name)
            with plugins.naming("systems", name):
                system = factory({}, _NODES, 0)
        except FiredrillError:  # ``list systems`` says why
            continue
        if isinstance(system, PlantsBugs):
            for bug, text in sorted(system.planted_bugs.items()):
                yield Row(name=bug, text=text, system=name)


KINDS: dict[str, Callable[[], Iterator[Row]]] = {
    "workloads": _of_group("workloads"),
    "faults": _of_group("faults"),
    "targets": _targets,
    "bugs": _bugs,
    "checkers": _of_group("checkers"),
    "systems": _of_group("systems"),
    "providers": _of_group("providers"),
}


@click.command(name="list")
@click.argument("kind", type=click.Choice(list(KINDS)))
@click.option("--json", "as_json", is_flag=True, help="Print the list as JSON.")
def list_command(kind: str, as_json: bool) -> int:
    """List what a plan may name: KIND with a line for each, plug-ins included."""
    rows = tuple(KINDS[kind]())
    if as_json:
        click.echo(inert_json(msgspec.json.format(msgspec.json.encode(rows), indent=2)))
        return 0
    table = Table(box=None, pad_edge=False, show_header=False)
    table.add_column(no_wrap=True)
    table.add_column(overflow="fold")
    for row in rows:
        of = row.system or row.package
        table.add_row(
            Text(row.name, style="bold"), Text(inert(f"{row.text} [{of}]" if of else row.text))
        )
    print_table(table)
    return 0


def print_table(table: Table) -> None:
    """Print ``table`` as wide as the terminal, and wide where there is none."""
    console = Console(width=None if sys.stdout.isatty() else LOG_COLUMNS)
    with console.capture() as shown:  # its lines are filled up with blanks
        console.print(table)
    click.echo("\n".join(line.rstrip() for line in shown.get().splitlines()))


def _plain(text: str) -> str:
    """A line for a terminal: code needs no marks there."""
    return text.replace("`", "")
