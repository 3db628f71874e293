"""What a command and the child that judges for it tell each other: see ``cli.judging.analysis``."""

from __future__ import annotations

import enum

import msgspec

from checkers.engine.spark.options import SparkOptions
from harness.errors import AnalysisLost, FiredrillError, HarnessBug, HarnessError, UsageError
from harness.history.run_directory import BankRules
from harness.protocols.verdict import Verdict

FAMILIES: dict[str, type[FiredrillError]] = {
    cls.__name__: cls
    for cls in (UsageError, AnalysisLost, HarnessError, HarnessBug, FiredrillError)
}


class HistoryFile(msgspec.Struct, frozen=True, kw_only=True):
    """A history file of another tool, to be imported before it is judged: see ``import_run``."""

    path: str
    workload: str | None = None
    bank: BankRules | None = None


class JudgeOptions(msgspec.Struct, frozen=True, kw_only=True):
    """The judge's options. ``executor`` and ``search_limit`` ``None`` take the plan's, ``model``
    ``None`` the one that the run's system declares. ``explain_cost``: tell what each stage took.
    """

    executor: str | None = None
    model: str | None = None
    search_limit: int | None = None
    spark: SparkOptions = SparkOptions()
    explain_cost: bool = False


class Drawing(enum.StrEnum):
    """How the drawing of a report ended. A disk that refuses it is no failure of the judge's."""

    DONE = "done"
    REFUSED = "refused"
    FAILED = "failed"


class Export(msgspec.Struct, frozen=True, kw_only=True):
    """The history of a run in another form: ``edn``, ``jsonl``, or one table as CSV; into the file
    ``output``, or to stdout.
    """

    form: str
    output: str | None = None


class Request(msgspec.Struct, frozen=True, kw_only=True):
    """The child's task: import ``history``, judge as ``judge`` says, where they are given, then
    draw. A run that is not ``kept`` is gone with the command. ``crashed`` are kernels and checkers
    to leave out, and why; with ``one_by_one`` no two kernels run at the same time. Or, with
    ``export``, to write that and nothing else. The descriptor ``reply`` takes the replies; from
    ``further`` come other requests, a line each, if there are to be any.
    """

    root: str
    output: str | None = None
    reply: int
    further: int | None = None
    memory_bytes: int
    history: HistoryFile | None = None
    judge: JudgeOptions | None
    report: bool
    kept: bool = True
    crashed: dict[str, str] = {}
    one_by_one: bool = False
    export: Export | None = None
    cpu_s: int | None = None


class Reply(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One line from the child: a ``note`` for the user, a sentence on its ``progress``, the name of
    the kernel that it is ``at`` (empty: all have judged; ``several`` run at once), the file that it
    is ``opening`` (empty: it has), a result, or the ``error`` (its family, or the exception's name)
    that ended it. ``done``: it is the last one, and nothing but the process's end follows.
    ``findings`` are the verdict in the lines that a terminal shows, ``following`` those that name
    the next commands.
    """

    note: str = ""
    at: str | None = None
    several: bool = False
    progress: str = ""
    opening: str | None = None
    imported: bool = False
    verdict: Verdict | None = None
    findings: tuple[str, ...] = ()
    following: tuple[str, ...] = ()
    drawing: Drawing | None = None
    error: str = ""
    text: str = ""
    trace: str = ""
    done: bool = False
