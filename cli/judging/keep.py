"""Keeping a verdict, where the disk lets it be kept."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator

from harness.errors import NotStored
from harness.history.run_directory import RunDirectory
from harness.protocols.verdict import Verdict, write_first_verdict, write_verdict


def keep_verdict(
    run: RunDirectory, verdict: Verdict, say: Callable[[str], None], *unstored: NotStored
) -> None:
    """Write the verdict, unless the tables behind it could not be written (``unstored``). A disk
    that refuses is reported, and does not change the findings.
    """
    with _reported(say):
        # A verdict must not stand without its tables: the same refusal of the disk.
        for error in unstored:
            raise error
        write_verdict(run, verdict)


def keep_first_verdict(run: RunDirectory, verdict: Verdict, say: Callable[[str], None]) -> bool:
    """As ``keep_verdict``, where ``run`` has no verdict; returns whether it had none."""
    with _reported(say):
        return write_first_verdict(run, verdict)
    return True


@contextlib.contextmanager
def _reported(say: Callable[[str], None]) -> Iterator[None]:
    try:
        yield
    except NotStored as error:
        say(f"the verdict holds and is not stored (--output DIR stores it elsewhere): {error}")
