"""Foreign histories for ``check``: to be imported into the store as runs, or only examined."""

from __future__ import annotations

import contextlib
import os
import secrets
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import attrs

from checkers.engine.spark.hadoop import is_remote
from cli.archived import is_archive, run_of
from cli.judging.child_messages import HistoryFile
from cli.remote_runs import fetched, told_as
from cli.session import say
from harness import plugins
from harness.errors import HarnessError, UsageError
from harness.history.manifest import read_manifest
from harness.history.regular_files import stamp, what_it_is
from harness.history.run_directory import BankRules, RunDirectory
from harness.importers.jepsen.import_limits import MAX_EXPANDED_BYTES
from harness.scratch import scratch_directory
from results.store.store import RunStore

STDIN = "-"
_COPIED_BYTES = 1 << 20  # at once


def is_history(name: str) -> bool:
    """Tell whether ``name`` means a history to import: a file that is no archive, or stdin."""
    return name == STDIN or (os.path.isfile(name) and not is_archive(name))


@attrs.frozen(kw_only=True)
class Opened:
    """What a name means. ``put_back``: the parts of a fetched run that were put where it came from,
    which is known after the block that opened it.
    """

    run: RunDirectory
    history: HistoryFile | None
    put_back: list[str] = attrs.field(factory=list)


@contextlib.contextmanager
def opened(
    name: str,
    store: RunStore,
    workload: str | None,
    *,
    bank: BankRules | None = None,
    keep: bool,
) -> Iterator[Opened]:
    """Open the run directory that ``name`` means: a run of ``store``, or an empty one for a history
    that is to be imported from a file or, for ``-``, from stdin.

    The history becomes a run of the store where ``keep`` says so; the directory is removed after
    the block otherwise, and where the block raises before the import is done. ``workload`` is the
    workload to judge a file as, ``bank`` the bank's parameters that the file lacks; of a run
    neither can be changed. Raises ``UsageError``.
    """
    if is_remote(name):
        with (
            _fetched(name) as (copy, put_back),
            opened(str(copy), store, workload, bank=bank, keep=keep) as found,
        ):
            yield attrs.evolve(found, put_back=put_back)
        return
    if name == STDIN:
        with scratch_directory("import") as scratch:
            piped = _copied_stdin(scratch.path)
            with (
                told_as(STDIN, piped),
                opened(str(piped), store, workload, bank=bank, keep=keep) as found,
            ):
                yield found
        return
    path = Path(name)
    if not is_history(name):
        _require_readable(path)
        run = run_of(store, name)
        if workload is not None:
            _require_workload(run, workload)
        if bank is not None:
            expected = "expected a history file for what is said of a bank, found a run"
            raise UsageError(f"{name}: {expected}")
        yield Opened(run=run, history=None)
        return
    if workload is not None:
        # A mistyped name is refused before a long history is read.
        plugins.load("workloads", workload)
    history = HistoryFile(path=str(path), workload=workload, bank=bank)
    if not keep:
        with scratch_directory("import") as scratch:
            yield Opened(run=RunDirectory(scratch.path / path.name), history=history)
        return
    with store.create(path.stem.split(".")[0], time.time_ns(), secrets.token_bytes(2)) as run:
        try:
            yield Opened(run=run, history=history)
        except BaseException:
            # An import writes the manifest last: with it the run is whole, and stays, judged or
            # not.
            if not run.manifest.exists():
                _forget(run, store)
            raise


@contextlib.contextmanager
def _fetched(address: str) -> Iterator[tuple[Path, list[str]]]:
    """Fetch the run or the history at ``address``, and yield the copy; the results of a run are put
    back after the block, as far as it has made any: a verdict with all of its tables, a report. The
    list that is yielded beside names what was put.
    """
    say(f"fetching {address}")
    with fetched(address) as (copy, remote):
        run = RunDirectory(copy)
        # Each is written last of all that belongs to it, and at once.
        whole = {run.verdict: run.analysis, run.report: run.report}
        before = {path: stamp(path) for path in whole}
        put_back: list[str] = []
        try:
            yield copy, put_back
        finally:
            for path, made in whole.items():
                if stamp(path) in (None, before[path]):
                    continue
                # What was found holds, wherever it can be kept.
                try:
                    remote.put(made, f"{address.rstrip('/')}/{made.name}")
                    put_back.append(made.name)
                except (HarnessError, UsageError) as error:
                    kept = "(--output DIR stores it on this machine)"
                    say(f"{made.name} could not be put beside the run {kept}: {error}")


def _forget(run: RunDirectory, store: RunStore) -> None:
    """Remove the directory of a history that was not imported. A process that its limits ended
    leaves files in it.
    """
    with contextlib.suppress(HarnessError):
        store.forget(run)
        if run.root.is_dir():
            store.remove(run, held=True)


def _copied_stdin(scratch: Path) -> Path:
    """Return a file with a copy of stdin."""
    if sys.stdin.isatty():
        raise UsageError("-: expected a history on stdin, found a terminal")
    path, left = scratch / "stdin", MAX_EXPANDED_BYTES
    with path.open("wb") as copy:
        while block := sys.stdin.buffer.read(_COPIED_BYTES):
            left -= len(block)
            if left < 0:
                raise UsageError(f"-: expected at most {MAX_EXPANDED_BYTES} bytes, found more")
            copy.write(block)
    return path


def _require_readable(path: Path) -> None:
    """Refuse what is neither a file nor a directory; what is not there may be a run's name."""
    with contextlib.suppress(OSError, ValueError):
        if found := what_it_is(path.stat().st_mode):
            expected = "expected a history file or the directory of a run (- reads stdin)"
            raise UsageError(f"{path}: it is {found}, {expected}")


def _require_workload(run: RunDirectory, workload: str) -> None:
    recorded = read_manifest(run).workload
    if workload != recorded:
        raise UsageError(
            f"run {run.root.name}: its workload is {recorded!r}, so it can't be judged as "
            f"{workload!r}"
        )
