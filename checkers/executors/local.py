"""The in-process executor: numpy over whole splits, no JVM, milliseconds for small histories."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from checkers.executors.results import Given, apply, by_key, merge
from checkers.kernel import Kernel, Setting
from checkers.source import Source


def run_by_key(kernels: Iterable[Kernel], source: Source, setting: Setting) -> Given:
    """The KEY kernels over every split of ``source``, one split in memory at a time."""
    chain = by_key(kernels)

    def results() -> Iterator[Given]:
        for split in range(source.splits):
            tables = {"transactions": source.transactions, "micro_ops": source.micro_ops(split)}
            yield apply(chain, tables, setting)

    return merge(results())
