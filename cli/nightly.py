"""``firedrill nightly``: a campaign, what changed since the night before, and its results in the
forms that a CI reads, with one exit code.
"""

from __future__ import annotations

import contextlib
import os
import shlex
from collections.abc import Mapping, Sequence
from datetime import UTC, date, datetime
from pathlib import Path

import click
import msgspec

from cli.campaign import conduct, past_by_axes
from cli.campaign_options import CampaignOptions, campaign_options
from cli.cells import code_digest
from cli.night_closing import NightClosing, table_of
from cli.session import Session, runs_option, say
from harness.campaigns.campaign_summary import totals
from harness.campaigns.cell_table import CAMPAIGNS
from harness.campaigns.ledger import RESULTS_FILE, past_results
from harness.campaigns.matrix import CampaignFile, Past, read
from harness.clock import substream
from harness.errors import UsageError
from harness.exit_codes import exit_code
from harness.plan.plan import MAX_SEED
from harness.text import inert
from results.nights.summary import NightFinding, NightSummary, directory_name, nights_before
from results.store.run_tags import require_tags
from results.store.store import RunStore

PAST_NIGHTS = 30  # that the order of cells goes by
# What a CI says of the code that it tests, the first that is set.
_OF_CI = {
    "commit": ("GITHUB_SHA", "CI_COMMIT_SHA"),
    "branch": ("GITHUB_HEAD_REF", "GITHUB_REF_NAME", "CI_COMMIT_REF_NAME"),
}


@click.command()
@click.argument("file", type=click.Path(path_type=Path))
@click.option(
    "--night",
    "day",
    type=click.DateTime(["%Y-%m-%d"]),
    metavar="DATE",
    help="Which night it is (today in UTC). One that was broken off goes on under its date.",
)
@campaign_options
@click.option(
    "--tag",
    "tags",
    multiple=True,
    metavar="TAG",
    help="Attach it to every run: commit=1f3a9c0, branch=main (known in a CI); repeatable.",
)
@click.option(
    "--notify",
    metavar="COMMAND",
    help="Give COMMAND the summary as JSON on its stdin; no shell reads it.",
)
@click.option(
    "--export",
    "tables",
    type=click.Path(file_okay=False, path_type=Path),
    metavar="DIR",
    help="Add the runs of the store to the tables there, before old ones go (docs/analysis.md).",
)
@click.option(
    "--output",
    type=click.Path(file_okay=False, path_type=Path),
    metavar="DIR",
    help="Copy the results of this night alone there, for a CI to attach.",
)
@runs_option
@click.pass_obj
def nightly(
    session: Session,
    file: Path,
    day: datetime | None,
    options: CampaignOptions,
    tags: tuple[str, ...],
    notify: str | None,
    tables: Path | None,
    output: Path | None,
    store: RunStore,
) -> int:
    """Run the campaign FILE as the night of a day, compare it with the night before, write JUnit
    XML, a summary and annotations, pack what failed, and let old runs go. The exit code is the
    worst of it all.

    A night is a campaign of its own, NAME-YYYYMMDD; broken off and started again on the same day,
    it goes on.
    """
    require_tags(tags)
    command = _command(notify)
    if output is not None and _among_campaigns(output, store):
        raise UsageError(
            f"--output: expected a directory of its own, not one of the campaigns (got {output})"
        )
    asked = read(file)
    night = day.date() if day else datetime.now(UTC).date()
    begun = datetime.now(UTC)
    before = nights_before(store.root / CAMPAIGNS, asked.name, night)
    done = conduct(
        _of_night(asked, night),
        file,
        store,
        directory_name(asked.name, night),
        options,
        past=_past(before),
    )
    said = [*tags, *ci_tags(), f"campaign={asked.name}", f"night={night}"]
    closing = NightClosing(
        store=store,
        asked=asked,
        file=file,
        night=night,
        before=before,
        done=done,
        tags=said,
        tables=tables,
    )
    summary = closing.close(begun, whole=options.shard is None)
    if output is not None:
        summary = closing.copy(output, summary)
    if command is not None:
        summary = closing.notify(command, summary)
    session.found(summary.outcome)
    for line in totals(done.results, done.took_s, "cell"):
        click.echo(line)
    _announce(summary, done.root, file)
    return summary.exit_code


def _of_night(asked: CampaignFile, night: date) -> CampaignFile:
    """Return the campaign with the seeds of ``night``."""
    if asked.night.seeds == "same":
        return asked
    seed = substream(asked.seed, "night", night.toordinal()).randrange(MAX_SEED)
    return msgspec.structs.replace(asked, seed=seed)


def _past(before: Sequence[tuple[date, Path]]) -> Mapping[str, Past]:
    """Return the results of the nights before by the axes of their cells, under any seeds."""
    code = code_digest()
    past: dict[str, Past] = {}
    for _, path in before[-PAST_NIGHTS:]:
        table = table_of(path)
        if table is None:
            continue
        axes = {row.key: row.place for row in table.cells}
        for name, known in past_by_axes(past_results(path / RESULTS_FILE), axes, code).items():
            past[name] = known.behind(past.get(name, Past()))
    return past


def ci_tags() -> list[str]:
    """Return what the CI that runs this says of the code that it tests."""
    found = []
    for name, variables in _OF_CI.items():
        value = next((os.environ[each] for each in variables if os.environ.get(each)), "")
        if value:
            # What is no tag is left out: it is a convenience.
            with contextlib.suppress(UsageError):
                require_tags([f"{name}={value}"])
                found.append(f"{name}={value}")
    return found


def _among_campaigns(output: Path, store: RunStore) -> bool:
    """Whether a copy there would be copied itself the next time."""
    return output.resolve().is_relative_to((store.root / CAMPAIGNS).resolve())


def _command(notify: str | None) -> list[str] | None:
    if notify is None:
        return None
    try:
        command = shlex.split(notify)
    except ValueError as error:
        raise UsageError(f"--notify: expected a command (got {notify!r}: {error})") from error
    if not command:
        raise UsageError("--notify: expected a command (got an empty one)")
    return command


def _announce(summary: NightSummary, root: Path, file: Path) -> None:
    """Tell the CI, and say in lines what a person wants to know first."""
    from results.nights.annotations import workflow_commands
    from results.nights.markdown import markdown

    if os.environ.get("GITHUB_ACTIONS") == "true":
        for line in workflow_commands(summary, str(file)):
            click.echo(line)
    if step := os.environ.get("GITHUB_STEP_SUMMARY"):
        try:
            with Path(step).open("a", encoding="utf-8", errors="backslashreplace") as stream:
                stream.write(markdown(summary))
        except OSError as error:
            say(f"GITHUB_STEP_SUMMARY: {error}")
    for finding in summary.findings:
        runs = f"{finding.run_count} runs, as {finding.runs[0]}"
        click.echo(f"{_named(finding)}: {summary.status(finding)}; {runs}")
    for finding, status in summary.missed():
        click.echo(f"{_named(finding)}: {status}")
    for text in (summary.note, *summary.changes, *summary.trouble):
        if text:
            click.echo(inert(text))
    if summary.exit_code == exit_code(summary.outcome, interrupted=False):
        click.echo(f"{summary.outcome.value.upper()}: {summary.meaning}: {root}")
    else:
        click.echo("interrupted: the same command goes on where it was")


def _named(finding: NightFinding) -> str:
    return f"finding {finding.fingerprint} {finding.anomaly} ({finding.cause})"
