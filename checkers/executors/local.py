"""The in-process executor: numpy over whole splits, no JVM, milliseconds for small histories."""

from __future__ import annotations

from collections.abc import Iterable

from checkers.executors.results import Given, merge, on_all_splits, on_split
from checkers.kernel import Kernel, Setting, Tables
from checkers.source import Source


def run_by_key(kernels: Iterable[Kernel], source: Source, setting: Setting) -> Given:
    """The EARLY and KEY kernels over every split of ``source``, one in memory at a time."""

    def over_splits(chain: tuple[Kernel, ...], early: Tables) -> Given:
        every = range(source.splits)
        return merge(on_split(chain, source, split, setting, early) for split in every)

    return on_all_splits(kernels, source, over_splits)
