"""Foreign histories for ``check``: imported into the store as runs, or only examined."""

from __future__ import annotations

import contextlib
import secrets
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from cli.session import say
from harness import plugins
from harness.errors import UsageError
from harness.history.manifest import read_manifest
from harness.importers.jepsen.limits import MAX_EXPANDED_BYTES
from harness.run.directory import BankRules, RunDirectory
from results.store.store import RunStore

STDIN = "-"
_COPIED_BYTES = 1 << 20  # at once


def is_history(name: str) -> bool:
    """Tell whether ``name`` means a history to import: a file, or stdin."""
    return name == STDIN or Path(name).is_file()


@contextlib.contextmanager
def opened(
    name: str,
    store: RunStore,
    workload: str | None,
    *,
    bank: BankRules | None = None,
    keep: bool,
) -> Iterator[RunDirectory]:
    """Open the run directory that ``name`` means: a run of ``store``, or a history, imported from a
    file or, for ``-``, from stdin.

    An imported history becomes a run of the store where ``keep`` says so, and is removed after the
    block otherwise. ``workload`` is the workload to judge a file as, ``bank`` the bank's parameters
    that the file lacks; of a run neither can be changed. Raises ``UsageError``.
    """
    if name == STDIN:
        with tempfile.TemporaryDirectory(prefix="firedrill-") as scratch:
            copy = _copied_stdin(Path(scratch))
            with opened(str(copy), store, workload, bank=bank, keep=keep) as run:
                yield run
        return
    path = Path(name)
    if not path.is_file():
        run = store.resolve(name)
        if workload is not None:
            _require_workload(run, workload)
        if bank is not None:
            expected = "expected a history file for what is said of a bank, found a run"
            raise UsageError(f"{name}: {expected}")
        yield run
        return
    if workload is not None:
        plugins.load("workloads", workload)
    if not keep:
        with tempfile.TemporaryDirectory(prefix="firedrill-") as scratch:
            run = RunDirectory(Path(scratch) / path.name)
            _bring_in(path, run, workload, bank)
            yield run
        return
    run = store.create(path.stem.split(".")[0], time.time_ns(), secrets.token_bytes(2))
    try:
        _bring_in(path, run, workload, bank)
    except BaseException:
        store.forget(run)
        raise
    yield run


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


def _bring_in(path: Path, run: RunDirectory, workload: str | None, bank: BankRules | None) -> None:
    from harness.importers.jepsen.imported_history import import_run

    history = import_run(path, run, workload=workload, bank=bank, clock=time.process_time)
    say(f"imported {path} as {history.manifest.workload}")


def _require_workload(run: RunDirectory, workload: str) -> None:
    recorded = read_manifest(run).workload
    if workload != recorded:
        raise UsageError(
            f"run {run.root.name}: its workload is {recorded!r}, so it can't be judged as "
            f"{workload!r}"
        )
