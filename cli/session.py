"""The state of one invocation of the command line, from command to handler."""

from __future__ import annotations

import contextlib
import functools
import os
import re
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar, cast

import attrs
import click
from click.shell_completion import CompletionItem

from checkers.engine.spark.hadoop import is_remote
from checkers.engine.spark.options import LOCAL, SparkOptions
from cli.judging.resource_limits import LimitOptions
from cli.quantities import seconds
from cli.remote_runs import RemoteRuns
from harness import plugins
from harness.errors import FiredrillError, HarnessBug, HarnessError, Interrupted, UsageError
from harness.exit_codes import Outcome, worst
from harness.history.durable_files import write_atomically
from harness.history.run_directory import RunDirectory
from harness.text import inert
from results.store.store import DEFAULT_ROOT, LATEST, RunStore

RUNS_VARIABLE = "FIREDRILL_RUNS_DIR"
TRACEBACK_FILE = "traceback.txt"
SENTENCE_CHARS = 2000  # an error names files and reasons; past this it is a dump

C = TypeVar("C", bound=Callable[..., Any])


@attrs.define
class Session:
    """``run`` is the run directory at hand, once there is one: tracebacks are kept in it.
    ``outcome`` is the worst finding, for an exit code that holds also where no output could be
    written.
    """

    debug: bool = False
    run: RunDirectory | None = None
    outcome: Outcome | None = None

    def found(self, outcome: Outcome) -> None:
        """Remember ``outcome``, unless a worse one was found before."""
        self.outcome = outcome if self.outcome is None else worst([outcome, self.outcome])

    def keep_traceback(self, error: BaseException) -> Path | None:
        """Write the traceback into the run directory; return its path, if that was possible."""
        if self.run is None or not self.run.root.is_dir():
            return None
        path = (self.run.output or self.run.root) / TRACEBACK_FILE
        text = "".join(traceback.format_exception(error))
        try:
            # It may hold names of files that are no text (surrogates), which UTF-8 refuses.
            write_atomically(path, text.encode("utf-8", "backslashreplace"))
        except HarnessError:  # a full disk is often the error itself
            return None
        return path


def say(text: str) -> None:
    """Print one line on stderr. A closed stderr ends no work."""
    with contextlib.suppress(OSError):
        click.echo(f"firedrill: {inert(text, SENTENCE_CHARS)}", err=True)


def broken(session: Session, error: Exception) -> Outcome:
    """Report the error that broke one run of many: the others go on all the same."""
    if isinstance(error, Interrupted):
        say(str(error))
        return Outcome.UNKNOWN
    if isinstance(error, FiredrillError) and not isinstance(error, HarnessBug):
        say(str(error))
    else:
        where = session.keep_traceback(error) or "nowhere: there is no run directory"
        say(f"unexpected {type(error).__name__}: {error} (the traceback is in {where})")
    return Outcome.HARNESS_ERROR


def runs_option(command: C) -> C:
    """``--runs-dir``: which store a command works on, given to it as ``store``."""
    return _runs_dir(_store, "Directory of run directories.")(command)


def anywhere_option(command: C) -> C:
    """As ``runs_option``; it may also be an address in a store that Hadoop reads: then ``store`` is
    a ``RemoteRuns``.
    """
    return _runs_dir(
        _store_anywhere,
        "Directory of run directories, here or in a store that Hadoop reads (hdfs://HOST/DIR, "
        "s3a://BUCKET/DIR).",
    )(command)


def _runs_dir(
    store_of: Callable[[click.Context, click.Parameter, str], object], told: str
) -> Callable[[C], C]:
    return click.option(
        "--runs-dir",
        "store",
        envvar=RUNS_VARIABLE,
        default=str(DEFAULT_ROOT),
        show_default=True,
        callback=store_of,
        help=told,
    )


def _store_anywhere(
    context: click.Context, option: click.Parameter, value: str
) -> RunStore | RemoteRuns:
    if is_remote(value):
        return RemoteRuns(value.rstrip("/"))
    return _store(context, option, value)


def _store(_context: click.Context, _option: click.Parameter, value: str) -> RunStore:
    if is_remote(value):
        # As a path of this machine it would be one, beginning with a directory "hdfs:".
        raise click.BadParameter(
            f"expected a directory of this machine (got {value!r}, an address in another store, "
            "which 'run', 'runs', 'check', 'report' and 'doctor' take)"
        )
    if Path(value).exists() and not Path(value).is_dir():
        raise click.BadParameter(f"expected a directory (got the file {value!r})")
    return RunStore(Path(value))


class RunName(click.types.StringParamType):
    """The type of a RUN argument: a path, an identifier or its beginning, or "latest". A shell that
    completes is told the runs of the store, the newest first.
    """

    name = "run"

    def shell_complete(
        self, ctx: click.Context, param: click.Parameter, incomplete: str
    ) -> list[CompletionItem]:
        """See ``click.ParamType``; where no run fits, the shell completes a path."""
        store = ctx.params.get("store") or RunStore()
        if isinstance(store, RemoteRuns):
            return []  # to ask there takes seconds
        names = (LATEST, *(run.root.name for run in reversed(store.runs())))
        found = [CompletionItem(name) for name in names if name.startswith(incomplete)]
        return found or [CompletionItem(incomplete, type="file")]


class NodeName(click.types.StringParamType):
    """The type of a NODE argument behind a RUN. A shell that completes is told the run's nodes."""

    name = "node"

    def shell_complete(
        self, ctx: click.Context, param: click.Parameter, incomplete: str
    ) -> list[CompletionItem]:
        """See ``click.ParamType``; of no run, or one without a plan, there are none."""
        from harness.plan.plan import load, machine_names

        store = ctx.params.get("store") or RunStore()
        try:
            names = machine_names(load(store.resolve(ctx.params.get("run") or "").plan))
        except FiredrillError:
            return []
        return [CompletionItem(name) for name in names if name.startswith(incomplete)]


class PluginName(click.types.StringParamType):
    """The type of an option that names a plug-in of ``group``, which a shell completes."""

    def __init__(self, group: str) -> None:
        self.group = group

    def shell_complete(
        self, ctx: click.Context, param: click.Parameter, incomplete: str
    ) -> list[CompletionItem]:
        """See ``click.ParamType``."""
        names = plugins.names(self.group)
        return [CompletionItem(name) for name in names if name.startswith(incomplete)]


class PluginNames(PluginName):
    """The type of an option that names plug-ins of ``group`` with commas between them."""

    def shell_complete(
        self, ctx: click.Context, param: click.Parameter, incomplete: str
    ) -> list[CompletionItem]:
        """See ``click.ParamType``; a name that stands there already is not told again."""
        named, comma, begun = incomplete.rpartition(",")
        taken = named.split(",")
        found = super().shell_complete(ctx, param, begun)
        return [CompletionItem(named + comma + x.value) for x in found if x.value not in taken]


class PlanFile(click.Path):
    """The type of a PLAN argument: a path, or ``-`` for stdin. No name is no path, which would mean
    this directory.
    """

    def __init__(self) -> None:
        super().__init__(path_type=Path)

    def convert(
        self,
        value: str | os.PathLike[str],
        param: click.Parameter | None,
        ctx: click.Context | None,
    ) -> Any:  # noqa: ANN401 (as click's)
        """Raises ``click.BadParameter``."""
        if value == "":
            self.fail("expected the path of a plan (got an empty name)", param, ctx)
        return super().convert("/dev/stdin" if value == "-" else value, param, ctx)


def executor_option(command: C) -> C:
    """``--executor``: where the checkers run."""
    return click.option(
        "--executor",
        type=click.Choice(["auto", "spark", "local"]),
        help="Check on Spark or in this process; the verdict is the same. auto takes this process "
        "for small histories (default: the plan's).",
    )(command)


_HOST = r"([^\s:/,\[\]]+|\[[0-9a-fA-F:.]+\])"
_MASTER = re.compile(
    r"local(\[([1-9]\d{0,4}|\*)(, *[1-9]\d{0,4})?\])?"
    rf"|spark://{_HOST}:\d{{1,5}}(,{_HOST}:\d{{1,5}})*|yarn|k8s://\S+"
)


def spark_options(command: C) -> C:
    """``--spark-master`` and what belongs to it, given to a command as ``spark``: ``None`` where
    none of them is given.
    """

    @click.option(
        "--spark-master",
        metavar="URL",
        help="Judge on this master of Spark's (local[2], spark://HOST:7077, yarn, k8s://...) "
        "instead of all cores of this machine.",
    )
    @click.option(
        "--spark-environment",
        metavar="FILE",
        help="Send this packed environment with the job, to workers that have Python and nothing "
        "of firedrill; it is made where there is no such file.",
    )
    @click.option(
        "--spark-conf",
        "spark_conf",
        metavar="KEY=VALUE",
        multiple=True,
        help="A setting of Spark's (any number of times).",
    )
    @click.option("--spark-ui", is_flag=True, help="Serve Spark's own pages on the loopback.")
    @functools.wraps(command)
    def on_spark(
        *args: Any,  # noqa: ANN401
        spark_master: str | None,
        spark_environment: str | None,
        spark_conf: tuple[str, ...],
        spark_ui: bool,
        **kwargs: Any,  # noqa: ANN401
    ) -> Any:  # noqa: ANN401
        given = spark_master is not None or spark_environment or spark_conf or spark_ui
        options = _of_spark(spark_master, spark_environment, spark_conf, spark_ui)
        return command(*args, spark=options if given else None, **kwargs)

    return cast(C, on_spark)


def _of_spark(
    master: str | None, environment: str | None, conf: tuple[str, ...], ui: bool
) -> SparkOptions:
    if master is not None and not _MASTER.fullmatch(master):
        expected = "local, local[N], local[*], spark://HOST:PORT, yarn or k8s://https://HOST:PORT"
        raise UsageError(f"--spark-master: expected {expected} (got {master!r})")
    settings = []
    for text in conf:
        name, equals, value = text.partition("=")
        if not equals or not name:
            raise UsageError(f"--spark-conf: expected KEY=VALUE (got {text!r})")
        settings.append((name, value))
    options = SparkOptions(
        master=master or LOCAL, environment=environment, conf=tuple(settings), ui=ui
    )
    if ui and not options.local:
        raise UsageError(
            f"--spark-ui: expected a local master, since on {options.master} these pages would be "
            "open to the cluster's network; the master has its own"
        )
    return options


def limits_options(command: C) -> C:
    """``--memory-mib`` and ``--time-limit``: the limits of judging, given to a command as
    ``limits``.
    """

    @click.option(
        "--memory-mib",
        type=click.IntRange(1),
        metavar="MIB",
        help="Memory for each process of the analysis (grows with the run when not given).",
    )
    @click.option(
        "--time-limit",
        callback=seconds,
        metavar="TIME",
        help="Time for the analysis: 90s, 30m, 2h (grows with the run when not given).",
    )
    @functools.wraps(command)
    def limited(
        *args: Any,  # noqa: ANN401
        memory_mib: int | None,
        time_limit: float | None,
        **kwargs: Any,  # noqa: ANN401
    ) -> Any:  # noqa: ANN401
        limits = LimitOptions(memory_mib=memory_mib, time_s=time_limit)
        return command(*args, limits=limits, **kwargs)

    return cast(C, limited)
