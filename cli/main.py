"""The command line: its commands, and the one place where an error becomes an exit code.

Exit codes are those of ``harness.exit_codes``: the exit codes of Python and click (1 and 2) would
read as a verdict here.
"""

from __future__ import annotations

import atexit
import contextlib
import errno
import os
import resource
import sys
import traceback
from collections.abc import Sequence
from importlib import import_module
from typing import NamedTuple

import click

from cli import streams
from cli.address_limit import no_room
from cli.session import RUNS_VARIABLE, Session, say
from cli.signals import ignore_signals, interrupt_on_signals, leave_on_signals
from harness import plugins
from harness.errors import FiredrillError, HarnessBug, HarnessError, Interrupted, UsageError
from harness.exit_codes import EXIT_INTERRUPTED, EXIT_NO_READER, EXIT_USAGE, Outcome
from harness.scratch import sweep

EXIT_HARNESS_ERROR = Outcome.HARNESS_ERROR.exit_code
NAME_SHOWN = 60  # characters of a name that is too long
COMPLETION = "_FIREDRILL_COMPLETE"  # click's variable: a shell asks for the words that fit

EPILOG = """\b
Exit codes: 0 valid, 1 violation, 2 unknown, 3 regression,
130 interrupted, 141 output not read, 254 misuse (plan, flags, history),
255 harness error."""


def _tell_version(context: click.Context, _option: click.Parameter, wanted: bool) -> None:
    # Shell completion parses without acting.
    if wanted and not context.resilient_parsing:
        click.echo(f"firedrill, version {plugins.own_version()}")
        context.exit()


class _Listed(NamedTuple):
    """A command in the list: its module and attribute, and a summary that 80 columns hold."""

    where: str
    summary: str


COMMANDS = {
    "run": _Listed("cli.run:run", "Run one drill and judge it."),
    "plan": _Listed("cli.plan_preview:plan_command", "Say what a plan comes to, and run nothing."),
    "list": _Listed("cli.listing:list_command", "List what a plan may name."),
    "new": _Listed("cli.new:new", "Write a package with a plug-in of your own."),
    "sim": _Listed("cli.sim:sim", "Simulate a plan under many seeds and judge each."),
    "campaign": _Listed("cli.campaign:campaign", "Run a matrix of cells, riskiest first."),
    "nightly": _Listed(
        "cli.nightly:nightly", "Run a campaign as a night, and compare it with the last one."
    ),
    "compare": _Listed(
        "cli.compare:compare", "Compare runs with others: findings, figures, faults."
    ),
    "trend": _Listed("cli.trend:trend", "Show figures and findings over all nights."),
    "explore": _Listed("cli.explore:explore", "Search simulated runs, guided by what they reach."),
    "crash-points": _Listed(
        "cli.crash_points:crash_points", "Simulate a plan with a crash at each of its crash points."
    ),
    "selftest": _Listed("cli.selftest:selftest", "Hunt every planted bug of the reference store."),
    "replay": _Listed("cli.replay:replay", "Drive the plan of a run again, into a new run."),
    "shrink": _Listed("cli.shrink:shrink", "Find the smallest plan that fails as a run did."),
    "check": _Listed("cli.check:check", "Judge a run again, or a history recorded by Jepsen."),
    "report": _Listed("cli.report:report", "Write the report of a run again."),
    "export": _Listed("cli.export:export", "Write the history of a run as EDN, JSON lines or CSV."),
    "conform": _Listed(
        "cli.conform:conform_command", "Check a store's adapter against what drills rely on."
    ),
    "doctor": _Listed("cli.doctor:doctor", "Say what this machine can do, and what adds the rest."),
    "shell": _Listed("cli.node_shell:shell", "Open a shell on a node of a run."),
    "logs": _Listed("cli.node_shell:logs", "Print what a node of a run logged."),
    "sql": _Listed("cli.sql:sql", "Let a node of a run carry out statements."),
    "runs": _Listed("cli.runs:runs", "List, tag, archive and prune the runs of the store."),
    "serve": _Listed("cli.serve:serve", "Show the store in a browser."),
    "status": _Listed("cli.status:status", "Say how far a run is."),
    "cleanup": _Listed("cli.cleanup:cleanup", "Remove what runs left on this machine."),
}
"""The commands: only the one that runs is imported."""


class Commands(click.Group):
    """Imports a command when it is asked for."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """See ``click.Group``."""
        return sorted(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """See ``click.Group``."""
        if cmd_name not in COMMANDS:
            return None
        module, _, name = COMMANDS[cmd_name].where.partition(":")
        command: click.Command = getattr(import_module(module), name)
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """See ``click.Group``."""
        with formatter.section("Commands"):
            formatter.write_dl([(name, COMMANDS[name].summary) for name in self.list_commands(ctx)])

    def invoke(self, ctx: click.Context) -> object:
        """See ``click.Group``. Raises ``HarnessBug`` for a pipe that broke and is none of ours."""
        try:
            return super().invoke(ctx)
        except BrokenPipeError as error:
            # click leaves without a word after any of them.
            if streams.unread():
                raise
            raise HarnessBug(f"{type(error).__name__}: {error}") from error


@click.group(
    cls=Commands,
    epilog=EPILOG,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 120},
)
@click.option(
    "--version",
    is_flag=True,
    is_eager=True,
    expose_value=False,
    callback=_tell_version,
    help="Show the version and exit.",
)
@click.option("--debug", is_flag=True, help="Show the traceback of an error.")
@click.pass_obj
def cli(session: Session, debug: bool) -> None:
    """Break a replicated store on purpose, and say which promises held."""
    session.debug = debug


def main() -> None:
    """Run the command line of this process and exit with its code."""
    atexit.register(ignore_signals)  # the first that is registered is the last to be called
    interrupt_on_signals()
    streams.complete()
    streams.bound_warnings()
    sweep()
    if sys.stdout is None:
        say("stdout is closed: the findings could not be printed")
        sys.exit(EXIT_HARNESS_ERROR)
    with plugins.keeping_alive():
        code = execute(sys.argv[1:])
    plugins.decide_exit_code(code)
    leave_on_signals(code)
    streams.settle()
    sys.exit(code)


def execute(arguments: Sequence[str]) -> int:
    """Run one command line and return its exit code; raises nothing, and shows no traceback unless
    requested.
    """
    session = Session()
    try:
        _require_text(arguments)
        # Standalone, click would exit with its own 1 and 2, which are verdicts here.
        code = cli.main(
            list(arguments),
            prog_name="firedrill",
            standalone_mode=False,
            obj=session,
            color=False if "NO_COLOR" in os.environ else None,
        )
        # What is buffered fails only when it is flushed: here that still becomes an exit code.
        sys.stdout.flush()
    except click.exceptions.Abort:
        return _failed(session, Interrupted("interrupted"))
    except click.ClickException as error:
        error.show()
        return EXIT_USAGE
    except (BrokenPipeError, SystemExit) as error:
        # Only click's own end, of a completion that a shell asked for: the code of a plug-in that
        # ends the process would be taken for a verdict.
        if isinstance(error, SystemExit) and not error.code and COMPLETION in os.environ:
            return 0
        if streams.unread():
            return EXIT_NO_READER
        if isinstance(error, SystemExit):
            return _failed(session, HarnessError(plugins.blamed(error)))
        return _failed(session, error)
    except KeyboardInterrupt:
        return _failed(session, Interrupted("interrupted"))
    except OSError as error:
        if streams.hung_up(error):
            return _failed(session, Interrupted("interrupted: the terminal is closed"))
        refusal = streams.refusal(sys.stdout)
        if not refusal:
            return _failed(session, error)
        return _failed(session, HarnessError(f"stdout: {refusal}"))
    except Exception as error:
        return _failed(session, error)
    # Such as a cancellation that a plug-in made, which no code of ours asked for.
    except BaseException as error:
        return _failed(session, HarnessError(plugins.blamed(error)))
    return int(code or 0)


def _require_text(arguments: Sequence[str]) -> None:
    """Refuse names that are not UTF-8: verdicts, pages and requests to other processes hold them.
    Raises ``UsageError``.
    """
    named = {f"argument {number}": word for number, word in enumerate(arguments, 1)}
    named |= {name: os.environ[name] for name in (RUNS_VARIABLE, "TMPDIR") if name in os.environ}
    with contextlib.suppress(OSError):  # it was removed
        named["the working directory"] = os.getcwd()
    for what, name in named.items():
        shown = os.fsencode(name).decode("utf-8", "backslashreplace")
        if shown != name:
            remedy = "rename it, or name it by a link"
            raise UsageError(f"{what}: expected UTF-8 (got {shown}): {remedy}")


def _in_words(error: BaseException) -> BaseException:
    """``error`` as a sentence where it is no bug of ours, wherever it comes up: a name that no file
    can have, no memory, or no room for a library.
    """
    if isinstance(error, OSError) and error.errno == errno.ENAMETOOLONG:
        name = str(error.filename)
        shown = name if len(name) <= NAME_SHOWN else f"{name[:NAME_SHOWN]}..."
        return UsageError(f"{shown}: expected a path that a file can have: {error.strerror}")
    limit = resource.getrlimit(resource.RLIMIT_AS)[0]
    if isinstance(error, MemoryError):
        within = "" if limit == resource.RLIM_INFINITY else f" within {limit >> 20} MiB (ulimit -v)"
        return HarnessError(f"there is no memory left for it{within}")
    return no_room(error) or error


def _failed(session: Session, error: BaseException) -> int:
    """Report the error in one sentence, keep the traceback in the run directory, and return the
    code: that of a violation where one was found before.
    """
    if session.debug:
        traceback.print_exception(error)
    error = _in_words(error)
    if isinstance(error, FiredrillError) and not isinstance(error, HarnessBug):
        say(str(error))
    else:
        kept = session.keep_traceback(error)
        where = f"the traceback is in {kept}" if kept else "--debug shows where"
        say(f"unexpected {type(error).__name__}: {error} ({where})")
    # It stays one, whatever came of its report, of the index, or of a second Ctrl-C.
    if session.outcome is Outcome.VIOLATION:
        return Outcome.VIOLATION.exit_code
    if isinstance(error, UsageError):
        return EXIT_USAGE
    return EXIT_INTERRUPTED if isinstance(error, Interrupted) else EXIT_HARNESS_ERROR
