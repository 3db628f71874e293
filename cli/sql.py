"""``firedrill sql``: a statement to a node of a run, while the run goes on or after it was kept."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Iterator

import click

from cli.session import RunName, runs_option, say
from harness.errors import HarnessError, UsageError
from harness.history.run_directory import RunDirectory
from harness.plan import plan as plans
from harness.protocols.cluster import Cluster, System
from harness.protocols.statement_language import StatementAnswer, TakesStatements
from harness.text import inert
from results.store.store import RunStore

LIMIT_S = 10.0
PROMPT = "sql> "
CELL_CHARS = 200


@click.command()
@click.argument("run", type=RunName())
@click.argument("node")
@click.argument("statement", required=False)
@runs_option
def sql(run: str, node: str, statement: str | None, store: RunStore) -> int:
    """Let NODE of RUN carry out STATEMENT, or those of standard input, one a line; print the rows
    of a query. While the run goes on, or after it was kept up.
    """
    from harness.run.addresses import read_addresses  # heavy

    directory = store.resolve(run)
    system, name = _system(directory)
    cluster = read_addresses(directory)
    if node not in cluster.nodes:
        raise UsageError(f"run {name}: no node {node!r} (it has {', '.join(cluster.nodes)})")
    if not isinstance(system, TakesStatements):
        raise UsageError(f"run {name}: system {system.name!r} takes no statements")
    if statement is not None:
        _carry_out(system, cluster, node, statement)
        return 0
    for line in _lines():
        try:
            _carry_out(system, cluster, node, line)
        except UsageError as error:
            # At a terminal a refused statement ends nothing; in a script the next ones may rely on
            # it.
            if not sys.stdin.isatty():
                raise
            say(str(error))
    return 0


def _system(run: RunDirectory) -> tuple[System, str]:
    from cli.environment import SIMULATED
    from cli.plan_plugins import build_system

    plan = plans.load(run.plan)
    if plan.cluster.provider == SIMULATED:
        raise UsageError(f"run {run.root.name}: its nodes were simulated, and are gone")
    return build_system(plan), run.root.name


def _lines() -> Iterator[str]:
    """Yield the statements of standard input."""
    while True:
        if sys.stdin.isatty():
            sys.stderr.write(PROMPT)
            sys.stderr.flush()
        line = sys.stdin.readline()
        if not line:
            return
        if line.strip():
            yield line


def _carry_out(system: TakesStatements, cluster: Cluster, node: str, statement: str) -> None:
    answer = asyncio.run(system.statement(cluster, node, statement, LIMIT_S))
    for warning in answer.warnings:
        say(inert(f"warning: {warning}", CELL_CHARS * 2))
    if answer.problem:
        retry = f" (try again: {answer.retry})" if answer.retry else ""
        if answer.doubtful:
            raise HarnessError(f"{node}: it may have been carried out: {answer.problem}{retry}")
        raise UsageError(f"{node}: {answer.problem}{retry}")
    for line in table(answer):
        click.echo(line)


def table(answer: StatementAnswer) -> Iterator[str]:
    """Yield the lines of a query's answer, its columns aligned; none for other statements."""
    if not answer.columns:
        return
    shown = [[_cell(cell) for cell in row] for row in (answer.columns, *answer.rows)]
    widths = [max(map(len, column)) for column in zip(*shown, strict=True)]
    for row in shown:
        cells = (cell.ljust(width) for cell, width in zip(row, widths, strict=True))
        yield "  ".join(cells).rstrip()


def _cell(cell: int | str | None) -> str:
    return "NULL" if cell is None else inert(str(cell), CELL_CHARS)
