"""The in-process executor: numpy over whole splits, no JVM, milliseconds for small histories."""

from __future__ import annotations

from collections.abc import Iterable

from checkers.executors.results import Given, by_key, merge, on_split
from checkers.kernel import Kernel, Setting
from checkers.source import Source


def run_by_key(kernels: Iterable[Kernel], source: Source, setting: Setting) -> Given:
    """The KEY kernels over every split of ``source``, one split in memory at a time."""
    chain = by_key(kernels)
    return merge(on_split(chain, source, split, setting) for split in range(source.splits))
