"""Runs of a store for tests that hold none of them."""

from __future__ import annotations

from harness.history.run_directory import RunDirectory
from results.store.store import RunStore


def made(store: RunStore, name: str, wall_ns: int, entropy: bytes) -> RunDirectory:
    """Make a run directory in ``store`` as a command does, and let it go."""
    with store.create(name, wall_ns, entropy) as run:
        return run
