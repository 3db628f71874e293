"""Shrinking of one run: the smallest plan with the same failure, written as soon as it is found."""

from __future__ import annotations

import textwrap
import time
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from pathlib import Path

import attrs

from cli.environment import SIMULATED
from cli.session import say
from cli.shrinking.candidates import beginnings, smaller, with_schedule
from cli.shrinking.shrink_trials import Failing, OutOfTime, Trials
from cli.signals import unwinding
from harness.campaigns.cell import CRASHES
from harness.campaigns.rates import METHOD, between
from harness.errors import FiredrillError, Interrupted, MalformedHistory, UsageError
from harness.history.durable_files import write_atomically
from harness.history.run_directory import RunDirectory
from harness.plan.plan import Plan, dumps, load
from harness.protocols.consistency_models import OF_CLAIMS
from harness.protocols.faults import PlannedFault
from harness.protocols.verdict import read_verdict
from harness.scratch import scratch_directory
from nemesis.delta_debugging import fewest, least
from results.store.store import RunStore

SHRUNK = "shrunk.toml"
REAL_REPETITIONS = 5
HEAD_CHARS = 100
NOT_REPEATED = "It was not repeated, so that nothing is known of how often it fails."


@attrs.frozen(kw_only=True)
class Shrunk:
    """The result of shrinking ``plan``: ``small``, which failed with ``names`` in ``failed``
    of ``times`` repetitions, after so many ``trials`` in ``took_s``; ``counted`` says the former in
    words.
    """

    plan: Plan
    small: Plan
    names: frozenset[str]
    failed: int
    times: int
    trials: int
    took_s: float

    @property
    def counted(self) -> str:
        """How often it failed, and what that says of the next run."""
        exact = self.plan.cluster.provider == SIMULATED
        return confidence(self.failed, self.times, exact=exact)


def shrink_run(
    run: RunDirectory,
    names: frozenset[str],
    *,
    budget_s: float,
    tries: int = 1,
    times: int | None = None,
    jobs: int | None = None,
    store: RunStore | None = None,
    path: Path | None = None,
) -> Shrunk:
    """Shrink the plan of ``run`` to the smallest that still fails with one of ``names``, the same
    in every step, write it to ``path`` (in the run by default), and repeat it ``times``. Trials on
    real nodes stay in ``store``. Raises ``FiredrillError``; ``Interrupted`` for a signal.
    """
    plan = load(run.plan)
    simulated = plan.cluster.provider == SIMULATED
    began_s = time.monotonic()
    best = Best(path=path or run.root / SHRUNK, run=run.root.name, plan=plan, names=names)
    with best.told_of(), unwinding(), scratch_directory("shrink") as scratch:
        trials = Trials(
            names=names,
            tries=tries,
            # A simulated trial can be made again at any time; one on real nodes can't, so its run
            # stays.
            store=RunStore(scratch.path) if simulated or store is None else store,
            ends_s=began_s + budget_s,
            jobs=jobs,
        )
        shrink_into(best, trials)
        took_s, runs = time.monotonic() - began_s, len(trials.ledger.known)
        best.write(NOT_REPEATED)
        times = times or (1 if simulated else REAL_REPETITIONS)
        failed = attrs.evolve(trials, names=best.names).times(best.small, times)
    found = Shrunk(
        plan=plan,
        small=best.small,
        names=best.names,
        failed=failed,
        times=times,
        trials=runs,
        took_s=took_s,
    )
    best.write(found.counted)
    return found


@attrs.define(kw_only=True)
class Best:
    """The smallest plan that was found so far: ``small`` for ``plan``, whose run is ``run``.

    Each is written to ``path`` as soon as it is found: on real nodes it took hours, and the second
    signal, a daemon that went away or a machine that stops ends this process without another word.
    """

    path: Path
    run: str
    plan: Plan
    names: frozenset[str]
    small: Plan = attrs.field(init=False)
    written: bool = False

    def __attrs_post_init__(self) -> None:
        self.small = self.plan

    def found(self, failing: Failing) -> None:
        """Take its plan for the smallest, and keep it. What it did not fail with is no longer
        looked for: the last plan fails with a name that every one before it did. Raises
        ``HarnessError``.
        """
        self.small, self.names = failing.plan, failing.names
        self.write(NOT_REPEATED)

    def write(self, counted: str) -> None:
        """Write the plan; ``counted`` tells how often it failed. Raises ``HarnessError``."""
        lines = [
            f"Shrunk from the run {self.run}.",
            *differences(self.plan, self.small, self.names),
        ]
        write_atomically(self.path, (head([*lines, counted]) + dumps(self.small)).encode())
        self.written = True

    @contextmanager
    def told_of(self) -> Iterator[None]:
        """Say where the plan is if the block is left by an exception. Raises ``Interrupted`` for
        a signal.
        """
        kept = f"the smallest plan that was found by then is {self.path}"
        try:
            yield
        except KeyboardInterrupt as error:
            raise Interrupted(f"interrupted{f': {kept}' * self.written}") from error
        except FiredrillError:
            if self.written:
                say(kept)
            raise


def failures(run: RunDirectory, wanted: Collection[str] = ()) -> frozenset[str]:
    """Return the failures that a smaller plan must show: the anomalies that decided against
    ``run``, or those ``wanted`` of them. Raises ``UsageError`` where there are none.
    """
    try:
        verdict = read_verdict(run)
    except MalformedHistory as error:
        raise UsageError(f"{error} ('firedrill check' makes it anew)") from error
    if verdict is None:
        raise UsageError(f"{run.root.name} has no verdict ('firedrill check' makes one)")
    found = frozenset(verdict.anomalies)
    if not found:
        raise UsageError(f"{run.root.name} broke no promise: there is nothing to shrink")
    for name in wanted:
        if name not in found:
            known = ", ".join(sorted(found))
            raise UsageError(f"--anomaly: expected one of {known} (got {name!r})")
    # A node's exit or standstill has many causes, and so has a message of the store's own that an
    # oracle caught: what clients saw is the failure, as a checker of one's own finds it.
    return frozenset(wanted) or found - CRASHES - OF_CLAIMS or found - CRASHES or found


def shrink_into(best: Best, trials: Trials) -> None:
    """Make ``best`` the smallest plan that can be found within the time. Raises what a trial
    raises, and ``KeyboardInterrupt``.
    """

    def first(candidates: list[Plan], tries: int | None = None) -> Failing | None:
        found = attrs.evolve(trials, names=best.names).first(candidates, tries=tries)
        if found is not None:
            best.found(found)
        return found

    def of_faults(candidates: list[tuple[PlannedFault, ...]]) -> int | None:
        found = first([with_schedule(best.small, faults) for faults in candidates])
        if found is None:
            return None
        say(f"still fails with {counted_faults(best.small)}")
        return found.place

    def of_plans(candidates: list[Plan]) -> Plan | None:
        found = first(candidates)
        return None if found is None else found.plan

    try:
        # Under its own seed alone: only with that does a shorter run begin as this one did.
        if first(beginnings(best.plan), tries=1):
            length_s = best.small.drive.duration_s
            say(f"still fails in {length_s:g} s with {counted_faults(best.small)}")
        fewest(best.small.nemesis.schedule, of_faults)
        least(best.small, smaller, of_plans)
        # What is smaller may need fewer of them.
        fewest(best.small.nemesis.schedule, of_faults)
    except OutOfTime:
        say("the time is over: this is the smallest plan that was found by then")


def counted_faults(plan: Plan) -> str:
    """Format the number of faults of ``plan``."""
    count = len(plan.nemesis.schedule)
    return "1 fault" if count == 1 else f"{count or 'no'} faults"


def differences(plan: Plan, small: Plan, names: Collection[str]) -> Iterator[str]:
    """Describe the result for ``plan``, in lines."""
    count, left = len(plan.nemesis.schedule), len(small.nemesis.schedule)
    fewer = f"{counted_faults(plan)} became {left}" if count else "there were no faults in its plan"
    yield f"still fails with {' or '.join(sorted(names))}: {fewer}"
    for fault in small.nemesis.schedule:
        yield f"  {fault.at_s:g} s: {fault.kind} of {fault.target} for {fault.hold_s:g} s"
    drive, less = plan.drive, small.drive
    changes = [
        (drive.duration_s, less.duration_s, "s of drive"),
        (drive.concurrency, less.concurrency, "clients"),
        (drive.rate_per_s, less.rate_per_s, "transactions a second"),
        (plan.cluster.nodes, small.cluster.nodes, "nodes"),
    ]
    for was, now, what in changes:
        if was is not None and now is not None and was != now:
            yield f"  {was:g} {what} became {now:g}"
    for name, owner, other in (
        ("workload", plan.workload, small.workload),
        ("system", plan.system, small.system),
    ):
        for key, value in other.options.items():
            if owner.options.get(key) != value:
                yield f"  {name}.{key} became {value}"
    for key in sorted(plan.cluster.options.keys() - small.cluster.options.keys()):
        yield f"  without cluster.options.{key}"


def confidence(failed: int, times: int, *, exact: bool) -> str:
    """Describe the failure rate of the next run that ``failed`` of ``times`` repetitions imply."""
    text = f"it failed in {failed} of {times} repetitions"
    if exact:
        return text if failed < times else f"{text}; the same code fails every time"
    return f"{text}: {between(failed, times)} of its runs fail ({METHOD})"


def head(lines: Collection[str]) -> str:
    """Format ``lines`` as the comment that begins a plan file."""
    # Blanks are not dropped, so that lines on faults keep their indent.
    wrapped = (
        part
        for line in lines
        for part in textwrap.wrap(
            line, HEAD_CHARS - 2, subsequent_indent="  ", drop_whitespace=False
        )
    )
    return "".join(f"# {part}\n" for part in wrapped) + "\n"
