"""``firedrill selftest --mutants``: the mutants of a store that drills tell from the sound one."""

from __future__ import annotations

import functools
import math
import shlex
import time
from collections import Counter
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import closing
from functools import partial
from hashlib import sha256
from pathlib import Path
from typing import Any, TypeVar, cast

import attrs
import click
import msgspec
from msgspec.structs import replace

from cli import quantities
from cli.cells import code_digest, pool_of
from cli.mutant_drills import (
    SOUND,
    TARGET,
    drill,
    is_simulated,
    reference_plans,
    sound_drill,
    sound_suite,
    suites_of,
)
from cli.session import say
from harness.campaigns.cell import Cell, CellResult, Failure
from harness.campaigns.ledger import RESULTS_FILE, Ledger
from harness.campaigns.pool import Choose, Work, in_this_process, in_turn
from harness.errors import HarnessError, UsageError
from harness.exit_codes import Outcome, exit_code
from harness.history.durable_files import write_atomically
from harness.history.run_directory import RunDirectory
from harness.mutation.line_coverage import decode
from harness.mutation.rules import Mutant
from harness.mutation.suites import (
    Suite,
    is_below,
)
from harness.mutation.target import Sources, Target, find_mutants, read_target, sample
from harness.mutation.trials import (
    WALL_LIMIT_S,
    Drill,
    Fate,
    MutantResult,
    Trials,
    counts,
    fate_of,
    score,
)
from harness.plan.plan import Plan, load
from harness.text import inert
from results.store.store import RunStore

RESULTS = "mutants.json"
SAMPLE, LIMIT_CPU_S, AT_LEAST = 240, 45.0, 0.9
NOTE_EVERY_S = 15.0
LINE_CHARS = 400

C = TypeVar("C", bound=Callable[..., Any])


@attrs.frozen(kw_only=True)
class MutantChoice:
    """What a user asks of a campaign. ``target`` is the file that describes it, ``packages`` are
    those of its packages that are meant, all where none is named; ``plans`` are the drills: none
    for those of the reference store. ``given``: any of it was.
    """

    target: Path = TARGET
    plans: tuple[Path, ...] = ()
    packages: tuple[str, ...] = ()
    sample: int = SAMPLE
    only: tuple[str, ...] = ()
    show_all: bool = False
    keep_runs: bool = False
    limit_cpu_s: float = LIMIT_CPU_S
    at_least: float = AT_LEAST
    budget_s: float | None = None

    @property
    def given(self) -> bool:
        """Whether it asks for anything but the defaults."""
        return self != MutantChoice()


def mutant_options(command: C) -> C:
    """The options of ``--mutants``, given to a command as ``choice``."""

    @click.option("--sample", type=click.IntRange(1), default=SAMPLE, show_default=True,
                  help="Mutants to try, spread over packages, functions and rules.")  # fmt: skip
    @click.option("--package", "packages", multiple=True, metavar="NAME",
                  help="Only mutants of this package of the target, by its name or the end of it; "
                  "repeatable.")  # fmt: skip
    @click.option("--mutant", "only", multiple=True, metavar="KEY",
                  help="Only this mutant, with its diff; repeatable.")  # fmt: skip
    @click.option("--list-mutants", "show_all", is_flag=True, help="List all, and try none.")
    @click.option("--target", type=click.Path(path_type=Path), default=TARGET,
                  help="TOML file: the packages to mutate, and reviewed mutants "
                  "(by default those of the reference store).")  # fmt: skip
    @click.option("--plan", "plans", multiple=True, type=click.Path(path_type=Path),
                  help="A drill for mutants, better simulated; repeatable (by default those of the "
                  "reference store).")  # fmt: skip
    @click.option(
        "--keep-runs", is_flag=True, help="Keep the run of each kill by verdict, for replay."
    )
    @click.option("--limit-cpu", "limit_cpu_s", type=quantities.Range(min=1), default=LIMIT_CPU_S,
                  show_default=True, help="Seconds of a core for one mutant.")  # fmt: skip
    @click.option("--time-budget", "budget_s", callback=quantities.seconds, metavar="TIME",
                  help="Begin no drill of a mutant after that time: 90s, 30m, 8h.")  # fmt: skip
    @click.option("--at-least", type=quantities.Range(0, 1), default=AT_LEAST, show_default=True,
                  help="Share of mutants that must be killed.")  # fmt: skip
    @functools.wraps(command)
    def chosen(
        *args: Any,  # noqa: ANN401
        packages: tuple[str, ...],
        sample: int,
        only: tuple[str, ...],
        show_all: bool,
        target: Path,
        plans: tuple[Path, ...],
        keep_runs: bool,
        limit_cpu_s: float,
        at_least: float,
        budget_s: float | None,
        **kwargs: Any,  # noqa: ANN401
    ) -> Any:  # noqa: ANN401
        choice = MutantChoice(
            target=target,
            plans=plans,
            packages=packages,
            sample=sample,
            only=only,
            show_all=show_all,
            keep_runs=keep_runs,
            limit_cpu_s=limit_cpu_s,
            at_least=at_least,
            budget_s=budget_s,
        )
        return command(*args, choice=choice, **kwargs)

    return cast(C, chosen)


class Report(msgspec.Struct, frozen=True, kw_only=True):
    """The whole campaign, for machines. ``kills`` are (kills, tries) of each drill."""

    seed: int
    killed: int
    counted: int
    fates: dict[str, int]
    kills: dict[str, tuple[int, int]]
    mutants: tuple[MutantResult, ...]


def campaign(choice: MutantChoice, store: RunStore, *, seed: int, jobs: int | None) -> int:
    """Try the mutants of ``choice``, and print killed, survived and equivalent; return the exit
    code. Raises ``UsageError``, and ``HarnessError`` where no drill is valid.
    """
    whole = read_target(choice.target)
    sources = find_mutants(_narrowed(whole, choice.packages))
    for key in sources.stale:
        say(f"{choice.target}: {key} is reviewed, but its mutant is no more: left out")
    if choice.show_all:
        for mutant in sources.mutants.values():
            click.echo(f"{mutant.key}  {sources.place(mutant.key)}  {inert(mutant.change)}")
        return 0
    chosen = [sources.mutant(key) for key in choice.only]
    chosen = chosen or sample(list(sources.mutants.values()), choice.sample, seed)
    for key in choice.only:
        click.echo(sources.diff(key), nl=False)
    runner = _Runner(choice, store, sources, jobs)
    suites = suites_of(choice.target, whole, {mutant.module for mutant in chosen})
    drills = runner.sound_drills(_plans(choice))
    drills += runner.sound_suites(suites)
    finished = runner.run(drills, chosen)
    return _conclude(runner, seed, finished)


def _narrowed(target: Target, packages: Sequence[str]) -> Target:
    """Return ``target`` with those of its packages that ``packages`` name, all where none is named.
    Raises ``UsageError`` for a name that is none of them.
    """
    meant = []
    for name in packages:
        found = [each for each in target.packages if f".{each}".endswith(f".{name}")]
        if not found:
            known = ", ".join(target.packages)
            raise UsageError(f"--package {name}: expected a package of the target, of {known}")
        meant += found
    if not meant:
        return target
    reviews = tuple(
        review
        for review in target.equivalent
        if any(is_below(review.mutant.partition(":")[0], package) for package in meant)
    )
    return replace(target, packages=tuple(meant), equivalent=reviews)


def _plans(choice: MutantChoice) -> list[Plan]:
    return [load(path) for path in choice.plans] or reference_plans()


class _Runner:
    """The cells of one campaign: the sound store's, then the mutants'."""

    def __init__(
        self, choice: MutantChoice, store: RunStore, sources: Sources, jobs: int | None
    ) -> None:
        self.choice, self.store, self.sources = choice, store, sources
        self.began_s = time.monotonic()
        store.root.mkdir(parents=True, exist_ok=True)
        code = code_digest()
        self.ledger = Ledger.read(store.root / RESULTS_FILE, _code(sources, code), counts)
        self._work: Work = partial(drill, runs_dir=store.root, sources=sources, code=code)
        # Without the store: each worker imports its own, mutated.
        self._pool = pool_of(self._work, jobs=jobs)
        self._simulated = True
        self._announced = 0
        self.results: list[MutantResult] = []
        self.kills: dict[str, tuple[int, int]] = {}
        self.violated = False

    def sound_drills(self, plans: Sequence[Plan]) -> list[Drill]:
        """Drill the sound store: what is not valid there can't kill, and is left out. Raises
        ``HarnessError`` where nothing is left.
        """
        if gone := self.store.sweep({plan.name for plan in plans}, self._kept()):
            say(f"removed {gone} runs that were broken off")
        options = {SOUND: "counted"}
        cells = [Cell(plan=plan, options=options, limit_s=WALL_LIMIT_S) for plan in plans]
        self._simulated = all(map(is_simulated, plans))
        drills = []
        with closing(self._done(in_turn(cells))) as work:
            for plan, result in zip(plans, work, strict=True):
                if result.outcome is Outcome.VALID:
                    drills.append(sound_drill(plan, result))
                    continue
                self.violated |= result.outcome is Outcome.VIOLATION
                why = "; ".join(result.reasons)
                say(f"left out: {plan.name} is {result.outcome.value} on the sound store: {why}")
        if not drills:
            raise HarnessError("no drill is valid on the sound store: no kill would mean anything")
        say(f"{len(drills)} of {len(plans)} drills are valid on the sound store")
        return drills

    def sound_suites(self, suites: Mapping[str, tuple[Suite, Cell]]) -> list[Drill]:
        """Run tests on the sound store, as long as there is time for mutants: a suite of which one
        fails there, or that does not come to what it is for, can't kill, and is left out. Beside
        drills on real nodes none is run.
        """
        if not self._simulated:
            return []
        found = []
        cells = in_turn([cell for _, cell in suites.values()])
        with closing(self._done(self._in_time(cells))) as work:
            for (name, (suite, cell)), result in zip(suites.items(), work, strict=False):
                lines = decode(result.coverage)
                if result.outcome is not Outcome.VALID:
                    why = f"fail on the sound store: {result.reasons[0]}"
                elif not any(lines[module] for module in lines if suite.covers(module)):
                    why = "come to no line of theirs in the process of pytest"
                else:
                    found.append(sound_suite(suite, cell, result))
                    continue
                say(f"left out: {name} ({', '.join(suite.paths)}) {why}")
        return found

    def run(self, drills: Sequence[Drill], mutants: Sequence[Mutant]) -> bool:
        """Try ``mutants``; false where the user interrupted."""
        reviewed = [] if self.choice.only else [m for m in mutants if self._reviewed(m)]
        self.results += [MutantResult(key=each.key, fate=Fate.EQUIVALENT) for each in reviewed]
        left = [mutant for mutant in mutants if mutant not in reviewed]
        trials = Trials(
            left, drills, abreast=2 * self._pool.workers, limit_cpu_s=self.choice.limit_cpu_s
        )
        noted_s = time.monotonic()
        try:
            with closing(self._done(self._in_time(trials.choose))) as work:
                for result in work:
                    trials.take(result)
                    self._announce(trials)
                    if time.monotonic() - noted_s >= NOTE_EVERY_S:
                        noted_s = time.monotonic()
                        say(f"{len(trials.results)} of {len(left)} mutants tried")
        except KeyboardInterrupt:
            return False
        # An interrupted campaign, too, tells and counts what was decided.
        finally:
            self._announce(trials)
            self.kills = trials.kills()
        if missing := len(left) - len(trials.results):
            click.echo(f"the time is over: {missing} of {len(mutants)} mutants were not decided")
        return True

    def _in_time(self, choose: Choose) -> Choose:
        """Choose nothing more once the time is over."""
        budget_s = self.choice.budget_s
        end_s = math.inf if budget_s is None else self.began_s + budget_s
        return lambda: choose() if time.monotonic() < end_s else None

    def _done(self, choose: Choose) -> Generator[CellResult, None, None]:
        """Yield the results of the cells that ``choose`` returns. Raises ``HarnessError`` once the
        code is another than at the beginning.
        """
        # Real nodes are processes of their own, and drills on them are better off one at a time.
        results = (
            self._pool.results(choose, self.ledger)
            if self._simulated
            else in_this_process(self._work, choose, self.ledger)
        )
        with closing(results) as work:
            for result in work:
                if result.failure is Failure.STALE:
                    raise HarnessError("the code was changed meanwhile: begin again")
                yield self._tidied(result)

    def _tidied(self, result: CellResult) -> CellResult:
        """Remove the run of ``result``, unless it is a kill that is to be kept. Here, since a
        worker that was killed has left one, too.
        """
        if result.run and self.choice.keep_runs and fate_of(result) is Fate.VERDICT:
            return result
        if result.run and Path(result.run).is_dir():
            self.store.remove(RunDirectory(Path(result.run)))
        return replace(result, run="")

    def _reviewed(self, mutant: Mutant) -> bool:
        return self.sources.equivalent(mutant.key) is not None

    def _kept(self) -> set[str]:
        return {result.run for result in self.ledger.known.values()}

    def _announce(self, trials: Trials) -> None:
        """Print a line for each mutant that was decided since the last time."""
        for found in trials.results[self._announced :]:
            self._announced += 1
            self.results.append(found)
            place = self.sources.place(found.key)
            click.echo(inert(f"{found.fate.value}: {place}: {_why(found)}", LINE_CHARS))
            if found.run:
                click.echo(f"  firedrill replay {shlex.quote(found.run)}")


def _code(sources: Sources, code: str) -> str:
    """Return what results depend on beside their cells: ``code``, and the store that is mutated."""
    whole = sha256(code.encode())
    for module, (source, _) in sources.sources.items():
        whole.update(f"{module} {len(source)}\n{source}".encode())
    return whole.hexdigest()[:16]


def _why(found: MutantResult) -> str:
    if found.fate is Fate.VERDICT:
        only = " (nodes ended, nothing else)" if found.exit_only else ""
        return f"{', '.join(found.anomalies)}{only} in {found.drill}"
    if found.fate.killed:
        return f"{found.reason or 'its time was over'} in {found.drill}"
    if found.fate is Fate.UNREACHED:
        return "no drill comes there"
    unlike = f", {found.unlike} unlike the sound store's" if found.tried else ""
    unknown = f", {found.unknown} of them unknown" if found.unknown else ""
    tests = f"; its tests: {found.tests}" if found.tests else ""
    return f"{found.tried} drills{unlike}{unknown}{tests}"


def _conclude(runner: _Runner, seed: int, finished: bool) -> int:
    results = runner.results
    killed, counted = score(results, runner.sources.equivalents)
    fates = Counter(result.fate.value for result in results)
    for line in _summary(results, runner.sources):
        click.echo(line)
    share = f"{killed / counted:.1%}" if counted else "none"
    tests = fates[Fate.TESTS.value]
    by = f", {tests} of them by tests alone" if tests else ""
    click.echo(f"killed {killed} of {counted} that no review calls equivalent: {share}{by}")
    click.echo(f"this command took {time.monotonic() - runner.began_s:.0f} s")
    report = Report(
        seed=seed,
        killed=killed,
        counted=counted,
        fates=dict(fates),
        kills=runner.kills,
        mutants=tuple(results),
    )
    path = runner.store.root / RESULTS
    write_atomically(path, msgspec.json.format(msgspec.json.encode(report)))
    click.echo(f"results: {path}")
    if not finished:
        click.echo("interrupted: the same command goes on where it was")
    outcome = Outcome.VALID if killed >= runner.choice.at_least * counted else Outcome.HARNESS_ERROR
    if runner.violated:
        outcome = Outcome.VIOLATION
    return exit_code(outcome, interrupted=not finished)


def _summary(results: Sequence[MutantResult], sources: Sources) -> Iterator[str]:
    """Yield the survivors, then a table of fates by package."""
    for result in results:
        if result.fate in (Fate.SURVIVED, Fate.UNREACHED):
            change = sources.mutant(result.key).change
            yield inert(f"{result.fate.value}: {result.key}: {change}", LINE_CHARS)
    packages: dict[str, Counter[Fate]] = {}
    for result in results:
        package = result.key.partition(":")[0].rpartition(".")[0]
        packages.setdefault(package, Counter())[result.fate] += 1
    width = max(map(len, packages), default=0)
    yield f"{'':{width}}  " + "  ".join(fate.value for fate in Fate)
    for package in sorted(packages):
        yield _row(package, width, packages[package])
    total = sum(packages.values(), Counter[Fate]())
    yield _row("all", width, total)
    exits = sum(result.exit_only for result in results)
    cpu_s = [result.cpu_s for result in results if result.cpu_s]
    if cpu_s:
        yield (
            f"by the exit of a node alone: {exits}; {sum(cpu_s):.0f} s of a core, at most "
            f"{math.ceil(max(cpu_s))} for one mutant"
        )


def _row(name: str, width: int, counts: Mapping[Fate, int]) -> str:
    cells = (f"{counts.get(fate, 0):>{len(fate.value)}}" for fate in Fate)
    return f"{name:{width}}  {'  '.join(cells)}"
