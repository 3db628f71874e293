"""The table of a campaign: a row a cell, from all machines that ran some."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

import msgspec

from harness.campaigns.cell import CellResult
from harness.campaigns.matrix import Place, axes_text
from harness.campaigns.rates import between
from harness.errors import MalformedHistory, UsageError
from harness.exit_codes import FAILED, Outcome, worst
from harness.history.regular_files import read_small

CAMPAIGNS = "campaigns"  # below a store of runs: a directory each
TABLE = "campaign.json"
MAX_TABLE_BYTES = 256 << 20  # as many cells as a matrix may have, each with all its reasons


class CellRow(msgspec.Struct, frozen=True, kw_only=True):
    """A cell at its place. ``failed`` of ``times`` runs of it failed; ``label`` says what that
    means: ``reproducible``, ``flaky``, or nothing for a cell that did not fail. ``quarantine`` is
    why its findings do not count, ``shrunk`` the file of its smallest plan. ``outcome`` is unset
    for a cell that was not run.
    """

    axes: dict[str, str | int | float | bool]
    seed: int
    key: str
    outcome: Outcome | None = None
    anomalies: dict[str, int] = {}
    reasons: tuple[str, ...] = ()
    failed: int = 0
    times: int = 0
    label: str = ""
    ok_share: float | None = None
    operations: int = 0
    wall_s: float = 0.0
    run: str = ""
    quarantine: str = ""
    shrunk: str = ""

    @property
    def counts(self) -> bool:
        """Whether its outcome is one of the campaign."""
        return self.outcome is not None and not self.quarantine

    @property
    def place(self) -> str:
        """The values of the axes in words, without the seed."""
        return axes_text(self.axes.items())

    @property
    def found(self) -> str:
        """What was found, and how often; of a cell without findings why nothing could be said."""
        found = ", ".join(f"{name} ({count})" for name, count in sorted(self.anomalies.items()))
        return found or "; ".join(self.reasons)


class CampaignTable(msgspec.Struct, frozen=True, kw_only=True):
    """``campaign.json``: all cells, in the order of the matrix."""

    name: str
    outcome: Outcome
    cells: tuple[CellRow, ...]


def read_table(path: Path) -> CampaignTable:
    """Read the table of a campaign. Raises ``UsageError``."""
    try:
        return msgspec.json.decode(read_small(path, MAX_TABLE_BYTES), type=CampaignTable)
    except (
        OSError,
        MalformedHistory,
        msgspec.MsgspecError,
        UnicodeDecodeError,
        RecursionError,
    ) as error:
        why = error.strerror if isinstance(error, OSError) else error
        raise UsageError(f"{path}: expected the table of a campaign: {why}") from error


def row_of(
    place: Place, key: str, runs: Sequence[CellResult], *, quarantine: str = "", shrunk: str = ""
) -> CellRow:
    """Return the row of the cell at ``place``: the first of ``runs`` is its result, the others
    repeat it. A violation that only one of those shows is the result: the first was broken by the
    environment, and perhaps run again.
    """
    axes = dict(place.values)
    if not runs:
        return CellRow(axes=axes, seed=place.seed, key=key, quarantine=quarantine)
    first = next((run for run in runs if run.outcome is Outcome.VIOLATION), runs[0])
    # A repetition that the environment broke says nothing about the cell.
    judged = [run for run in runs if run.judged] or list(runs[:1])
    failed = sum(run.outcome in FAILED for run in judged)
    return CellRow(
        axes=axes,
        seed=place.seed,
        key=key,
        outcome=first.outcome,
        anomalies=first.anomalies,
        reasons=first.reasons,
        failed=failed,
        times=len(judged),
        label=_label(failed, judged),
        ok_share=round(first.stats.ok_share, 4) if first.stats.operations else None,
        operations=first.stats.operations,
        wall_s=round(sum(run.wall_s for run in runs), 3),
        run=first.run,
        quarantine=quarantine,
        shrunk=shrunk,
    )


def _label(failed: int, runs: Sequence[CellResult]) -> str:
    if failed == 0:
        return ""
    times = len(runs)
    if times == 1:
        return "not repeated"
    if failed == times:
        digests = {run.digest for run in runs}
        if len(digests) == 1 and "" not in digests:
            return f"reproducible {failed} of {times}, byte for byte"
        return f"reproducible {failed} of {times} (fails {between(failed, times)} of the time)"
    return f"flaky {failed} of {times} (fails {between(failed, times)} of the time)"


def outcome_of(rows: Iterable[CellRow], max_unknown: float) -> Outcome:
    """Return the outcome of the campaign: the worst of the cells that count; cells that show
    nothing are forgiven up to a share of ``max_unknown``.
    """
    counted = [row.outcome for row in rows if row.counts and row.outcome is not None]
    unknown = counted.count(Outcome.UNKNOWN)
    if unknown <= max_unknown * len(counted):
        counted = [outcome for outcome in counted if outcome is not Outcome.UNKNOWN]
    return worst(counted)


def sums(rows: Iterable[CellRow]) -> Mapping[str, Mapping[Outcome, int]]:
    """Return how many cells came to what, by their axes; places without a result are left out."""
    found: dict[str, dict[Outcome, int]] = {}
    for row in rows:
        counts = found.setdefault(row.place, {})
        if row.outcome is not None:
            counts[row.outcome] = counts.get(row.outcome, 0) + 1
    return found
