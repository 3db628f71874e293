"""The markers that a campaign may be asked to reach, as a list for ``firedrill sim --must-reach``:
``python benchmarks/must_reach.py runs/campaign.jsonl --seeds 24 > .ci/must-reach``.

Of the campaign's seeds the results of the present code count. A marker is listed where that many
other seeds would miss it with less than the chance given, so that chance alone fails no campaign.
"""

from __future__ import annotations

from pathlib import Path

import click

from cli.cells import code_digest
from harness.campaigns.ledger import Ledger
from harness.campaigns.marker_counts import always_reached

CHANCE = 1e-6


@click.command()
@click.argument("results", type=click.Path(exists=True, path_type=Path))
@click.option("--seeds", default=24, show_default=True, help="Of a campaign that is asked.")
@click.option("--chance", default=CHANCE, show_default=True, help="To miss a marker by chance.")
def main(results: Path, seeds: int, chance: float) -> None:
    """Print the list that RESULTS, a campaign's ``campaign.jsonl``, allow."""
    known = Ledger.read(results, code_digest()).known.values()
    runs = [result.stats.markers for result in known if result.judged]
    click.echo(f"# Reached by so many of {len(runs)} seeds that {seeds} others miss one with a")
    click.echo(f"# chance below {chance:g}: made by benchmarks/must_reach.py, and never by hand.")
    click.echo(f"# seeds: {seeds}")
    for marker in always_reached(runs, seeds, chance) if runs else ():
        click.echo(marker)


if __name__ == "__main__":
    main()
