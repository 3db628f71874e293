"""The page of a campaign: ``campaign.html`` beside its table."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import attrs

from harness.campaigns.cell_table import CellRow, sums
from harness.exit_codes import Outcome
from harness.history.durable_files import write_atomically
from results.report.html import MARKS, rendered

PAGE = "campaign.html"


@attrs.frozen(kw_only=True)
class PageFinding:
    """A finding as the page shows it: ``status`` says whether it is new or since when it is known,
    ``cause`` is the fault and the role of its target.
    """

    fingerprint: str
    anomaly: str
    cause: str
    status: str
    count: int
    runs: int
    example: str


def write_campaign(
    root: Path,
    name: str,
    outcome: Outcome,
    rows: Sequence[CellRow],
    notes: Sequence[str] = (),
    findings: Sequence[PageFinding] = (),
    reports: Mapping[str, str] | None = None,
) -> Path:
    """Write the page about the cells ``rows`` of the campaign ``name`` into ``root``, and return
    its path. Links lead to the reports and the smallest plans in the run store that ``root`` is in,
    or, for a page that is taken elsewhere, to ``reports`` alone, which lie beside it: their paths
    by the names of their runs. ``notes`` are said at the top; ``findings`` are shown before the
    cells. Raises ``HarnessError``.
    """
    matrix = [
        (axes, [(f"{MARKS[each]} {each.value}", each, count) for each, count in counts.items()])
        for axes, counts in sums(rows).items()
    ]
    ordered = sorted(rows, key=lambda row: _WORST.index(row.outcome))
    page = rendered(
        "campaign.html",
        name=name,
        outcome=outcome,
        mark=MARKS[outcome],
        notes=notes,
        matrix=matrix,
        findings=findings,
        cells=[_cell(row, *_links(row, root, reports)) for row in ordered],
        missing=sum(row.outcome is None for row in rows),
    )
    path = root / PAGE
    write_atomically(path, page.encode("utf-8", "backslashreplace"))
    return path


_WORST: tuple[Outcome | None, ...] = (*Outcome, None)


def _cell(row: CellRow, report: str, shrunk: str) -> dict[str, str]:
    return {
        "outcome": row.outcome.value if row.outcome else "not run",
        "mark": MARKS[row.outcome] if row.outcome else "",
        "axes": row.place,
        "seed": str(row.seed),
        "found": row.found,
        "label": row.label,
        "quarantine": row.quarantine,
        "ok": "" if row.ok_share is None else f"{row.ok_share:.0%}",
        "took": f"{row.wall_s:.1f} s" if row.outcome else "",
        "run": Path(row.run).name,
        "report": report,
        "shrunk": shrunk,
    }


def _links(row: CellRow, root: Path, reports: Mapping[str, str] | None) -> tuple[str, str]:
    """Return where the report and the smallest plan of a cell are, from the page."""
    if not row.run:
        return "", ""
    if reports is not None:
        return reports.get(Path(row.run).name, ""), ""
    report = Path(row.run) / "report.html"
    return (
        _link(report, root) if report.is_file() else "",
        _link(Path(row.shrunk), root) if row.shrunk else "",
    )


def _link(path: Path, root: Path) -> str:
    """Return ``path`` relative to the page; empty for one that is not in its run store."""
    try:
        inside = path.resolve().relative_to(root.resolve().parents[1])
    except ValueError:
        return ""
    return f"../../{inside}"
