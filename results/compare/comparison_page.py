"""The page and the JSON of a comparison."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from pathlib import Path

import msgspec

from harness.history.durable_files import disk_failure, write_atomically
from harness.history.regular_files import is_regular
from harness.text import inert_json
from results.compare.comparison import Comparison
from results.compare.comparison_tables import meaning, tables
from results.compare.run_selection import Side
from results.report.html import MARKS, rendered
from results.store.store import RunStore, slug

COMPARISONS = "comparisons"  # below the runs


def page_path(new: Side, base: Side, store: RunStore) -> Path:
    """Where the page of this comparison lies, unless another place is asked for."""
    name = f"{slug(Path(new.text).name)}-against-{slug(Path(base.text).name)}.html"
    return store.root / COMPARISONS / name


def encoded(found: Comparison) -> bytes:
    """The comparison as JSON: equal comparisons are equal bytes."""
    text = msgspec.json.format(msgspec.json.encode(found, order="sorted"), indent=2)
    return inert_json(text) + b"\n"


def write_page(found: Comparison, new: Side, base: Side, path: Path) -> Path:
    """Write the page to ``path``, and the JSON beside it; return ``path``. Links lead to reports
    that are there. Raises ``HarnessError``.
    """
    page = rendered(
        "compare.html",
        found=found,
        new=new.text,
        base=base.text,
        mark=MARKS[found.outcome],
        meaning=meaning(found),
        grids=tables(found, every=True),
        links=_links(found, (new, base), path),
    )
    make_directory(path.parent)
    write_atomically(path, page.encode("utf-8", "backslashreplace"))
    write_atomically(path.with_suffix(".json"), encoded(found))
    return path


def make_directory(directory: Path) -> None:
    """Make the directory of a page, if need be. Raises ``HarnessError``."""
    try:
        directory.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise disk_failure("make", directory, error, "no page is written") from error


def _links(found: Comparison, sides: Iterable[Side], path: Path) -> Mapping[str, str]:
    named = {
        each.first_run
        for rows in (found.findings_new, found.findings_gone, found.findings_known)
        for each in rows
    }
    links: dict[str, str] = {}
    for side in sides:
        for entry in side.entries:
            report = side.store.root / entry.run / "report.html"
            if entry.run in named and is_regular(report):
                links[entry.run] = os.path.relpath(report.resolve(), path.resolve().parent)
    return links
