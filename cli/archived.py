"""A run by its name, or by the file that it was archived in: a CI attaches such a file."""

from __future__ import annotations

import os
from pathlib import Path

from cli.run_pages import refresh_index
from cli.session import say
from harness.history.run_directory import RunDirectory, require_plain
from results.store.archive import SUFFIX, archived_run, require_same, restore
from results.store.store import RunStore


def is_archive(name: str) -> bool:
    """Tell whether ``name`` means the archive of a run."""
    return name.endswith(SUFFIX) and os.path.isfile(name)


def run_of(store: RunStore, name: str) -> RunDirectory:
    """Return the run that ``name`` means (``RunStore.resolve``). An archive is brought into the
    store first, unless its run is there. Raises ``UnknownRun``, ``MalformedHistory``, also where
    the store has another run of that name, and ``HarnessError``.
    """
    if not is_archive(name):
        return store.resolve(name)
    run = RunDirectory(store.root / archived_run(Path(name)))
    if run.root.is_dir():
        require_plain(run)
        require_same(Path(name), run)
        say(f"the run of {name} is in {store.root} already: that one is taken")
        return run
    run = restore(Path(name), store)
    refresh_index(store)
    say(f"restored {run.root}")
    return run
