"""The page over the runs of a store, written anew after each run."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from cli.run_summary import listed
from cli.session import say
from harness.errors import FiredrillError
from harness.history.regular_files import is_regular
from harness.history.run_directory import RunDirectory
from results.store.store import RunStore

if TYPE_CHECKING:
    from results.report.run_index import IndexRow


def page_file(_context: click.Context, _option: click.Parameter, value: Path | None) -> Path | None:
    """Pass on the file of a page that has JSON of its name beside it, as the callback of an option.
    Raises ``click.BadParameter`` for the JSON's own name.
    """
    if value is not None and value.suffix == ".json":
        raise click.BadParameter(f"expected a page, as {value.stem}.html: JSON goes beside it")
    return value


def refresh_index(store: RunStore) -> None:
    """Write the page. A disk that refuses costs the page alone."""
    from results.report.run_index import INDEX, RUNS_MAX, write_index

    every = store.runs()
    shown = every[-RUNS_MAX:]
    try:
        more = len(every) - len(shown)
        if write_index(store.root, [_row(run) for run in shown], more=more) is None:
            say(f"no page over the runs was written: {store.root / INDEX} is not one of ours")
    except FiredrillError as error:
        say(f"no page over the runs was written: {error}")


def _row(run: RunDirectory) -> IndexRow:
    from results.report.run_index import IndexRow

    row = listed(run, sized=False)
    told = row.entry
    return IndexRow(
        run=told.run,
        state=row.state,
        outcome=told.outcome or "",
        workload=told.workload,
        begun="" if told.begun is None else f"{told.begun:%Y-%m-%d %H:%M}",
        seed="" if told.seed is None else str(told.seed),
        length="" if told.duration_s is None else f"{told.duration_s:g} s",
        faults="" if told.planned_faults is None else str(told.planned_faults),
        report=f"{told.run}/{run.report.name}" if is_regular(run.report) else "",
    )
