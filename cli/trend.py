"""``firedrill trend``: figures and findings of all runs over months."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING

import click

from cli.judging.judge import PATH_CHARS
from cli.run_pages import page_file
from cli.session import runs_option, say
from harness.errors import UsageError
from harness.text import inert
from results.store.index import Condition, Query, opened
from results.store.store import RunStore

if TYPE_CHECKING:
    from results.trend.trends import Trend

LINE_CHARS = 2_000
COMMIT = re.compile(r"[0-9a-f]{7,40}")  # a tag may hold anything, and git takes options
COMMITS_MAX = 50  # of one change
GIT_LIMIT_S = 30.0


@click.command()
@click.option(
    "--where",
    "conditions",
    multiple=True,
    metavar="NAME=VALUE",
    help="Of those runs alone, as `runs --where` has it; repeatable.",
)
@click.option(
    "--effect",
    "effects",
    multiple=True,
    metavar="FIGURE=SHARE",
    help="The smallest change of a figure that matters: p50_ms=0.1; repeatable.",
)
@click.option(
    "--repo",
    type=click.Path(exists=True, file_okay=False, path_type=Path),
    metavar="DIR",
    help="A git repository of the store: list the commits between the last good run and the first "
    "bad one, by their tags commit=HASH.",
)
@click.option(
    "--page",
    type=click.Path(dir_okay=False, path_type=Path),
    callback=page_file,
    metavar="FILE",
    help="Where the page goes, with the JSON beside it (trend.html in the runs' directory).",
)
@click.option("--json", "as_json", is_flag=True, help="Print the trend as JSON.")
@runs_option
def trend(
    conditions: tuple[str, ...],
    effects: tuple[str, ...],
    repo: Path | None,
    page: Path | None,
    as_json: bool,
    store: RunStore,
) -> int:
    """Show how figures and findings went over all nights: where a figure changed, with the first
    bad run, and since when each finding is known.
    """
    from results.compare.effect_thresholds import with_effects
    from results.trend.trend_tables import PAGE, encoded, lines, write_trend
    from results.trend.trends import trend as trend_of

    figures = with_effects(effects)
    given = tuple(map(Condition.parse, conditions))
    with opened(store) as index:
        entries = index.entries(Query(conditions=given))
    if not entries:
        raise UsageError(f"no such runs in {store.root}: there is no trend of nothing")
    found = trend_of(entries, figures)
    between = {} if repo is None else commits_between(found, repo)
    if as_json:
        click.echo(encoded(found), nl=False)
    else:
        for line in lines(found, between):
            click.echo(inert(line, LINE_CHARS))
    path = write_trend(found, store, page or store.root / PAGE, between)
    if not as_json:
        click.echo(f"page: {inert(str(path), PATH_CHARS)}")
    return 0


def commits_between(found: Trend, repo: Path) -> dict[str, list[str]]:
    """Return the commits of ``repo`` behind each change for the worse, newest first, by the first
    bad run; none where the tags name no commits of it.
    """
    listed: dict[str, list[str]] = {}
    for _, turn in found.turns():
        good, bad = turn.commits
        if not turn.worse or not (COMMIT.fullmatch(good) and COMMIT.fullmatch(bad)):
            continue
        command = ["git", "-C", str(repo), "log", "--oneline", "--no-color", "--no-decorate"]
        try:
            done = subprocess.run(
                [*command, f"--max-count={COMMITS_MAX}", f"{good}..{bad}", "--"],
                capture_output=True,
                check=False,
                text=True,
                errors="backslashreplace",
                timeout=GIT_LIMIT_S,
            )
        except (OSError, subprocess.TimeoutExpired) as error:
            say(f"{repo}: its commits can't be read: {error}")
            return listed
        if done.returncode:
            say(f"{repo}: no commits {good}..{bad}: {inert(done.stderr.strip(), LINE_CHARS)}")
            continue
        listed[turn.first_bad] = done.stdout.splitlines()
    return listed
