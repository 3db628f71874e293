"""The command line: its commands, and the one place where an error becomes an exit code.

Exit codes are those of ``harness.exit_codes``: the exit codes of Python and click (1 and 2) would
read as a verdict here.
"""

from __future__ import annotations

import contextlib
import os
import sys
import traceback
from collections.abc import Sequence
from importlib import import_module

import click

from cli import streams
from cli.session import RUNS_VARIABLE, Session, say
from cli.signals import interrupt_on_signals
from harness import plugins
from harness.errors import FiredrillError, HarnessBug, HarnessError, Interrupted, UsageError
from harness.exit_codes import EXIT_INTERRUPTED, EXIT_NO_READER, EXIT_USAGE, Outcome
from harness.scratch import sweep

EXIT_HARNESS_ERROR = Outcome.HARNESS_ERROR.exit_code

EPILOG = """\b
Exit codes: 0 valid, 1 violation, 2 unknown, 3 regression,
130 interrupted, 141 output not read, 254 misuse (plan, flags, history),
255 harness error."""


def _tell_version(context: click.Context, _option: click.Parameter, wanted: bool) -> None:
    # Shell completion parses without acting.
    if wanted and not context.resilient_parsing:
        click.echo(f"firedrill, version {plugins.own_version()}")
        context.exit()


COMMANDS = {
    "run": "cli.run:run",
    "plan": "cli.plan_preview:plan_command",
    "list": "cli.listing:list_command",
    "new": "cli.new:new",
    "sim": "cli.sim:sim",
    "campaign": "cli.campaign:campaign",
    "nightly": "cli.nightly:nightly",
    "compare": "cli.compare:compare",
    "trend": "cli.trend:trend",
    "explore": "cli.explore:explore",
    "crash-points": "cli.crash_points:crash_points",
    "selftest": "cli.selftest:selftest",
    "replay": "cli.replay:replay",
    "shrink": "cli.shrink:shrink",
    "check": "cli.check:check",
    "report": "cli.report:report",
    "export": "cli.export:export",
    "conform": "cli.conform:conform_command",
    "doctor": "cli.doctor:doctor",
    "shell": "cli.attach:shell",
    "logs": "cli.attach:logs",
    "sql": "cli.sql:sql",
    "runs": "cli.runs:runs",
    "serve": "cli.serve:serve",
    "status": "cli.status:status",
    "cleanup": "cli.cleanup:cleanup",
}
"""Module and attribute of each command: only the one that runs is imported."""


class Commands(click.Group):
    """Imports a command when it is asked for."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """See ``click.Group``."""
        return sorted(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """See ``click.Group``."""
        if cmd_name not in COMMANDS:
            return None
        module, _, name = COMMANDS[cmd_name].partition(":")
        command: click.Command = getattr(import_module(module), name)
        return command

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
    interrupt_on_signals()
    streams.complete()
    streams.bound_warnings()
    sweep()
    if sys.stdout is None:
        say("stdout is closed: the findings could not be printed")
        sys.exit(EXIT_HARNESS_ERROR)
    code = execute(sys.argv[1:])
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
        code = cli.main(list(arguments), prog_name="firedrill", standalone_mode=False, obj=session)
        # What is buffered fails only when it is flushed: here that still becomes an exit code.
        sys.stdout.flush()
    except click.exceptions.Abort:
        return _failed(session, Interrupted("interrupted"))
    except click.ClickException as error:
        error.show()
        return EXIT_USAGE
    except (BrokenPipeError, SystemExit) as error:
        if streams.unread():
            return EXIT_NO_READER
        return _failed(session, error)
    except KeyboardInterrupt:
        return _failed(session, Interrupted("interrupted"))
    except OSError as error:
        refusal = streams.refusal(sys.stdout)
        if not refusal:
            return _failed(session, error)
        return _failed(session, HarnessError(f"stdout: {refusal}"))
    except Exception as error:
        return _failed(session, error)
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


def _failed(session: Session, error: BaseException) -> int:
    """Report the error in one sentence, keep the traceback in the run directory, and return the
    code: that of a violation where one was found before.
    """
    if session.debug:
        traceback.print_exception(error)
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
