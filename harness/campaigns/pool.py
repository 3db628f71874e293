"""Runs cells in processes of their own, several at once, and yields their results in order.

A worker is a fork of this process, so that a cell does not pay for the imports again. It sends its
cell's result on a pipe; a worker that dies, or is silent past its cell's limit, is one failed cell.

The order of results is that of the cells, and cell ``k`` is chosen as soon as result ``k - ahead``
was delivered, neither earlier nor later: so a search that chooses from results chooses the same
cells with any number of workers, in any order of their ends.
"""

from __future__ import annotations

import contextlib
import faulthandler
import gc
import math
import os
import resource
import select
import selectors
import signal
import sys
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NoReturn

import attrs
import msgspec
from msgspec.structs import replace

from harness.campaigns.cell import Cell, CellResult, Failure, failed
from harness.campaigns.ledger import Ledger
from harness.clock import machine_s
from harness.errors import HarnessBug
from harness.supervisor import die_with_parent, limit_memory
from harness.text import uncommanded_bytes

# Cells that are chosen before the first of them has its result: one that uses up its time must not
# leave the other workers idle for long.
AHEAD = 64
RESULT_MAX_BYTES = 1 << 20  # of what a worker sends; the parent holds some thousand results
LAST_WORDS_BYTES, LAST_WORDS_CHARS = 1 << 16, 300  # of its standard error: kept, and told
_FATAL = "Fatal Python error"  # faulthandler's first words
GRACE_S = 5.0  # from the signal that asks a worker to end to the one that ends it
LONGEST_WAIT_S = 60.0  # of one select, which takes no more than 2**31 ms; a limit may be longer
LONGEST_ALARM_S = 1 << 31  # exclusive: the kernel's counter
_CHUNK_BYTES = 1 << 16
_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)

# Returns the next cell; ``None`` where there is none until another result is delivered.
Choose = Callable[[], Cell | None]
# A callback about the directory of a run, as soon as there is one.
RunStarted = Callable[[Path], None]
# Runs and judges one cell. What it raises is the result of a failed cell.
Work = Callable[[Cell, RunStarted], CellResult]


def in_turn(cells: Iterable[Cell]) -> Choose:
    """Choose from ``cells`` one after the other."""
    waiting = iter(cells)
    return lambda: next(waiting, None)


class _Message(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One line of a worker's reply."""

    run: str = ""
    result: CellResult | None = None


@attrs.define(eq=False)
class _Worker:
    cell: Cell
    pid: int
    reply: int
    stderr: int
    began_s: float
    reply_bytes: bytearray = attrs.field(factory=bytearray)
    last_words: bytearray = attrs.field(factory=bytearray)
    unforwarded: bytes = b""  # the beginning of a line
    cpu_s: float = 0.0  # once it has ended

    @property
    def ends_s(self) -> float:
        return self.began_s + self.cell.limit_s

    @property
    def reply_too_long(self) -> bool:
        return len(self.reply_bytes) > RESULT_MAX_BYTES

    def read_reply(self) -> bool:
        """Read a part of the reply; return false where no more is to come, or to be read."""
        block = os.read(self.reply, _CHUNK_BYTES)
        self.reply_bytes.extend(block)
        return bool(block) and not self.reply_too_long

    def forward_stderr(self) -> bool:
        """Pass on the lines of its standard error, which may hold what a node said, so that none is
        a command to a CI; remember the last; return false at its end.
        """
        block = os.read(self.stderr, _CHUNK_BYTES)
        lines, end, rest = (self.unforwarded + block).rpartition(b"\n")
        if not block or len(rest) > _CHUNK_BYTES:
            end, rest = end + rest, b""
        self._show(lines + end)
        self.unforwarded = rest
        self.last_words.extend(block)
        del self.last_words[:-LAST_WORDS_BYTES]
        return bool(block)

    def _show(self, lines: bytes) -> None:
        with contextlib.suppress(OSError):  # a closed stderr ends no work
            os.write(2, b"\n".join(map(uncommanded_bytes, lines.split(b"\n"))))

    def reap(self, within_s: float = GRACE_S) -> int:
        """Make sure that the process has ended, by force if it has not by itself within that time;
        return its exit code, or the negative number of the signal that ended it.
        """
        # Until ``wait4`` the number is its own, even once it has ended.
        process = os.pidfd_open(self.pid)
        if not _readable(process, within_s):
            signal.pidfd_send_signal(process, signal.SIGKILL)
        _, status, used = os.wait4(self.pid, 0)
        code, self.cpu_s = os.waitstatus_to_exitcode(status), used.ru_utime + used.ru_stime
        # Up to what is there now: a process that it started may hold the other end for ever.
        while _readable(self.stderr) and self.forward_stderr():
            continue
        self._show(self.unforwarded)
        for handle in (process, self.reply, self.stderr):
            os.close(handle)
        return code

    def terminate(self) -> None:
        """Send the signal after which a run on real nodes heals and leaves."""
        os.kill(self.pid, signal.SIGTERM)

    def result(self, *, late: bool) -> CellResult:
        """End the process, and return its cell's result, or what is known in place of it."""
        wall_s = machine_s() - self.began_s
        if late or self.reply_too_long:
            self.terminate()
        code, run = self.reap(), ""
        for line in self.reply_bytes.splitlines():
            with contextlib.suppress(msgspec.DecodeError):  # it died in the middle of the line
                message = msgspec.json.decode(line, type=_Message)
                if message.result is not None:
                    return self._measured(message.result)
                run = message.run
        failure, reason = self._failure(code, late=late)
        # A cell that is not kept may have removed it, before the worker died.
        run = run if Path(run).is_dir() else ""
        lost = failed(self.cell, reason, run=run, wall_s=wall_s, failure=failure)
        return self._measured(lost)

    def _measured(self, result: CellResult) -> CellResult:
        """Give ``result`` its CPU time, unless it tells that itself."""
        return result if result.cpu_s else replace(result, cpu_s=round(self.cpu_s, 3))

    def _failure(self, code: int, *, late: bool) -> tuple[Failure, str]:
        if late:
            return Failure.LATE, f"no end within {self.cell.limit_s:g} s"
        if code == -signal.SIGXCPU:
            return Failure.CPU, f"no end within {self.cell.limit_cpu_s:g} s of a core"
        if self.reply_too_long:
            return Failure.DIED, f"its result has more than {RESULT_MAX_BYTES} bytes"
        how = f"signal {-code}" if code < 0 else f"exit code {code}"
        return Failure.DIED, f"it died ({how}){self._last_words()}"

    def _last_words(self) -> str:
        text = self.last_words.decode(errors="replace").strip()
        fatal = text.rfind(_FATAL)  # what comes after it is a long stack
        text = text[fatal:] if fatal >= 0 else text[-LAST_WORDS_CHARS:]
        return f": {text}" if text else ""


@attrs.frozen(kw_only=True)
class Pool:
    """``workers`` processes at a time, each of which does ``work`` on one cell; as many as cores by
    default. A worker may write to ``memory_bytes`` of memory, where that is not ``None``.
    """

    work: Work
    workers: int = attrs.field(factory=lambda: len(os.sched_getaffinity(0)))
    ahead: int = AHEAD
    memory_bytes: int | None = None

    def results(
        self, choose: Choose, ledger: Ledger | None = None, *, begin_until_s: float = math.inf
    ) -> Generator[CellResult, None, None]:
        """Run the cells that ``choose`` returns and yield their results, in the order of the cells.

        A cell that is in ``ledger`` is not run again, and one that has ended is in it at once, even
        while an earlier one goes on. No cell is begun once the machine's clock (``machine_s``) is
        past ``begin_until_s``. Closing the iterator ends the workers, as an exception does that a
        signal raises in it.
        """
        ledger = Ledger() if ledger is None else ledger
        ordered: deque[Cell] = deque()  # chosen, and not yet delivered
        waiting: deque[Cell] = deque()  # of these, not yet begun
        asking = True
        gc.collect()
        gc.freeze()  # a collection in a worker would copy the pages of this process's objects
        with _Workers(self) as workers:
            while True:
                while asking and len(ordered) < self.ahead:
                    # After ``None`` not before the next delivery: else the number of questions
                    # would depend on which worker ends first.
                    cell = choose()
                    if asking := cell is not None:
                        # An equal cell that is under way is run once and delivered twice.
                        if cell.key not in ledger.known and all(cell.key != o.key for o in ordered):
                            waiting.append(cell)
                        ordered.append(cell)
                while waiting and workers.free and machine_s() < begin_until_s:
                    workers.start(waiting.popleft())
                if waiting and workers.free:
                    # The time is over: cells under way are still delivered, those that wait never.
                    late = {cell.key for cell in waiting}
                    ordered = deque(cell for cell in ordered if cell.key not in late)
                    waiting.clear()
                    choose = in_turn(())
                if not ordered:
                    return
                known = ordered[0].key in ledger.known
                for result in workers.collect(wait=not known):
                    ledger.add(result)
                if known:
                    asking = True
                    yield ledger.known[ordered.popleft().key]


def in_this_process(
    work: Work, choose: Choose, ledger: Ledger | None = None
) -> Generator[CellResult, None, None]:
    """As ``Pool.results``, one cell at a time, in this process: for work that needs its terminal.
    Each is chosen when the one before was delivered; raises what ``work`` raises.
    """
    ledger = Ledger() if ledger is None else ledger
    while (cell := choose()) is not None:
        if cell.key not in ledger.known:
            ledger.add(work(cell, lambda _run: None))
        yield ledger.known[cell.key]


class _Workers:
    """The workers at work. Leaving the context ends them."""

    def __init__(self, pool: Pool) -> None:
        self._pool = pool
        self._workers: list[_Worker] = []
        self._pipes = selectors.DefaultSelector()

    def __enter__(self) -> _Workers:
        return self

    def __exit__(self, *_: object) -> None:
        with _signals_blocked():
            for worker in self._workers:
                worker.terminate()
            ends_s = machine_s() + GRACE_S  # for all together
            for worker in self._workers:
                worker.reap(max(0.0, ends_s - machine_s()))
            self._workers.clear()
            self._pipes.close()

    @property
    def free(self) -> bool:
        """Whether a worker may begin."""
        return len(self._workers) < self._pool.workers

    def start(self, cell: Cell) -> None:
        """Fork a worker for ``cell``."""
        for stream in (sys.stdout, sys.stderr):
            stream.flush()  # else the worker has the rest of the buffer, too
        reply, stderr = os.pipe(), os.pipe()
        # Between fork and the worker's own handlers a signal would unwind this stack in both.
        with _signals_blocked():
            parent = os.getpid()
            pid = os.fork()
            if pid == 0:
                _run_worker(self._pool, cell, parent, reply[1], stderr[1])
            # The pipe ends with its last writer: held here, too, it would outlive the worker.
            os.close(reply[1])
            os.close(stderr[1])
            worker = _Worker(cell, pid, reply[0], stderr[0], machine_s())
            self._workers.append(worker)
            self._pipes.register(worker.reply, selectors.EVENT_READ, (worker, worker.read_reply))
            self._pipes.register(
                worker.stderr, selectors.EVENT_READ, (worker, worker.forward_stderr)
            )

    def collect(self, *, wait: bool) -> list[CellResult]:
        """Return the results of the workers that are done, or have used up their time; with
        ``wait`` there is at least one.
        """
        while self._workers:
            now_s = machine_s()
            late = [worker for worker in self._workers if now_s >= worker.ends_s]
            first_s = min(worker.ends_s for worker in self._workers)
            done = []
            wait_s = min(max(0.0, first_s - now_s), LONGEST_WAIT_S)
            for key, _ in self._pipes.select(wait_s if wait else 0):
                worker, read = key.data
                if read():
                    continue
                self._pipes.unregister(key.fd)
                # The end of its standard error alone says nothing: a program may close that. A
                # worker that is late as well must not be collected twice.
                if key.fd == worker.reply and worker not in late:
                    done.append(worker)
            if done or late or not wait:
                return [
                    *(self._collect(worker, late=False) for worker in done),
                    *(self._collect(worker, late=True) for worker in late),
                ]
        return []

    def _collect(self, worker: _Worker, *, late: bool) -> CellResult:
        # An exception between the two would have ``__exit__`` reap a number that may be another
        # process's by then.
        with _signals_blocked():
            for handle in (worker.reply, worker.stderr):
                if handle in self._pipes.get_map():
                    self._pipes.unregister(handle)
            result = worker.result(late=late)
            self._workers.remove(worker)
        if result.key != worker.cell.key:  # the cell would be waited for without end
            raise HarnessBug(f"cell {worker.cell.key}: its result is of {result.key}")
        return result


def _readable(handle: int, limit_s: float = 0.0) -> bool:
    waiting = select.poll()
    waiting.register(handle, select.POLLIN)
    return bool(waiting.poll(limit_s * 1000))


@contextmanager
def _signals_blocked() -> Iterator[None]:
    """Hold signals back that would end this process, until the block is left."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, _SIGNALS)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _run_worker(pool: Pool, cell: Cell, parent: int, reply: int, stderr: int) -> NoReturn:
    """Run the whole life of a worker."""
    code = 1
    try:
        for number in (signal.SIGINT, signal.SIGHUP):  # of the terminal, to all of its processes
            signal.signal(number, signal.SIG_IGN)  # the parent ends its workers
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, _SIGNALS)
        os.dup2(stderr, 2)
        # A crash in a compiled library leaves its stack among the last words.
        faulthandler.enable(2)
        if not die_with_parent(parent):  # a parent that is killed takes its workers with it
            os._exit(1)
        # Where the parent's death goes unnoticed.
        signal.alarm(min(math.ceil(cell.limit_s + GRACE_S), LONGEST_ALARM_S - 1))
        if pool.memory_bytes is not None:
            limit_memory(pool.memory_bytes)
        if cell.limit_cpu_s is not None:
            # The kernel's signal ends it wherever it is; a forked process begins with no CPU time.
            limit_s = math.ceil(cell.limit_cpu_s)
            resource.setrlimit(resource.RLIMIT_CPU, (limit_s, limit_s + math.ceil(GRACE_S)))
        _send(reply, _Message(result=_run_cell(pool, cell, reply)))
        code = 0
    except BaseException as error:  # an exit, too: it is the worker's last words
        os.write(2, f"{type(error).__name__}: {error}\n".encode())
    finally:
        # Neither the parent's exit handlers nor the iterator on this stack may run in the fork.
        os._exit(code)


def _run_cell(pool: Pool, cell: Cell, reply: int) -> CellResult:
    began_s, runs = machine_s(), [""]

    def run_started(run: Path) -> None:
        runs.append(str(run))
        _send(reply, _Message(run=str(run)))

    try:
        return pool.work(cell, run_started)
    except MemoryError:
        reason = f"it needs more memory than the {(pool.memory_bytes or 0) >> 20} MiB of a worker"
    except Exception as error:
        reason = f"{type(error).__name__}: {error}"
    run = runs[-1] if Path(runs[-1]).is_dir() else ""
    return failed(cell, reason, run=run, wall_s=machine_s() - began_s)


def _send(handle: int, message: _Message) -> None:
    content = memoryview(msgspec.json.encode(message) + b"\n")
    while content:
        content = content[os.write(handle, content) :]  # a signal may end a write midway
