"""The trace of a simulated run: every message and every disk operation, in the order in which they
ended.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Literal

import msgspec

MAX_ROWS = 5_000_000  # some hours of simulated time; a longer run keeps its beginning


Verb = Literal["append", "sync", "replace", "truncate", "delete", "read"]


class Row(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One message (``to`` is its receiver, ``from_s`` when it was sent) or one disk operation.

    ``did`` is ``message``, ``copy`` (of one, which came twice), ``lost`` (its connection was over
    when it arrived), ``reset``, or the disk's verb; ``what`` names the message or the file; all
    times are true seconds.
    """

    at_s: float
    from_s: float
    node: str
    did: Literal["message", "copy", "lost", "reset"] | Verb
    what: str = ""
    to: str = ""
    size_bytes: int = 0
    error: str = ""


class Trace:
    """Collects rows. ``describe`` says what a message is."""

    def __init__(self, describe: Callable[[bytes], str]) -> None:
        self._describe = describe
        self.rows: list[Row] = []

    def message(
        self,
        did: Literal["message", "copy", "lost"],
        link: tuple[str, str],
        sent_s: float,
        at_s: float,
        payload: bytes,
    ) -> None:
        """A frame came to the end of ``link``."""
        what = self._describe(payload)
        self._add(
            Row(
                at_s=at_s,
                from_s=sent_s,
                node=link[0],
                to=link[1],
                did=did,
                what=what,
                size_bytes=len(payload),
            )
        )

    def add(self, row: Row) -> None:
        """Anything else."""
        self._add(row)

    def _add(self, row: Row) -> None:
        if len(self.rows) < MAX_ROWS:
            self.rows.append(row)

    def write(self, path: Path) -> None:
        """One JSON object a line."""
        encoder = msgspec.json.Encoder()
        with path.open("wb") as file:
            for row in self.rows:
                file.write(encoder.encode(row) + b"\n")
