"""The steps of an analysis, each in this process: recover, judge, draw, measure.

The child of ``cli.judging.analysis`` takes them one after another, and a campaign's worker those
that it needs; the command itself takes none (``cli.judging.judge``), since the run may be a
stranger's.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType

import msgspec

from cli.judging.child_messages import Drawing, JudgeOptions
from cli.judging.executor_choice import chosen_executor, planned_executor
from cli.judging.keep import keep_verdict
from cli.session import say
from harness.errors import FiredrillError, NotStored, UsageError
from harness.history.durable_files import READ_ONLY, copy_files
from harness.history.manifest import RUNNING, plan_drove, read_manifest
from harness.history.run_directory import RunDirectory
from harness.protocols.verdict import Verdict
from harness.scratch import lasting_scratch

BY_INDEX = "ordered by index alone, and nothing is said of durations"


def judge_here(
    run: RunDirectory,
    asked: JudgeOptions,
    say: Callable[[str], None] = say,
    crashed: Mapping[str, str] = MappingProxyType({}),
) -> Verdict:
    """Analyze ``run`` in this process and write its verdict, last and in one step.

    A run whose controller died is ``recovered`` first. See ``JudgeOptions`` for the defaults.
    Raises ``MalformedHistory`` for a directory without a history.
    """
    from checkers.engine.analyze import analyze

    run = recovered(run, say)
    chosen, why = chosen_executor(run, asked.executor or planned_executor(run))
    if chosen == "spark" and not asked.spark.local:
        why = f" on {asked.spark.master}{why}"
    say(f"judging {run.root.name} ({chosen}{why})")
    if chosen == "spark":
        from checkers.engine.spark.session import prepare

        # Its JVM starts beside the reading of the run, of which every file is summed.
        prepare(asked.spark)
    origin = read_manifest(run).origin
    if not isinstance(origin, msgspec.UnsetType) and not origin.real_time:
        say(f"the times in {origin.file} are missing or go back: its operations are {BY_INDEX}")
    unstored: list[NotStored] = []
    verdict = analyze(
        run,
        executor=chosen,
        model=asked.model,
        search_limit=asked.search_limit,
        spark=asked.spark,
        crashed=crashed,
        unstored=unstored.append,
    )
    keep_verdict(run, verdict, say, *unstored)
    return verdict


def recovered(run: RunDirectory, say: Callable[[str], None] = say) -> RunDirectory:
    """Recover ``run`` where its controller died, and return it. One that can only be read is
    recovered in a copy among this process's temporary files, whose results go where those of
    ``run`` would. Raises ``MalformedHistory`` and ``HarnessError`` as ``recover`` does.
    """
    if read_manifest(run).state != RUNNING:
        return run
    from harness.history.seal import recover

    say(f"{run.root.name} was not sealed: recovering what was written")
    try:
        recover(run, partition_of=_partition_of(run))
        return run
    except NotStored as error:
        cause = error.__cause__
        if not (isinstance(cause, OSError) and cause.errno in READ_ONLY):
            raise
    say(f"{run.root.name} can only be read: it is recovered in a copy, which is not kept")
    root = lasting_scratch("copy").path / run.root.name
    copy_files(run.root, root)
    copy = RunDirectory(root, run.output or run.root)
    recover(copy, partition_of=_partition_of(copy))
    return copy


def _partition_of(run: RunDirectory) -> Callable[[int], int | None] | None:
    """Return the planned system's mapping of keys to partitions; ``None`` where the plan or the
    system is not at hand. Only the attribution of losses to faults needs it: a history can be
    judged without.
    """
    from cli.plan_plugins import build_system
    from harness.plan import plan

    if not plan_drove(run, read_manifest(run)):
        return None
    try:
        return build_system(plan.load(run.plan)).partition_of
    except UsageError:
        return None


def draw_here(
    run: RunDirectory, say: Callable[[str], None] = say, *, judged: bool = True
) -> Drawing:
    """Write the report in this process; return how that went. A failure never touches the verdict
    of a run that was just ``judged``: it is reported. Where only the page was requested, the
    failure is raised.
    """
    from results.report.render import write_report

    try:
        write_report(run)
    except FiredrillError as error:
        if not judged:
            raise
        say(f"no report was written: {error}")
        return Drawing.REFUSED if isinstance(error, NotStored) else Drawing.FAILED
    except Exception as error:
        say(f"no report was written: unexpected {type(error).__name__}: {error}")
        return Drawing.FAILED
    return Drawing.DONE


def measure_here(run: RunDirectory, say: Callable[[str], None] = say) -> None:
    """Write the figures of the judged ``run`` beside its verdict, for comparisons and trends. A
    failure touches nothing else: it is reported, and a run without figures is measured later.
    """
    from results.compare.measure import keep_figures

    if not run.verdict.is_file():
        return
    try:
        keep_figures(run)
    except NotStored:
        return  # the verdict, on the same disk, was refused and reported
    except Exception as error:  # tables that no run of ours wrote hold anything
        say(f"no figures were kept: {type(error).__name__}: {error}")
