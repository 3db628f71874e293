"""``firedrill shrink``: the smallest plan that still fails as a run did."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import closing
from pathlib import Path
from tempfile import TemporaryDirectory

import attrs
import click
import msgspec

from harness.checking import Verdict
from harness.cli import duration
from harness.cli.ground import SIMULATED
from harness.cli.session import Session, runs_option, say
from harness.clock import substream
from harness.errors import FiredrillError, UsageError
from harness.faults import PlannedFault
from harness.history.files import write_atomically
from harness.outcome import Outcome
from harness.plan import MAX_SEED, Plan, dumps, load
from harness.rundir import RunDirectory
from nemesis.shrink import fewest, least
from results.store import RunStore

SHRUNK = "shrunk.toml"
SHRINK_LIMIT = "10m"
SIMULATED_TRIES, REAL_TRIES = 3, 3
# A plan is not made smaller than this: a cluster needs a moment to fail in.
LEAST_DURATION_S, LEAST_HOLD_S, LEAST_RATE_PER_S = 3.0, 0.5, 5.0
CALM_S = 1.0  # of the drive, after the last fault


class _OutOfTime(Exception):
    """The time is over; what was found by then stands."""


@attrs.frozen(kw_only=True)
class Trials:
    """Tries candidates until one fails in the way looked for.

    Each is tried under up to ``tries`` seeds, its own first: a fault that is left out shifts all
    that follows, and then the same seed may miss what another one still hits.
    """

    names: frozenset[str]
    tries: int
    store: RunStore
    ends_s: float
    made: list[int] = attrs.field(factory=list)

    def first(self, candidates: Sequence[Plan]) -> tuple[int, Plan] | None:
        """The place of the first candidate that fails, and the plan with the seed that did it."""
        for turn in range(self.tries):
            plans = [reseeded(plan, turn) for plan in candidates]
            places = self._failing(plans)
            if places:
                return min(places), plans[min(places)]
        return None

    def _failing(self, plans: Sequence[Plan]) -> list[int]:
        """The places of plans that fail; of simulated ones the first that is seen to."""
        if time.monotonic() >= self.ends_s:
            raise _OutOfTime
        self.made.append(len(plans))
        simulated = plans[0].cluster.provider == SIMULATED
        runs = self._simulated(plans) if simulated else self._real(plans)
        with closing(runs):  # type: ignore[type-var]
            for place, anomalies in runs:
                if self.names & frozenset(anomalies):
                    return [place]
        return []

    def _simulated(self, plans: Sequence[Plan]) -> Iterator[tuple[int, Collection[str]]]:
        from harness.cli.campaign import SEED_LIMIT_S, campaign
        from harness.cli.seeds import plan_key

        places = {plan_key(plan): place for place, plan in enumerate(plans)}
        limit_s = min(SEED_LIMIT_S, max(1.0, self.ends_s - time.monotonic()))
        with closing(campaign(plans, self.store.root, seed_limit_s=limit_s)) as results:  # type: ignore[type-var]
            for result in results:
                yield places[result.key], result.anomalies

    def _real(self, plans: Sequence[Plan]) -> Iterator[tuple[int, Collection[str]]]:
        from harness.cli import judging
        from harness.cli.wiring import run_plan
        from harness.progress import Silent
        from harness.stop import Stop

        for place, plan in enumerate(plans):
            try:
                run = run_plan(plan, self.store.root, Silent(), Stop())
                yield place, judging.judge(run, None).anomalies
            except UsageError:
                raise
            except FiredrillError as error:
                say(f"a trial came to nothing: {error}")
                yield place, ()


@click.command()
@click.argument("name", metavar="RUN", default="latest")
@runs_option
@click.option("--tries", type=click.IntRange(1, 100), help="Seeds (or repetitions) a candidate.")
@click.option(
    "--time-budget",
    callback=duration.seconds,
    default=SHRINK_LIMIT,
    show_default=True,
    metavar="TIME",
    help="For all trials together: 90s, 10m.",
)
@click.option("--out", type=click.Path(path_type=Path), help=f"The plan file ({SHRUNK} in RUN).")
@click.pass_obj
def shrink(
    session: Session, name: str, store: RunStore, tries: int | None, time_budget: float, out: Path
) -> int:
    """Find the smallest plan that fails as RUN did: the fewest faults, then the shortest holds,
    fewer clients, a lower rate, fewer keys, a shorter drive.

    Its output is a plan file. A simulated plan fails every time that it is run; a real cluster may
    not, so the plan is repeated at the end, and how often it failed is told.
    """
    run = store.resolve(name)
    session.run = run
    plan, names = load(run.plan), failures(run)
    simulated = plan.cluster.provider == SIMULATED
    usual = SIMULATED_TRIES if simulated else REAL_TRIES
    with TemporaryDirectory(prefix="firedrill-shrink-") as scratch:
        trials = Trials(
            names=names,
            tries=tries or usual,
            store=RunStore(Path(scratch)) if simulated else store,
            ends_s=time.monotonic() + time_budget,
        )
        small = shrunk(plan, trials)
        failed, repeated = confirmed(small, trials, 1 if simulated else trials.tries)
    path = out or run.root / SHRUNK
    write_atomically(path, dumps(small).encode())
    for line in told(plan, small, names):
        click.echo(line)
    click.echo(f"it failed in {failed} of {repeated} repetitions, after {sum(trials.made)} trials")
    click.echo(f"plan: {path}")
    return 0 if failed else Outcome.UNKNOWN.exit_code


def failures(run: RunDirectory) -> frozenset[str]:
    """The anomalies that decided against ``run``. Raises ``UsageError`` where there are none."""
    try:
        verdict = msgspec.json.decode(run.verdict.read_bytes(), type=Verdict)
    except FileNotFoundError as error:
        raise UsageError(f"{run.root.name} has no verdict ('firedrill check' makes one)") from error
    if not verdict.anomalies:
        raise UsageError(f"{run.root.name} broke no promise: there is nothing to shrink")
    return frozenset(verdict.anomalies)


def shrunk(plan: Plan, trials: Trials) -> Plan:
    """The smallest plan that was found before the time was over."""
    best = [plan]

    def of_faults(candidates: list[tuple[PlannedFault, ...]]) -> int | None:
        found = trials.first([with_schedule(best[0], faults) for faults in candidates])
        if found is None:
            return None
        best[0] = found[1]
        say(f"still fails with {len(best[0].nemesis.schedule)} faults")
        return found[0]

    def of_plans(candidates: list[Plan]) -> Plan | None:
        found = trials.first(candidates)
        if found is None:
            return None
        best[0] = found[1]
        return best[0]

    try:
        fewest(plan.nemesis.schedule, of_faults)
        least(best[0], smaller, of_plans)
    except (_OutOfTime, KeyboardInterrupt) as end:
        why = "the time is over" if isinstance(end, _OutOfTime) else "interrupted"
        say(f"{why}: this is the smallest plan that was found by then")
    return best[0]


def confirmed(plan: Plan, trials: Trials, times: int) -> tuple[int, int]:
    """How often ``plan`` failed of so many times that it was run again."""
    last = attrs.evolve(trials, tries=1, ends_s=float("inf"))
    return sum(last.first([plan]) is not None for _ in range(times)), times


def smaller(plan: Plan) -> list[Plan]:
    """``plan`` with less of one thing, each in turn, the most promising first."""
    ways: tuple[Callable[[Plan], Plan | None], ...] = (
        _shorter_drive,
        _fewer_clients,
        _lower_rate,
        _fewer_keys,
        _shorter_holds,
    )
    return [less for way in ways if (less := way(plan)) is not None]


def with_schedule(plan: Plan, faults: Sequence[PlannedFault]) -> Plan:
    """``plan`` with ``faults`` and no others."""
    nemesis = msgspec.structs.replace(plan.nemesis, mix=(), schedule=tuple(faults))
    return msgspec.structs.replace(plan, nemesis=nemesis)


def reseeded(plan: Plan, turn: int) -> Plan:
    """``plan`` as it is on turn 0, later under seeds that follow from its own."""
    if turn == 0:
        return plan
    seed = substream(plan.seed, "shrink", turn).randrange(MAX_SEED)
    return msgspec.structs.replace(plan, seed=seed)


def _shorter_drive(plan: Plan) -> Plan | None:
    last_s = max((fault.at_s + fault.hold_s for fault in plan.nemesis.schedule), default=0.0)
    least_s = max(LEAST_DURATION_S, last_s + CALM_S)
    duration_s = round(max(least_s, plan.drive.duration_s / 2), 3)
    return _driven(plan, duration_s=duration_s) if duration_s < plan.drive.duration_s else None


def _fewer_clients(plan: Plan) -> Plan | None:
    concurrency = plan.drive.concurrency // 2
    return _driven(plan, concurrency=concurrency) if concurrency >= 2 else None


def _lower_rate(plan: Plan) -> Plan | None:
    rate = plan.drive.rate_per_s
    if rate is None or rate / 2 < LEAST_RATE_PER_S:
        return None
    return _driven(plan, rate_per_s=rate / 2)


def _driven(plan: Plan, **changes: object) -> Plan:
    drive = msgspec.structs.replace(plan.drive, **changes)
    return msgspec.structs.replace(plan, drive=drive)


def _fewer_keys(plan: Plan) -> Plan | None:
    keys = plan.workload.options.get("key_count")
    if not isinstance(keys, int) or keys < 2:
        return None
    workload = msgspec.structs.replace(
        plan.workload, options=plan.workload.options | {"key_count": keys // 2}
    )
    return msgspec.structs.replace(plan, workload=workload)


def _shorter_holds(plan: Plan) -> Plan | None:
    halved = [
        msgspec.structs.replace(fault, hold_s=round(max(LEAST_HOLD_S, fault.hold_s / 2), 3))
        for fault in plan.nemesis.schedule
    ]
    return with_schedule(plan, halved) if tuple(halved) != plan.nemesis.schedule else None


def told(plan: Plan, small: Plan, names: Collection[str]) -> Iterator[str]:
    """What became of ``plan``, in lines."""
    before, after = plan.nemesis.schedule, small.nemesis.schedule
    yield f"still fails with {', '.join(sorted(names))}: {len(before)} faults became {len(after)}"
    for fault in after:
        yield f"  {fault.at_s:g} s: {fault.kind} of {fault.target} for {fault.hold_s:g} s"
    drive, less = plan.drive, small.drive
    yield (
        f"drive: {drive.duration_s:g} s became {less.duration_s:g} s, "
        f"{drive.concurrency} clients became {less.concurrency}"
    )
