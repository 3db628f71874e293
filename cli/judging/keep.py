"""Keeping a verdict, where the disk lets it be kept."""

from __future__ import annotations

from collections.abc import Callable

from harness.errors import NotStored
from harness.protocols.verdict import Verdict, write_verdict
from harness.run.directory import RunDirectory


def keep_verdict(
    run: RunDirectory, verdict: Verdict, say: Callable[[str], None], *unstored: NotStored
) -> None:
    """Write the verdict, unless the tables behind it could not be written (``unstored``). A disk
    that refuses is reported, and does not change the findings.
    """
    try:
        # A verdict must not stand without its tables: the same refusal of the disk.
        for error in unstored:
            raise error
        write_verdict(run, verdict)
    except NotStored as error:
        say(f"the verdict holds and is not stored (--output DIR stores it elsewhere): {error}")
