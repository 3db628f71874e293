"""``firedrill compare``: what is new, gone or worse in some runs, against others."""

from __future__ import annotations

from pathlib import Path

import click

from cli import quantities
from cli.judging.judge import COLORS, PATH_CHARS
from cli.run_pages import page_file
from cli.session import runs_option, say
from harness.campaigns.cell_table import CAMPAIGNS
from harness.errors import HarnessError
from harness.exit_codes import Outcome, worst
from harness.text import inert
from results.store.index import Condition
from results.store.run_entry import CELL_PARTS
from results.store.store import RunStore

LINE_CHARS = 2_000  # of a terminal; a reason names some cells


@click.command()
@click.argument("runs")
@click.argument("base")
@click.option(
    "--where",
    "conditions",
    multiple=True,
    metavar="NAME=VALUE",
    help="Of both sides those alone, as `runs --where` has it; repeatable.",
)
@click.option(
    "--effect",
    "effects",
    multiple=True,
    metavar="FIGURE=SHARE",
    help="The smallest change of a figure that matters: p50_ms=0.1, ok_per_s=0.02; repeatable.",
)
@click.option(
    "--level",
    type=quantities.Range(0, 0.5, min_open=True),
    default=0.02,
    show_default=True,
    help="The chance of calling anything in two equal sides.",
)
@click.option(
    "--across",
    multiple=True,
    type=click.Choice(CELL_PARTS),
    help="Compare cells that differ in this: SC with HA is --across mode; repeatable.",
)
@click.option(
    "--page",
    type=click.Path(dir_okay=False, path_type=Path),
    callback=page_file,
    metavar="FILE",
    help="Where the page goes, with the JSON beside it (comparisons/ in the runs' directory).",
)
@click.option("--all", "every", is_flag=True, help="Print every row, as the page has it.")
@click.option("--json", "as_json", is_flag=True, help="Print the comparison as JSON.")
@runs_option
def compare(
    runs: str,
    base: str,
    conditions: tuple[str, ...],
    effects: tuple[str, ...],
    level: float,
    across: tuple[str, ...],
    page: Path | None,
    every: bool,
    as_json: bool,
    store: RunStore,
) -> int:
    """Compare RUNS with BASE: findings by what they are, figures by cell and seed, faults by
    whether they took effect.

    Each is a run, a campaign's name or directory, a directory of runs, days
    (2026-11-01..2026-11-07), or conditions (release=3.1.0,mode=HA or tag=nightly).

    Exit codes: 1 for a finding that is new, 2 where it can't be told (a fault takes effect no
    longer, more runs show nothing, too few runs), 3 for a figure that is worse, else 0.
    """
    from results.compare.comparison import compare as compared
    from results.compare.comparison_page import encoded, page_path, write_page
    from results.compare.comparison_tables import lines, meaning
    from results.compare.effect_thresholds import Rules, with_effects
    from results.compare.run_selection import side_of, two_nights
    from results.nights.summary import known_before

    figures, given = with_effects(effects), tuple(map(Condition.parse, conditions))
    new, old = side_of(runs, store, given), side_of(base, store, given)
    nights = two_nights(new.entries, old.entries)
    rules = Rules(
        figures=figures,
        level=level,
        across=frozenset(across),
        findings_suffice=nights,
        known=known_before(new.store.root / CAMPAIGNS, new.entries) if nights else frozenset(),
    )
    found = compared(new.entries, old.entries, rules=rules)
    path = page or page_path(new, old, store)
    outcome = found.outcome
    if as_json:
        click.echo(encoded(found), nl=False)
    else:
        for line in lines(found, every=every):
            click.echo(inert(line, LINE_CHARS))
    try:
        write_page(found, new, old, path)
    except HarnessError as error:
        say(str(error))
        # What was found stays found, also where its page could not be written.
        outcome = worst([outcome, Outcome.HARNESS_ERROR])
    if not as_json:
        word = click.style(found.outcome.value.upper(), fg=COLORS[found.outcome], bold=True)
        click.echo(f"{word}: {meaning(found)}: {inert(str(path), PATH_CHARS)}")
    return outcome.exit_code
