"""The child of ``cli.judging.analysis``: run as a module with a ``Request``, it judges and draws
within its limits, and replies over a pipe; then what further requests ask.
"""

from __future__ import annotations

import os
import resource
import signal
import sys
import threading
import time
import traceback
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from cli.address_limit import no_room
from cli.judging.child_messages import FAMILIES, HistoryFile, Reply, Request
from harness.arrow import without_pandas
from harness.errors import UsageError
from harness.supervisor import EXIT_OF_SIGNAL, limit_memory

if TYPE_CHECKING:
    from harness.history.run_directory import RunDirectory

TRACE_CHARS = 20_000


def main(argument: str) -> int:
    """Carry out the request, and further ones while there are any; report the results."""
    request = msgspec.json.decode(argument, type=Request)
    # An interruption ends the child without a traceback; the command tells of it.
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    # What a plug-in would ask on the terminal nobody answers.
    with suppress(OSError):
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    if request.export is None:
        # The command's stdout is for findings alone: what plug-ins print is for a person to read.
        with suppress(OSError):  # there may be no stderr
            os.dup2(2, 1)
    if request.further is None:
        _carry_out(request)
        return 0
    from checkers.engine.spark.session import kept_open

    with kept_open(), os.fdopen(request.further, "rb") as further:
        _carry_out(request)
        for line in further:
            _carry_out(msgspec.json.decode(line, type=Request))
    # A reply has told of any error: the exit code is for a process that could not reply.
    return 0


def _carry_out(request: Request) -> None:
    limit_memory(request.memory_bytes)
    if request.cpu_s is not None:
        limit_processor_time(request.cpu_s)

    def tell(reply: Reply) -> None:
        content = memoryview(msgspec.json.encode(reply) + b"\n")
        while content:
            # A pipe takes only a part of a long reply at once.
            try:
                content = content[os.write(request.reply, content) :]
            except BrokenPipeError:
                # The command is gone, and with it the reader of any error.
                sys.exit(EXIT_OF_SIGNAL + signal.SIGPIPE)

    try:
        _work(request, tell)
    except MemoryError as error:
        # Without its traceback, for which there may be no memory left.
        tell(Reply(error=MemoryError.__name__, text=str(error)))
    except Exception as error:
        told = no_room(error) or error
        trace = "".join(traceback.format_exception(error))[-TRACE_CHARS:]
        tell(Reply(error=_family(told), text=str(told), trace=trace))
    tell(Reply(done=True))


def limit_processor_time(limit_s: int) -> None:
    """End this process by SIGXCPU once it has used ``limit_s`` seconds of processor time. A lower
    limit that was set from outside stays.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_CPU)
    # At the hard limit comes SIGKILL, which tells nothing: where both are one, that alone comes.
    limit_s = limit_s if soft == resource.RLIM_INFINITY else min(limit_s, soft)
    resource.setrlimit(resource.RLIMIT_CPU, (limit_s, hard))


def _work(request: Request, tell: Callable[[Reply], None]) -> None:
    from checkers.engine.arrays import keep_freed_memory
    from checkers.engine.kernel_output import ENTERING, NOTE, ONE_BY_ONE, PROGRESS, SIDE_BY_SIDE
    from cli.judging import steps
    from harness.history.parquet import OPENING
    from harness.history.run_directory import RunDirectory

    without_pandas()
    keep_freed_memory()
    OPENING.set(lambda path: tell(Reply(opening=path)))
    run = RunDirectory(Path(request.root), Path(request.output) if request.output else None)

    def note(text: str) -> None:
        tell(Reply(note=text))

    if request.export is not None:
        from cli.export import write_export

        write_export(run, request.export)
        return
    ENTERING.set(lambda name: tell(Reply(at=name, several=name == SIDE_BY_SIDE)))
    ONE_BY_ONE.set(request.one_by_one)
    NOTE.set(note)
    if request.judge is not None and request.judge.explain_cost:
        from checkers.engine.costs import EXPLAIN

        EXPLAIN.set(lambda cost: note(cost.sentence()))
    PROGRESS.set(lambda text: tell(Reply(progress=text)))
    if request.history is not None:
        if request.judge is not None and request.judge.executor == "spark":
            from checkers.engine.spark.session import prepare

            prepare(request.judge.spark)  # beside the import
        tell(Reply(note=_import(request.history, run), imported=True))
    if request.judge is not None:
        from cli.verdict_lines import findings_of, following_of

        run = steps.recovered(run, note)
        verdict = steps.judge_here(run, request.judge, note, request.crashed)
        following = following_of(run, verdict) if request.kept else ()
        tell(Reply(verdict=verdict, findings=findings_of(run, verdict), following=following))
    if request.report:
        judged = request.judge is not None
        tell(Reply(drawing=steps.draw_here(run, note, judged=judged)))
    if request.judge is not None:
        # Last: whatever it comes to, verdict and report are there.
        steps.measure_here(run, note)


def _import(history: HistoryFile, run: RunDirectory) -> str:
    """Make ``run`` of the history; returns the sentence that says so."""
    from harness.importers.exported import import_exported, is_exported
    from harness.importers.jepsen.imported_history import import_run

    path, workload, clock = Path(history.path), history.workload, time.process_time
    if is_exported(path):
        if history.bank is not None:
            expected = "expected nothing said of a bank: the file holds the plan of its run"
            raise UsageError(f"{path}: {expected}")
        again = import_exported(path, run, workload=workload, clock=clock)
        return f"imported {path}, a run that was exported: {again.manifest.workload}"
    imported = import_run(path, run, workload=workload, bank=history.bank, clock=clock)
    return f"imported {history.path} as {imported.manifest.workload}"


def _family(error: Exception) -> str:
    # Subclasses come before their bases, so the first that fits is the closest.
    names = (name for name, cls in FAMILIES.items() if isinstance(error, cls))
    return next(names, type(error).__name__)


def _others() -> bool:
    """Whether threads of others run that the interpreter would wait for."""
    return any(not t.daemon for t in threading.enumerate() if t is not threading.main_thread())


if __name__ == "__main__":
    code = main(sys.argv[1])
    if _others():
        # A plug-in's thread without end must not hold the command, to which all has been told.
        os._exit(code)
    sys.exit(code)
