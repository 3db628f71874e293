"""The web view: pages over a store, read-only."""

from __future__ import annotations

from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast
from urllib.parse import urlencode

import attrs
from jinja2 import Environment
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response
from starlette.routing import Route

from harness.campaigns.cell_table import CellRow
from harness.clock import NS_PER_S
from harness.errors import FiredrillError, MalformedHistory
from harness.exit_codes import Outcome
from harness.history.regular_files import is_regular, read_small
from harness.history.run_directory import RunDirectory, require_plain
from harness.protocols.promise import REFUSED
from harness.protocols.verdict import MAX_VERDICT_BYTES, Verdict, read_verdict
from harness.text import duration
from results.report.html import MARKS, environment, own_text
from results.store.index import Condition, Query
from results.store.run_entry import CELL_PARTS, RunEntry
from results.store.store import is_run_id
from results.web import search
from results.web.background_analysis import Shelf, compared, trend_of
from results.web.guards import REPORT_POLICY, Guard
from results.web.store_view import Catalog

if TYPE_CHECKING:
    from results.compare.comparison import Comparison
    from results.trend.trends import Trend

MAX_REPORT_BYTES = 64 << 20
MAX_PLAN_BYTES = 1 << 20
REASONS_MAX = 50
EXAMPLES_MAX = 3  # of an anomaly
NAMED_MAX = 4  # of the anomalies of a run, in one row
CELLS_MAX = 1000  # of a campaign, in one page
RUNS_MAX = search.PAGE_ROWS  # of a finding, in one page
FINDINGS_MAX = 500
CAMPAIGNS_MAX = 300
PICTURES_MAX = 40  # of a trend, each of some kilobytes
_SIDES = ("new", "base", "where")
_MARKS = {outcome.value: mark for outcome, mark in MARKS.items()}
_TEXT = "text/plain; charset=utf-8"


def application(catalog: Catalog, port: int) -> Starlette:
    """Return the application over ``catalog``, which is listened to on ``port``."""
    pages = Pages(catalog=catalog, templates=environment())
    routes = [
        Route("/", pages.home),
        Route("/runs", pages.runs),
        Route("/runs/{run}", pages.run),
        Route("/runs/{run}/report.html", pages.report),
        Route("/runs/{run}/plan.toml", partial(pages.text, "plan")),
        Route("/runs/{run}/verdict.json", partial(pages.text, "verdict")),
        Route("/campaigns", pages.campaigns),
        Route("/campaigns/{name}", pages.campaign),
        Route("/compare", pages.compare),
        Route("/trend", pages.trend),
        Route("/findings", pages.findings),
        Route("/findings/{fingerprint}", pages.finding),
        Route("/static/{name}", static),
    ]
    return Starlette(
        routes=routes,
        middleware=[Middleware(Guard, port=port)],
        exception_handlers={HTTPException: pages.missing, FiredrillError: pages.failed},
    )


_STATIC = {"serve.css": "text/css; charset=utf-8", "serve.js": "text/javascript; charset=utf-8"}


async def static(request: Request) -> Response:
    """Answer with our style sheet or our script."""
    name = request.path_params["name"]
    if name not in _STATIC:
        raise HTTPException(404)
    text = own_text(f"web/{name}")
    if name == "serve.css":
        text = own_text("report.css") + text
    return Response(text, media_type=_STATIC[name])


@attrs.frozen(kw_only=True)
class Pages:
    """A page each; all of them are made from what ``catalog`` knows."""

    catalog: Catalog
    templates: Environment
    shelf: Shelf = attrs.field(factory=Shelf)

    async def home(self, request: Request) -> Response:
        """The list of runs is the first page."""
        return RedirectResponse("/runs", 307)

    async def runs(self, request: Request) -> Response:
        """The runs: searched, sorted, a page of them."""
        given = request.query_params
        asked = search.parse(
            given.get("q", ""),
            given.get("sort", "run"),
            given.get("dir", ""),
            given.get("page", ""),
        )
        index = self.catalog.current().index
        rows = index.entries(asked.query)
        outcomes = index.outcomes(asked.conditions, asked.words)
        found = sum(outcomes.values())
        last = max(1, -(-found // search.PAGE_ROWS))

        def link(**changes: object) -> str:
            kept = {
                "q": asked.text,
                "sort": asked.order,
                "dir": "" if asked.descending else "up",
                "page": "",
            }
            return "/runs?" + urlencode({k: v for k, v in (kept | changes).items() if v})

        return self._page(
            "runs.html",
            title="Runs",
            asked=asked,
            rows=[_row(each) for each in rows],
            found=found,
            counts=[(name, _MARKS.get(name, ""), count) for name, count in outcomes.items()],
            columns=[
                (
                    name,
                    label,
                    number,
                    link(sort=name, dir=_turned(asked, name)),
                    _arrow(asked, name),
                )
                for name, label, number in _COLUMNS
            ],
            last=last,
            before=link(page=asked.page - 1) if asked.page > 1 else "",
            after=link(page=asked.page + 1) if asked.page < last else "",
        )

    async def run(self, request: Request) -> Response:
        """One run: what it was, what it came to, what proves it."""
        entry, run = self._run(request)
        verdict, trouble = _verdict(run)
        return self._page(
            "run.html",
            title=f"Run {entry.run}",
            entry=entry,
            row=_row(entry),
            meaning=_meaning(entry),
            facts=_facts(entry),
            reasons=[] if verdict is None else list(verdict.reasons[:REASONS_MAX]),
            more=0 if verdict is None else max(0, len(verdict.reasons) - REASONS_MAX),
            examples=[] if verdict is None else _examples(verdict),
            trouble=trouble or entry.refused,
            report=is_regular(run.report),
            plan=run.plan.is_file() and not run.plan.is_symlink(),
            judged=verdict is not None,
            campaigns=[tag for tag in entry.tags if tag.startswith(("campaign=", "night="))],
            alike=_alike(entry),
        )

    async def report(self, request: Request) -> Response:
        """The report of a run, as it is in its directory."""
        _, run = self._run(request)
        content = _content(run, run.report, MAX_REPORT_BYTES)
        headers = {"content-security-policy": REPORT_POLICY}
        return Response(content, media_type="text/html; charset=utf-8", headers=headers)

    async def text(self, what: str, request: Request) -> Response:
        """The plan or the verdict of a run, as plain text."""
        _, run = self._run(request)
        path, limit = (
            (run.plan, MAX_PLAN_BYTES) if what == "plan" else (run.verdict, MAX_VERDICT_BYTES)
        )
        return Response(_content(run, path, limit), media_type=_TEXT)

    async def campaigns(self, request: Request) -> Response:
        """The campaigns, nights among them."""
        lines = self.catalog.campaigns()
        rows = [
            (line, _MARKS.get(line.outcome, ""), datetime.fromtimestamp(line.changed, UTC))
            for line in lines[:CAMPAIGNS_MAX]
        ]
        return self._page(
            "campaigns.html", title="Campaigns", rows=rows, more=len(lines) - len(rows)
        )

    async def campaign(self, request: Request) -> Response:
        """The table of one campaign, worst cells first."""
        name = request.path_params["name"]
        table = self.catalog.campaign(name)
        if table is None:
            raise HTTPException(404, "there is no such campaign in the store, or no table of it")
        night = self.catalog.night(name)
        outcome = table.outcome if night is None else night.outcome
        order = [*Outcome, None]
        cells = sorted(table.cells, key=lambda row: order.index(row.outcome))
        return self._page(
            "campaign_view.html",
            title=f"Campaign {name}",
            name=name,
            outcome=outcome,
            mark=MARKS[outcome],
            night=night,
            before=self.catalog.campaign_before(name),
            cells=[_cell(row) for row in cells[:CELLS_MAX]],
            more=max(0, len(cells) - CELLS_MAX),
            total=len(cells),
            missing=sum(row.outcome is None for row in cells),
        )

    async def compare(self, request: Request) -> Response:
        """Two sides of the store, compared."""
        given = request.query_params
        new, base, where = (given.get(name, "")[: search.MAX_CHARS] for name in _SIDES)
        across = frozenset(given.getlist("across")) & frozenset(CELL_PARTS)
        answer = None
        asked = bool(new and base)
        if asked:
            current = self.catalog.current()
            make = partial(compared, self.catalog, current.index, new, base, where, across)
            key = ("compare", new, base, where, across)
            answer = await self.shelf.answer(key, current.mark, make)
        content: dict[str, Any] = dict.fromkeys(("found", "mark", "grids", "meaning"))
        if answer is not None and answer.value is not None:
            from results.compare.comparison_tables import meaning, tables

            found = cast("Comparison", answer.value)
            content = {
                "found": found,
                "mark": MARKS[found.outcome],
                "meaning": meaning(found),
                "grids": tables(found, every=True),
            }
        return self._page(
            "compare.html",
            title="Compare",
            names=[line.name for line in self.catalog.campaigns()[:CAMPAIGNS_MAX]],
            new=new,
            base=base,
            where=where,
            across=across,
            parts=CELL_PARTS,
            working=asked and answer is None,
            trouble="" if answer is None else answer.trouble,
            links={} if content["found"] is None else _compare_links(content["found"]),
            **content,
        )

    async def trend(self, request: Request) -> Response:
        """Figures and findings over months."""
        where = request.query_params.get("where", "")[: search.MAX_CHARS]
        current = self.catalog.current()
        make = partial(trend_of, current.index, where)
        answer = await self.shelf.answer(("trend", where), current.mark, make)
        content: dict[str, Any] = dict.fromkeys(("found", "grids", "pictures", "more"))
        links: dict[str, str] = {}
        if answer is not None and answer.value is not None:
            from results.trend.trend_tables import drawn_first, picture, tables

            found = cast("Trend", answer.value)
            drawn = drawn_first(found)[:PICTURES_MAX]
            content = {
                "found": found,
                "grids": tables(found),
                "pictures": [picture(each) for each in drawn],
                "more": len(found.series) - len(drawn),
            }
            links = {each.words: f"/findings/{each.fingerprint}" for each in found.findings}
        return self._page(
            "trend.html",
            title="Trend",
            where=where,
            working=answer is None,
            trouble="" if answer is None else answer.trouble,
            links=links,
            **content,
        )

    async def findings(self, request: Request) -> Response:
        """The findings over all runs, the last seen first."""
        rows = self.catalog.current().index.findings()
        return self._page(
            "findings.html",
            title="Findings",
            rows=rows[:FINDINGS_MAX],
            more=max(0, len(rows) - FINDINGS_MAX),
        )

    async def finding(self, request: Request) -> Response:
        """One finding: since when, how often, in which runs."""
        index = self.catalog.current().index
        seen = index.findings(request.path_params["fingerprint"])
        if not seen:
            raise HTTPException(404, "no run of the store has such a finding (any more)")
        (found,) = seen
        condition = Condition(name="finding", operator="=", value=found.fingerprint)
        query = Query(conditions=(condition,), descending=True, limit=RUNS_MAX)
        return self._page(
            "finding.html",
            title=f"{found.anomaly} ({found.fingerprint})",
            found=found,
            rows=[_row(each) for each in index.entries(query)],
            more=max(0, found.met - RUNS_MAX),
            months=index.months(found),
        )

    async def missing(self, request: Request, error: Exception) -> Response:
        """The page of what is not there."""
        status = error.status_code if isinstance(error, HTTPException) else 500
        text = error.detail if isinstance(error, HTTPException) else ""
        return self._page("missing.html", status=status, title="Not here", text=text)

    async def failed(self, request: Request, error: Exception) -> Response:
        """The page of what could not be read."""
        return self._page("missing.html", status=500, title="Can't be read", text=str(error))

    def _run(self, request: Request) -> tuple[RunEntry, RunDirectory]:
        name = request.path_params["run"]
        found: list[RunEntry] = []
        if is_run_id(name):
            condition = Condition(name="run", operator="=", value=name)
            found = self.catalog.current().index.entries(Query(conditions=(condition,)))
        run = RunDirectory(self.catalog.store.root / name)
        if not found or run.root.is_symlink() or not run.root.is_dir():
            raise HTTPException(404, f"run {name} is not in the store (any more)")
        return found[0], run

    def _page(self, template: str, status: int = 200, **content: object) -> Response:
        text = self.templates.get_template(f"web/{template}").render(
            **content,
            store=str(self.catalog.store.root),
            store_trouble=self.catalog.trouble,
        )
        return Response(
            text.encode("utf-8", "backslashreplace"), status, media_type="text/html; charset=utf-8"
        )


_COLUMNS = (
    ("outcome", "outcome", False),
    ("run", "run", False),
    ("system", "system", False),
    ("release", "release", False),
    ("mode", "mode", False),
    ("workload", "workload", False),
    ("provider", "provider", False),
    ("seed", "seed", True),
    ("ok", "ok", True),
    ("longest_gap_s", "longest gap", True),
)


def _compare_links(found: Comparison) -> dict[str, str]:
    """Return the pages of findings by the words that stand in the tables."""
    every = (
        *found.findings_new,
        *found.findings_known,
        *found.findings_gone,
        *found.findings_untried,
    )
    return {each.words: f"/findings/{each.fingerprint}" for each in every}


def _turned(asked: search.Search, name: str) -> str:
    """The direction that a click on a column's head asks for."""
    return "up" if asked.order == name and asked.descending else ""


def _arrow(asked: search.Search, name: str) -> str:
    if asked.order != name:
        return ""
    return "descending" if asked.descending else "ascending"


def _row(entry: RunEntry) -> dict[str, object]:
    return {
        "run": entry.run,
        "outcome": entry.outcome or "",
        "shown": entry.outcome or ("not judged" if entry.state else "no history"),
        "mark": _MARKS.get(entry.outcome or "", ""),
        "begun": f"{entry.begun:%Y-%m-%d %H:%M}" if entry.begun else "",
        "system": entry.system,
        "release": entry.release,
        "mode": entry.mode,
        "workload": entry.workload,
        "provider": entry.provider,
        "faults": ", ".join(entry.faults),
        "seed": "" if entry.seed is None else str(entry.seed),
        "ok": "" if entry.ok is None else f"{entry.ok:,}",
        "gap": _gap(entry),
        "found": anomalies_of(entry),
    }


def anomalies_of(entry: RunEntry) -> str:
    """Name the anomalies of a run, of many the first: one bug of a consensus breaks a dozen, and a
    row of a table is as high as its cells.
    """
    names = list(dict.fromkeys(each.anomaly for each in entry.findings))
    more = len(names) - NAMED_MAX
    return ", ".join(names) if more <= 1 else f"{', '.join(names[:NAMED_MAX])} and {more} more"


def _alike(entry: RunEntry) -> str:
    """Return the conditions that runs of the same system under the same load meet."""
    named = ("system", "mode", "workload", "provider")
    pairs = [(name, getattr(entry, name)) for name in named]
    return ",".join(f"{name}={value}" for name, value in pairs if value and "," not in value)


def _meaning(entry: RunEntry) -> str:
    known = {outcome.value: outcome for outcome in Outcome}
    found = known.get(entry.outcome or "")
    return found.meaning if found else ""


def _facts(entry: RunEntry) -> list[tuple[str, str]]:
    pairs = [
        ("begun (UTC)", f"{entry.begun:%Y-%m-%d %H:%M:%S}" if entry.begun else ""),
        ("plan", entry.name),
        ("system", f"{entry.system} {entry.release} {entry.mode}".strip()),
        ("workload", entry.workload),
        ("provider", f"{entry.provider}, {entry.nodes} nodes" if entry.nodes else entry.provider),
        ("seed", "" if entry.seed is None else str(entry.seed)),
        ("drive", "" if entry.duration_s is None else f"{entry.duration_s:g} s"),
        ("faults", ", ".join(entry.faults)),
        (
            "transactions",
            _transactions(entry),
        ),
        ("longest gap", _gap(entry)),
        ("commit", f"{entry.commit} {entry.branch}".strip()),
        ("tags", ", ".join(entry.tags)),
    ]
    return [(name, text) for name, text in pairs if text]


def _gap(entry: RunEntry) -> str:
    return "" if entry.longest_gap_s is None else duration(entry.longest_gap_s * NS_PER_S)


def _transactions(entry: RunEntry) -> str:
    counts = (
        *((entry.ok, "ok"), (entry.conflicts, REFUSED)),
        *((entry.fail, "fail"), (entry.info, "info")),
    )
    # A verdict of an older version tells no conflicts apart.
    return ", ".join(f"{count:,} {name}" for count, name in counts if count is not None)


def _examples(verdict: Verdict) -> list[tuple[str, int, list[str]]]:
    return [
        (name, anomaly.count, [example.text for example in anomaly.examples[:EXAMPLES_MAX]])
        for name, anomaly in sorted(verdict.anomalies.items())
    ]


def _verdict(run: RunDirectory) -> tuple[Verdict | None, str]:
    try:
        require_plain(run)
        return read_verdict(run), ""
    except MalformedHistory as error:
        return None, str(error)


def _content(run: RunDirectory, path: Path, limit_bytes: int) -> bytes:
    try:
        require_plain(run)
        return read_small(path, limit_bytes)
    except MalformedHistory as error:
        raise HTTPException(404, str(error)) from error
    except OSError as error:
        raise HTTPException(404, f"{path.name}: {error.strerror or 'it is not there'}") from error


def _cell(row: CellRow) -> dict[str, object]:
    name = Path(row.run).name if row.run else ""
    return {
        "outcome": row.outcome.value if row.outcome else "",
        "shown": row.outcome.value if row.outcome else "not run",
        "mark": MARKS[row.outcome] if row.outcome else "",
        "axes": row.place,
        "seed": str(row.seed),
        "found": row.found,
        "label": row.label,
        "quarantine": row.quarantine,
        "ok": "" if row.ok_share is None else f"{row.ok_share:.0%}",
        "took": f"{row.wall_s:.1f} s" if row.outcome else "",
        "run": name if is_run_id(name) else "",
    }
