"""The course of a simulated campaign, which its commands share: results are announced as they come,
in the order of their cells, and end as one outcome and exit code.
"""

from __future__ import annotations

import math
import shlex
import time
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import attrs
import click

from cli.session import say
from harness.campaigns.cell import Cell, CellResult
from harness.campaigns.ledger import Ledger
from harness.campaigns.pool import Choose, Pool
from harness.exit_codes import Outcome, exit_code
from harness.text import inert

NOTE_EVERY_S = 15.0
LINE_CHARS = 400  # of one result on a terminal; its run has the rest
GOES_ON = "the same command goes on where it was"


@attrs.frozen(kw_only=True)
class Announcer:
    """``title`` names a result in its line, ``progress`` is the note on so many results. ``take``
    gets each result before it is announced.
    """

    title: Callable[[CellResult], str]
    progress: Callable[[int], str]
    take: Callable[[CellResult], None] = lambda result: None

    def run(
        self, pool: Pool, choose: Choose, ledger: Ledger, *, end_s: float = math.inf
    ) -> tuple[list[CellResult], bool]:
        """Run the cells that ``choose`` returns, none of them begun after ``end_s``, and return
        their results; false where the user interrupted.
        """
        done: list[CellResult] = []
        chosen: dict[str, None] = {}

        def choosing() -> Cell | None:
            cell = choose()
            if cell is not None:
                chosen[cell.key] = None
            return cell

        noted_s = time.monotonic()
        try:
            # Closed on each way out: the workers end with the generator.
            with closing(pool.results(choosing, ledger, begin_until_s=end_s)) as work:
                for result in work:
                    done.append(result)
                    self._came(result)
                    if time.monotonic() - noted_s >= NOTE_EVERY_S:
                        noted_s = time.monotonic()
                        say(self.progress(len(done)))
        except KeyboardInterrupt:
            # Those that ended behind one that went on: a violation among them is proven.
            reported = {result.key for result in done}
            for key in chosen:
                if key in ledger.known and key not in reported:
                    done.append(ledger.known[key])
                    self._came(ledger.known[key])
            return done, False
        return done, True

    def _came(self, result: CellResult) -> None:
        self.take(result)
        announce(self.title(result), result)


def announce(title: str, result: CellResult) -> None:
    """Print one line for a result that is not valid, and one with the command that replays it."""
    if result.outcome is Outcome.VALID:
        return
    found = ", ".join(f"{name} ({count})" for name, count in sorted(result.anomalies.items()))
    why = found or "; ".join(result.reasons)
    click.echo(inert(f"{title}: {result.outcome.value.upper()}: {why}", LINE_CHARS))
    if result.run:
        click.echo(f"  firedrill replay {shlex.quote(result.run)}")


def conclude(outcome: Outcome, root: Path, *, interrupted: bool, again: str = GOES_ON) -> int:
    """Print the last line of a campaign below ``root``, and return its exit code; ``again`` says
    what the same command does after an interruption.
    """
    if interrupted:
        click.echo(f"interrupted: {again}")
    else:
        click.echo(f"{outcome.value.upper()}: {outcome.meaning}: {root}")
    return exit_code(outcome, interrupted=interrupted)
