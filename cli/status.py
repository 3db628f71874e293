"""``firedrill status``: how far a run is, from another terminal."""

from __future__ import annotations

import click

from cli.live_status import LiveStatus, read_status
from cli.run_state import ON
from cli.run_summary import listed
from cli.session import RunName, Session, runs_option
from harness.text import inert, inert_json
from results.store.store import RunStore


@click.command()
@click.argument("run", type=RunName(), default="latest")
@click.option("--json", "as_json", is_flag=True, help="Print the figures as JSON.")
@runs_option
@click.pass_obj
def status(session: Session, run: str, store: RunStore, as_json: bool) -> int:
    """Say how far RUN is (a path, an identifier or its beginning, or "latest"): its phase, what its
    clients got, the faults in force; of a run that is over its outcome.
    """
    import msgspec

    session.run = directory = store.resolve(run)
    row = listed(directory, sized=False)
    live = read_status(directory) if row.held == ON else None
    if as_json:
        entry = row.entry
        told = {"run": entry.run, "state": row.state, "outcome": entry.outcome, "live": live}
        click.echo(inert_json(msgspec.json.format(msgspec.json.encode(told), indent=2)))
        return 0
    click.echo(f"{inert(row.entry.run)}: {inert(row.state)}")
    if live is not None:
        for line in lines(live):
            click.echo(line)
    return 0


def lines(live: LiveStatus) -> list[str]:
    """Return the lines about a run that is going on."""
    unit = inert(live.unit)
    left = "" if live.left_s is None else f", {live.left_s:.0f} {unit} left"
    counts = ", ".join(f"{count:,} {inert(kind)}" for kind, count in live.counts.items())
    errors = ", ".join(f"{inert(code)} {count:,}" for code, count in live.errors.items())
    return [
        f"phase   {inert(live.phase)}{left} ({live.elapsed_s:.0f} s since it began)",
        f"rate    {live.rate_per_s:,.0f} ok/{unit}",
        f"counts  {counts}",
        f"errors  {errors or 'none'}",
        f"faults  {inert(', '.join(live.faults)) or 'none'}",
    ]
