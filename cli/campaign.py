"""``firedrill campaign``: a matrix of cells, run on one engine, resumed and merged at will."""

from __future__ import annotations

import contextlib
import itertools
import math
import statistics
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import attrs
import click
import msgspec

from cli.campaign_course import Announcer, conclude
from cli.campaign_options import CampaignOptions, campaign_options
from cli.campaign_plans import DEFAULTS, ON_NODES, refuse_unrunnable
from cli.cells import code_digest, pool_of, run_on_nodes, simulation_pool
from cli.environment import SIMULATED
from cli.session import runs_option, say
from cli.shrinking.shrink_run import SHRUNK, failures, shrink_run
from harness.campaigns.campaign_summary import MAX_UNKNOWN_SHARE, totals
from harness.campaigns.cell import Cell, CellResult, simulated_cell
from harness.campaigns.cell_table import (
    CAMPAIGNS,
    TABLE,
    CampaignTable,
    CellRow,
    outcome_of,
    read_table,
    row_of,
)
from harness.campaigns.ledger import (
    RESULTS_FILE,
    Ledger,
    outweighs,
    past_results,
    unusable_lines,
)
from harness.campaigns.matrix import (
    CampaignFile,
    Past,
    Place,
    by_risk,
    places,
    quarantined,
    read,
    shard,
)
from harness.campaigns.pool import Pool, in_turn
from harness.errors import FiredrillError, Interrupted, MalformedHistory, PlanError, UsageError
from harness.exit_codes import FAILED, Outcome, worst
from harness.history.durable_files import write_atomically
from harness.history.regular_files import is_regular
from harness.history.run_directory import RunDirectory, require_plain
from harness.plan.plan import Plan, load
from harness.text import long_duration
from results.store.store import RunStore

if TYPE_CHECKING:
    from results.report.campaign_page import PageFinding

REPORTS_MAX = 20  # of cells that failed; `firedrill report` writes any other
CELL_LIMIT_S = 1800.0  # on real nodes, beside the length of its drive
SHRINK_S = 60.0  # for the smallest plan of one kind of failure
# Of a cell that was never run: simulated, and around the drive on real nodes.
SIMULATED_S, AROUND_S = 5.0, 30.0


@click.command()
@click.argument("file", type=click.Path(path_type=Path))
@campaign_options
@click.option("--again", is_flag=True, help="Run also the cells whose results are known.")
@runs_option
def campaign(
    file: Path,
    options: CampaignOptions,
    again: bool,
    store: RunStore,
) -> int:
    """Run the matrix of cells in FILE (TOML): riskiest first, those that fail again, and the
    smallest plan of what failed in simulation. One table and one page are the result.

    Broken off and started again, it goes on where it was. Shards of one campaign may run on
    several machines; --merge joins their results.
    """
    asked = read(file)
    done = conduct(asked, file, store, asked.name, options, again=again)
    write_table(done)
    page = write_page(done, done.root)
    click.echo(f"page: {page}")
    for line in totals(done.results, done.took_s, "cell"):
        click.echo(line)
    if done.note:
        click.echo(done.note)
    return conclude(done.table.outcome, done.root, interrupted=not done.finished)


@attrs.frozen(kw_only=True)
class Conducted:
    """What a campaign came to: its ``table``, the results of its cells, and by their keys the
    directories of their runs, the repetitions among them. ``note`` says what the outcome does not
    cover; without ``finished`` the user interrupted.
    """

    root: Path
    table: CampaignTable
    results: tuple[CellResult, ...]
    runs: Mapping[str, tuple[Path, ...]]
    note: str
    took_s: float
    finished: bool


def conduct(
    asked: CampaignFile,
    file: Path,
    store: RunStore,
    name: str,
    options: CampaignOptions,
    *,
    again: bool = False,
    past: Mapping[str, Past] | None = None,
) -> Conducted:
    """Run the campaign ``asked``, which ``file`` holds, as ``options`` say, with what it
    comes to in the directory ``name`` of the store's campaigns. ``past`` is what earlier ones say
    of its cells, by ``Place.axes``; by default what that directory records. Raises ``PlanError``
    and ``UsageError``.
    """
    root = _root(store, name)
    if options.shard is not None:
        _parts(options.shard)
    cells = _cells(asked, file)
    ledger, lost = _ledger(store, root, options.others, again=again)
    budget_s = options.budget_s or asked.time_budget_s
    began_s = time.monotonic()
    runner = Runner(
        cells=cells,
        ledger=ledger,
        store=store,
        jobs=options.jobs,
        end_s=math.inf if budget_s is None else began_s + budget_s,
    )
    finished, shrunk = True, {}
    if not options.no_run:
        order = by_risk(cells, _past(cells, root / RESULTS_FILE) if past is None else past)
        if options.shard is not None:
            mine = places_of_shard(cells, options.shard, options.durations)
            order = [place for place in order if place in mine]
        finished = runner.run(order) and runner.repeat(asked.repeats)
        if finished and options.shrink:
            try:
                shrunk = runner.shrink()
            except Interrupted:
                finished = False
    rows = runner.rows(asked, shrunk)
    _report(rows)
    with contextlib.suppress(OSError):  # a name for convenience
        store.mend_latest()
    outcome = outcome_of(rows, MAX_UNKNOWN_SHARE)
    absent = any(not other.is_dir() for other in options.others)
    if absent or (lost and any(row.outcome is None for row in rows)):
        # What these ran is not known: a night without them is no green one.
        outcome = worst([outcome, Outcome.UNKNOWN])
    return Conducted(
        root=root,
        table=CampaignTable(name=asked.name, outcome=outcome, cells=tuple(rows)),
        results=tuple(runner.results()),
        runs=runner.runs(),
        note=_note(rows, options.shard, lost),
        took_s=time.monotonic() - began_s,
        finished=finished,
    )


@attrs.define(kw_only=True)
class Runner:
    """Runs ``cells`` and what follows from their results, all of it recorded in ``ledger``."""

    cells: Mapping[Place, Cell]
    ledger: Ledger
    store: RunStore
    jobs: int | None
    end_s: float
    _repeated: dict[str, list[Cell]] = attrs.field(init=False, factory=dict)

    def run(self, order: Sequence[Place]) -> bool:
        """Run the cells at the places of ``order``; return false where the user interrupted."""
        chosen = [self.cells[place] for place in order]
        left = [cell for cell in chosen if cell.key not in self.ledger.known]
        if len(left) < len(chosen):
            say(f"{len(chosen) - len(left)} of {len(chosen)} cells are known")
        kept = {result.run for result in self.ledger.known.values()}
        # Of cells that are known, too: it may have been their repetitions.
        if gone := self.store.sweep({cell.plan.name for cell in chosen}, kept):
            say(f"removed {gone} runs that were broken off")
        return self._run(left, "cells")

    def repeat(self, times: int) -> bool:
        """Run each cell that failed ``times`` more; return false where the user interrupted."""
        again = []
        for cell in self.cells.values():
            result = self.ledger.known.get(cell.key)
            if result is not None and result.outcome in FAILED:
                more = [attrs.evolve(cell, repetition=number + 1) for number in range(times)]
                self._repeated[cell.key] = more
                again += [each for each in more if each.key not in self.ledger.known]
        return self._run(again, "repetitions")

    def shrink(self) -> dict[str, str]:
        """Look for the smallest plan of each kind of failure in simulation; return the files by
        the cells' keys.
        """
        found: dict[str, str] = {}
        seen: set[frozenset[str]] = set()
        for cell in self.cells.values():
            result = self.ledger.known.get(cell.key)
            if result is None or result.outcome is not Outcome.VIOLATION or not result.run:
                continue
            run = RunDirectory(Path(result.run))
            if not _runs_plan(run, cell):
                continue
            path = run.root / SHRUNK
            names = frozenset(result.anomalies)
            if path.is_file():
                found[cell.key] = str(path)
            elif names not in seen and _simulated(cell) and time.monotonic() < self.end_s:
                try:
                    shrink_run(run, failures(run), budget_s=SHRINK_S, jobs=self.jobs)
                except Interrupted:
                    # What it had by then is not the smallest.
                    path.unlink(missing_ok=True)
                    raise
                except FiredrillError as error:
                    say(f"{run.root.name}: no smaller plan: {error}")
                if path.is_file():
                    found[cell.key] = str(path)
            seen.add(names)
        return found

    def results(self) -> list[CellResult]:
        """The results of all cells that have one."""
        known = self.ledger.known
        return [known[cell.key] for cell in self.cells.values() if cell.key in known]

    def rows(self, asked: CampaignFile, shrunk: Mapping[str, str]) -> list[CellRow]:
        """Return the table: a row for each cell, in the order of the matrix."""
        today = datetime.now(UTC).date()
        rows = []
        for place, cell in self.cells.items():
            rule = quarantined(asked, place, today)
            runs = self._results_of(cell)
            quarantine = f"until {rule.until}: {rule.reason}" if rule else ""
            path = shrunk.get(cell.key, "")
            rows.append(row_of(place, cell.key, runs, quarantine=quarantine, shrunk=path))
        return rows

    def runs(self) -> dict[str, tuple[Path, ...]]:
        """Return the directories of the runs of each cell, by its key."""
        return {
            cell.key: tuple(Path(each.run) for each in self._results_of(cell) if each.run)
            for cell in self.cells.values()
        }

    def _results_of(self, cell: Cell) -> list[CellResult]:
        same = [cell, *self._repeated.get(cell.key, self._known_repeats(cell))]
        return [self.ledger.known[each.key] for each in same if each.key in self.ledger.known]

    def _known_repeats(self, cell: Cell) -> list[Cell]:
        if cell.key not in self.ledger.known:
            return []
        numbered = (attrs.evolve(cell, repetition=number) for number in itertools.count(1))
        return list(itertools.takewhile(lambda each: each.key in self.ledger.known, numbered))

    def _run(self, cells: Sequence[Cell], what: str) -> bool:
        simulated = [cell for cell in cells if _simulated(cell)]
        real = [cell for cell in cells if not _simulated(cell)]
        return self._on(
            simulated, lambda: simulation_pool(self.store.root, keep=True, jobs=self.jobs), what
        ) and self._on(real, self._nodes, what)

    def _on(self, cells: Sequence[Cell], pool: Callable[[], Pool], what: str) -> bool:
        if not cells:
            return True
        named = {cell.key: place.axes for place, cell in self.cells.items()}
        for key, more in self._repeated.items():
            named |= {cell.key: f"{named[key]} again" for cell in more}
        runs_on = pool()
        announcer = Announcer(
            title=lambda result: f"{named[result.key]}, seed {result.seed}",
            progress=lambda count: self.progress(count, cells, what, runs_on.workers),
        )
        done, finished = announcer.run(runs_on, in_turn(cells), self.ledger, end_s=self.end_s)
        if finished and len(done) < len(cells):
            click.echo(f"the time is over: {len(cells) - len(done)} of {len(cells)} {what} left")
        return finished

    def _nodes(self) -> Pool:
        # One at a time: clusters on one machine would slow each other down.
        return pool_of(partial(run_on_nodes, runs_dir=self.store.root), jobs=1)

    def progress(self, count: int, cells: Sequence[Cell], what: str, workers: int) -> str:
        """Describe how far it is with ``cells`` after ``count`` of them, on so many ``workers``."""
        left = cells[count:]
        took = [r.wall_s for cell in cells[:count] if (r := self.ledger.known.get(cell.key))]
        left_s = len(left) * (sum(took) / len(took) if took else SIMULATED_S) / workers
        left_s = min(left_s, self.end_s - time.monotonic())  # no cell begins after that
        ends = f", about {long_duration(max(1.0, round(left_s)))} left" if left else ""
        return f"{count} of {len(cells)} {what}{ends}"


def _root(store: RunStore, name: str) -> Path:
    """The directory ``name`` of the store's campaigns, which leads nowhere else. Raises
    ``UsageError``.
    """
    root = store.root / CAMPAIGNS / name
    for path in (root.parent, root):
        if path.is_symlink() or (path.exists() and not path.is_dir()):
            raise UsageError(f"{path}: expected a directory: nothing is written through a link")
    return root


def _cells(asked: CampaignFile, file: Path) -> dict[Place, Cell]:
    """Return the cell at each place. A plan that no run could carry out is refused here, once for
    all its seeds. Raises ``PlanError``, ``UsageError``.
    """
    from cli.wiring import refuse_impossible, resolve

    base = file.parent / asked.plan if asked.plan else None
    found, simulated = {}, []
    resolved = set()
    for place in places(asked):
        given = place.overrides() | {"name": asked.name}
        try:
            plan = load(base, given, usual=DEFAULTS)
            if plan.cluster.provider == SIMULATED:
                plan = load(base, given | {"check.executor": "local"}, usual=DEFAULTS)
                simulated.append(plan)
            else:
                plan = load(base, given, usual=ON_NODES)
            if place.axes not in resolved:
                resolve(plan)
                refuse_impossible(plan)
                resolved.add(place.axes)
        except PlanError as error:
            raise PlanError(error.path, f"{error.problem} (in {place.axes})", str(file)) from error
        found[place] = _cell(plan)
    if simulated:
        refuse_unrunnable(simulated)
    return found


def _cell(plan: Plan) -> Cell:
    if plan.cluster.provider == SIMULATED:
        return simulated_cell(plan)
    return Cell(plan=plan, limit_s=CELL_LIMIT_S + plan.drive.duration_s)


def _runs_plan(run: RunDirectory, cell: Cell) -> bool:
    """Whether ``run`` is of the plan of ``cell``. A ledger that was merged may name any directory,
    and shrinking runs the plan that is in it.
    """
    try:
        require_plain(run)
        found = load(run.plan)
    except (MalformedHistory, PlanError):
        return False
    # A run materialises the schedule that its seed draws.
    drawn = msgspec.structs.replace(found.nemesis, schedule=(), mix=cell.plan.nemesis.mix)
    return msgspec.structs.replace(found, nemesis=drawn) == msgspec.structs.replace(
        cell.plan, nemesis=msgspec.structs.replace(cell.plan.nemesis, schedule=())
    )


def _simulated(cell: Cell) -> bool:
    return cell.plan.cluster.provider == SIMULATED


def _ledger(
    store: RunStore, root: Path, others: Sequence[Path], *, again: bool
) -> tuple[Ledger, list[str]]:
    """Return what is known of the cells, here and in ``others``, and what of those is lost."""
    path, code = root / RESULTS_FILE, code_digest()
    ledger = Ledger(path, code, again=True) if again else Ledger.read(path, code)
    for key, result in ledger.known.items():
        # Begun in another directory: what it named relative to that is not found from here.
        if near := store.located(result.run):
            ledger.known[key] = msgspec.structs.replace(result, run=str(near))
    if not again and not ledger.known and past_results(path):
        say(f"the results in {path} are of other code: they do not count")
    lost: list[str] = []
    for other in dict.fromkeys(others):
        if not other.is_dir():  # a machine that died left none
            lost.append(f"--merge: {other} is not there: its cells count as not run")
            continue
        source = other / CAMPAIGNS / root.name / RESULTS_FILE
        if not is_regular(source) and is_regular(source.with_name(TABLE)):
            say(f"--merge: {other} ran no cell of the campaign")
            continue
        if not is_regular(source):
            source = other / RESULTS_FILE
        if not is_regular(source):
            raise UsageError(f"--merge: {other} holds no results of the campaign {root.name!r}")
        lost += _merged(ledger, source)
    return ledger, lost


def _merged(ledger: Ledger, source: Path) -> Iterator[str]:
    """Take the results of ``source`` into ``ledger``, and yield what of them can't be."""
    taken = Ledger.read(source, ledger.code)
    if bad := unusable_lines(source):
        number, reason = bad[0]
        what = f"{len(bad)} {'line of' if len(bad) == 1 else 'lines of'} {source}"
        yield (
            f"--merge: {what} can't be used, line {number} first: {reason}; their cells count "
            "as not run"
        )
    if not taken.known and past_results(source):
        yield f"--merge: the results in {source} are of other code: they do not count"
    for key, result in taken.known.items():
        known = ledger.known.get(key)
        # Run on both, a cell is what is worse of it, and what is known where neither is.
        if known is None or not outweighs(known, result):
            ledger.add(_here(result, source))


def _here(result: CellResult, source: Path) -> CellResult:
    """Return ``result`` with its run as it is found from here: beside the campaign it came from."""
    near = RunStore(source.parent.parent.parent).located(result.run)
    return msgspec.structs.replace(result, run=str(near) if near else "")


def _past(cells: Mapping[Place, Cell], path: Path) -> dict[str, Past]:
    """Return what ``path`` records of the cells, by their axes."""
    axes = {cell.key: place.axes for place, cell in cells.items()}
    return past_by_axes(past_results(path), axes, code_digest())


def past_by_axes(
    results: Iterable[tuple[str, CellResult]], axes: Mapping[str, str], code: str
) -> dict[str, Past]:
    """Return what ``results``, oldest first and each with the code that it is of, say of the cells
    whose ``axes`` are known by their keys; ``code`` is what runs now.
    """
    past: dict[str, Past] = {}
    red: dict[str, set[str]] = {}  # the keys that were red the last time
    for its_code, result in results:
        if result.key in axes:
            at = axes[result.key]
            seeds = red.setdefault(at, set())
            seeds.discard(result.key)
            if result.outcome is not Outcome.VALID:
                seeds.add(result.key)
            covered = frozenset(
                (fault, role)
                for fault, roles in result.stats.hits.items()
                for role, count in roles.items()
                if count
            )
            last = Past(runs=1, red=bool(seeds), changed=its_code != code, covered=covered)
            past[at] = last.behind(past.get(at, Past()))
    return past


def places_of_shard(cells: Mapping[Place, Cell], part: str, durations: Path | None) -> set[Place]:
    """Return the places of the shard ``part``. They follow from the file, and the table of
    ``durations``, alone: every machine has to come to the same shards.
    """
    number, of = _parts(part)
    took: dict[str, float] = {}
    took_there: dict[str, list[float]] = {}  # by place: under fresh seeds no key is known
    if durations is not None:
        try:
            table = read_table(durations)
        except UsageError as error:
            raise UsageError(f"--durations: {error}") from error
        for row in table.cells:
            if row.times:
                took[row.key] = row.wall_s / row.times
                took_there.setdefault(row.place, []).append(took[row.key])
    sized = []
    for place, cell in cells.items():
        usual_s = SIMULATED_S if _simulated(cell) else cell.plan.drive.duration_s + AROUND_S
        if there := took_there.get(place.axes):
            usual_s = statistics.fmean(there)
        sized.append((place, took.get(cell.key, usual_s)))
    return set(shard(sized, number, of))


def _parts(text: str) -> tuple[int, int]:
    number, slash, of = text.partition("/")
    if not slash or not number.isdecimal() or not of.isdecimal() or not 1 <= int(number) <= int(of):
        raise UsageError(f"--shard: expected K/N, as 2/5 (got {text!r})")
    return int(number), int(of)


def _note(rows: Sequence[CellRow], part: str | None, lost: Sequence[str] = ()) -> str:
    """Say what the outcome does not cover."""
    missing = sum(row.outcome is None for row in rows)
    spared = sum(bool(row.quarantine) for row in rows)
    parts = list(lost)
    if missing:
        only = f" (this is shard {part})" if part else ""
        parts.append(f"{missing} of {len(rows)} cells were not run{only}")
    if spared:
        parts.append(f"{spared} cells are quarantined: what they show does not count")
    return "; ".join(parts)


def _report(rows: Sequence[CellRow]) -> None:
    """Write the reports of cells that failed, which simulation leaves out, for the page's links."""
    from results.report.render import write_report

    failed = [row for row in rows if row.outcome in FAILED and row.run]
    for row in failed[:REPORTS_MAX]:
        run = RunDirectory(Path(row.run))
        if not run.report.exists():
            try:
                write_report(run)
            except FiredrillError as error:
                say(f"{run.root.name}: no report: {error}")


def write_table(done: Conducted) -> None:
    """Write ``campaign.json``. Raises ``HarnessError``."""
    done.root.mkdir(parents=True, exist_ok=True)
    encoded = msgspec.json.format(msgspec.json.encode(done.table), indent=2) + b"\n"
    write_atomically(done.root / TABLE, encoded)


def write_page(
    done: Conducted,
    root: Path,
    *,
    outcome: Outcome | None = None,
    findings: Sequence[PageFinding] = (),
    notes: Sequence[str] = (),
    reports: Mapping[str, str] | None = None,
) -> Path:
    """Write the page of a campaign into ``root`` as ``results.report.campaign_page`` does, and
    return its path. The ``outcome`` is by default that of the table. Raises ``HarnessError``.
    """
    from results.report.campaign_page import write_campaign

    return write_campaign(
        root,
        done.root.name,  # nights of one campaign are told apart by it
        outcome or done.table.outcome,
        done.table.cells,
        [*filter(None, [done.note]), *notes],
        findings,
        reports,
    )
