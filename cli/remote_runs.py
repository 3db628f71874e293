"""Runs in a store that Hadoop reads, where ``--runs-dir`` is an address there: a run is driven on
this machine, and moved once it is judged.

A run that lies there is complete: it comes under another name first, and is renamed. What lists
runs fetches the small files of each, what judges one fetches all of it.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator
from pathlib import Path

import attrs

from checkers.engine.spark.hadoop import RemoteStore, is_remote, name_of, remote_store
from harness.errors import FiredrillError, HarnessError, UsageError
from harness.history.run_directory import RunDirectory
from harness.scratch import scratch_directory
from results.store.archive import alone, left_out
from results.store.run_figures import figures_path
from results.store.store import RunStore, is_run_id

_HERE = RunDirectory(Path())
# What a list tells of a run is read from these.
_LISTED = (
    *(_HERE.plan, _HERE.manifest, _HERE.tags, figures_path(_HERE)),
    *(_HERE.verdict, _HERE.verdict_seal),
)


@contextlib.contextmanager
def told_as(given: str, copy: Path) -> Iterator[None]:
    """Have errors of the block name what the user has ``given``, and not its private ``copy``."""
    try:
        yield
    except FiredrillError as error:
        error.args = tuple(
            part.replace(str(copy), given) if isinstance(part, str) else part for part in error.args
        )
        raise


@attrs.frozen
class RemoteRuns:
    """The runs below ``address``. Constructing it opens no store."""

    address: str

    def named(self, name: str) -> str:
        """Return the address of the run that ``name`` means: an identifier, its beginning, or
        "latest"; an address stays what it is. Raises ``UsageError``.
        """
        if is_remote(name):
            return name
        if os.path.exists(name):
            raise UsageError(
                f"{name}: expected a run of {self.address}: for what lies on this machine give a "
                "directory of this machine with --runs-dir"
            )
        with scratch_directory("runs") as scratch, told_as(self.address, scratch.path):
            with remote_store(self.address) as remote:
                self._runs(remote, scratch.path)
            return f"{self.address}/{RunStore(scratch.path).named(name).root.name}"

    @contextlib.contextmanager
    def listed(self) -> Iterator[tuple[RunStore, Callable[[RunDirectory], int]]]:
        """Yield copies of what a list tells of all runs, as a store, and the bytes of each there;
        gone after the block.
        """
        sizes: dict[str, int] = {}
        with scratch_directory("runs") as scratch:
            with remote_store(self.address) as remote:
                for run in self._runs(remote, scratch.path):
                    _fetch_listed(remote, f"{self.address}/{run.root.name}", run)
                    _, sizes[run.root.name] = remote.size_of(f"{self.address}/{run.root.name}")
            with told_as(self.address, scratch.path):
                yield RunStore(scratch.path), lambda run: sizes[run.root.name]

    def require_reached(self) -> None:
        """Raise ``FiredrillError`` where no list can be had."""
        with remote_store(self.address) as remote:
            remote.entries(self.address)

    def move(self, run: RunDirectory) -> str:
        """Move the sealed ``run`` there; return its address. It is removed here once all of it is
        there. Raises ``HarnessError``.
        """
        address = f"{self.address}/{run.root.name}"
        if some := left_out(run):
            raise HarnessError(f"{address}: it would lack links or special files: {some[0]}")
        with alone(run), remote_store(self.address) as remote:
            remote.put_new(run.root, address)
            RunStore(run.root.parent).remove(run, held=True)
        return address

    def _runs(self, remote: RemoteStore, scratch: Path) -> tuple[RunDirectory, ...]:
        """Make an empty directory in ``scratch`` for each run, of its name."""
        for name, is_directory in remote.entries(self.address).items():
            if is_directory and is_run_id(name):
                (scratch / name).mkdir()
        return RunStore(scratch).runs()


@contextlib.contextmanager
def fetched(address: str) -> Iterator[tuple[Path, RemoteStore]]:
    """Yield a copy of the run or the file at ``address``, and the store that it is of, open; errors
    of the block name the address.
    """
    address = address.rstrip("/")
    with scratch_directory("fetch") as scratch, remote_store(address) as remote:
        copy = scratch.path / name_of(address)
        remote.fetch(address, copy)
        with told_as(address, copy):
            yield copy, remote


def _fetch_listed(remote: RemoteStore, address: str, run: RunDirectory) -> None:
    there = set(remote.entries(address))
    if _HERE.analysis.name in there:
        of_analysis = remote.entries(f"{address}/{_HERE.analysis.name}")
        there |= {f"{_HERE.analysis.name}/{name}" for name in of_analysis}
        run.analysis.mkdir()
    for file in map(str, _LISTED):
        if file in there:
            remote.fetch(f"{address}/{file}", run.root / file)
    nodes = run.node("any").parent
    for name, is_directory in remote.entries(f"{address}/{nodes.name}").items():
        if is_directory:
            (nodes / name).mkdir(parents=True)
