"""One run as the command line makes it: displayed, stoppable, judged, reported, and
kept up or not.
"""

from __future__ import annotations

import asyncio
import contextlib
import enum
import sys
import time
from collections.abc import Awaitable, Callable

import attrs

from cli import streams
from cli.display import LoopTime, choose
from cli.environment import SIMULATED
from cli.judging import judge
from cli.live_status import StatusFile
from cli.remote_runs import RemoteRuns
from cli.run_pages import refresh_index
from cli.session import Session, say
from cli.signals import stopping
from harness.errors import FiredrillError, Interrupted
from harness.exit_codes import FAILED, Outcome, worst
from harness.history.run_directory import RunDirectory
from harness.plan.plan import Plan
from harness.run.progress import Progress
from harness.run.stop import Stop
from harness.text import long_duration
from results.store.store import RunStore


class Keep(enum.StrEnum):
    """When the cluster of a run stays up."""

    NEVER = "never"
    FAILED = "failed"
    ALWAYS = "always"


@attrs.frozen(kw_only=True)
class RunOptions:
    """The options of a run beside its plan. ``one_of_many``: the command makes others, too. Once it
    is judged it ``moves_to`` another store, unless its cluster is kept up.
    """

    report: bool = True
    keep: Keep = Keep.NEVER
    one_of_many: bool = False
    moves_to: RemoteRuns | None = None


class Budget:
    """The time for everything that a command does, from the creation of this object."""

    def __init__(self, length_s: float, now: Callable[[], float] = time.monotonic) -> None:
        self.length_s, self._now = length_s, now
        self._ends_s = now() + length_s

    @property
    def left_s(self) -> float:
        """Return the rest of the budget; never less than zero."""
        return max(0.0, self._ends_s - self._now())

    def stop(self) -> Stop:
        """Return a stop that requests the end when the budget is spent."""
        text = f"ended early: the time budget of {long_duration(self.length_s)} was spent"
        return Stop(self.left_s, text)


@attrs.frozen(kw_only=True)
class DrillResult:
    """The result of a run: its outcome, and whether its cluster is up."""

    run: RunDirectory
    outcome: Outcome
    kept: bool = False


def one(
    session: Session, plan: Plan, store: RunStore, options: RunOptions, budget: Budget | None = None
) -> DrillResult:
    """Make one run of ``plan`` and report its result. Raises ``FiredrillError``, ``Interrupted``
    for a signal: a run that the user ended is sealed, and not judged.
    """
    drill, stop = _Drill(session, options), budget.stop() if budget else Stop()
    directory = drill.drive(plan, store, stop)
    session.run = directory
    if drill.judged is None and stop.interrupted:
        refresh_index(store)
        if drill.kept:
            _tell_kept(directory, store)
        raise _unjudged("interrupted", directory)
    judged = drill.judged or drill.judge(directory)
    outcome = judged.outcome
    session.found(outcome)
    shown = None
    if options.moves_to is not None and not drill.kept:
        try:
            shown = _moved(directory, options.moves_to, judged)
            # The next commands would name the run where it is no more.
            judged = attrs.evolve(judged, following=())
        except FiredrillError as error:
            say(f"{error}; the run stays in {directory.root}")
            session.found(outcome := worst([outcome, Outcome.HARNESS_ERROR]))
        except KeyboardInterrupt:
            if directory.root.exists():
                say(f"the run is judged, and stays in {directory.root}")
            raise
    # The outcome is the last line.
    refresh_index(store)
    try:
        judge.announce(directory, judged, shown, one_of_many=options.one_of_many)
    # An ``OSError`` as well, with an exit code of its own: see ``cli.main.execute``.
    except BrokenPipeError:
        raise
    except OSError:  # stdout has lost its reader, but the exit code is still read
        reason = streams.refusal(sys.stdout) or "it can't be written"
        say(f"stdout: {reason}; {judge.last_line(directory, outcome, judged.drawn)}")
        outcome = worst([outcome, Outcome.HARNESS_ERROR])
    if drill.kept:
        _tell_kept(directory, store)
    return DrillResult(run=directory, outcome=outcome, kept=drill.kept)


@attrs.define
class _Drill:
    """One run in progress. ``judged`` is set where it was judged while its cluster was up."""

    session: Session
    options: RunOptions
    judged: judge.Judgement | None = None
    kept: bool = False
    begun: RunDirectory | None = None
    status: StatusFile | None = None

    def drive(self, plan: Plan, store: RunStore, stop: Stop) -> RunDirectory:
        """Run everything up to the sealed history; with ``keep`` up to the verdict."""
        from cli.wiring import run_plan

        axis = LoopTime() if plan.cluster.provider == SIMULATED else None
        with (
            choose(sys.stderr, plan.drive.duration_s, axis=axis) as display,
            StatusFile(display.tally) as self.status,
        ):
            hint = (
                "what the run left is removed in the background; "
                f"'firedrill cleanup --runs-dir {store.root}' does it now"
            )
            keeping = None if self.options.keep is Keep.NEVER else self._keeping(display, stop)
            try:
                with stopping(stop, display.note, hint):
                    return run_plan(plan, store.root, display, stop, keeping, begun=self._begun)
            except FiredrillError as error:
                self._broke_off(store)
                interrupted = stop.cut_short and not stop.reason
                if interrupted and not isinstance(error, Interrupted):
                    raise Interrupted(f"interrupted: {error}") from error
                raise
            except Exception:
                self._broke_off(store)
                raise

    def judge(
        self, run: RunDirectory, interrupted: Callable[[], bool] = lambda: False
    ) -> judge.Judgement:
        """Return the verdict, and draw the report if requested. Raises ``Interrupted`` at Ctrl-C,
        and soon after ``interrupted`` returns true.
        """
        try:
            return judge.judge(run, None, report=self.options.report, interrupted=interrupted)
        except (KeyboardInterrupt, Interrupted) as error:
            raise _unjudged("interrupted while judging", run) from error

    def _keeping(
        self, display: Progress, stop: Stop
    ) -> Callable[[RunDirectory, bool], Awaitable[bool]]:
        async def keep(run: RunDirectory, broke_off: bool) -> bool:
            failed = broke_off
            if not broke_off and not stop.interrupted:
                display.phase("judge")
                with contextlib.suppress(Interrupted):
                    # On a thread: the links of the cluster may live on this loop, where signals
                    # are heard, too.
                    self.judged = await asyncio.to_thread(self.judge, run, lambda: stop.interrupted)
                    failed = self.judged.outcome in FAILED
            self.kept = self.options.keep is Keep.ALWAYS or (failed and not stop.interrupted)
            return self.kept

        return keep

    def _begun(self, run: RunDirectory) -> None:
        self.begun = run
        if self.status is not None:
            self.status.run = run

    def _broke_off(self, store: RunStore) -> None:
        """Remember the run that this command began, if it came that far."""
        self.session.run = self.begun if self.begun and self.begun.root.is_dir() else None
        if self.kept and self.session.run:
            _tell_kept(self.session.run, store)


def _moved(run: RunDirectory, there: RemoteRuns, judged: judge.Judgement) -> str:
    """Move ``run``; return the address of its report, or its own. Raises ``FiredrillError``."""
    say(f"moving the run to {there.address}")
    address = there.move(run)
    return f"{address}/{run.report.name}" if judged.drawn else address


def _unjudged(how: str, run: RunDirectory) -> Interrupted:
    return Interrupted(f"{how}: the run is sealed; 'firedrill check {run.root}' judges it")


def _tell_kept(run: RunDirectory, store: RunStore) -> None:
    name, where = run.root.name, f"--runs-dir {store.root}"
    at = f"{where} {name} NODE"
    say(f"the cluster is still up: firedrill shell {at}, firedrill logs {at}")
    say(f"firedrill cleanup {where} {name} takes it down")
