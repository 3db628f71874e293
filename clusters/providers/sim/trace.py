"""The trace of a simulated run: every message and every disk operation, in the order in which they
ended; at the end stand the messages that never came, and at the beginning how much had no room.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from itertools import chain
from pathlib import Path
from typing import Literal

import msgspec

from clusters.reference.node.wire.messages import (
    NO_ANSWER,
    Codec,
    PeerFrame,
    PeerReply,
    PeerRequest,
    RaftBatch,
)

MAX_ROWS = (
    5_000_000  # some hours of simulated time; of a longer run, its end: most failures are there
)

Verb = Literal["append", "sync", "replace", "truncate", "delete", "read"]
Crossing = Literal["message", "copy", "lost", "never"]


class Row(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One message (``to`` is its receiver, ``from_s`` when it was sent) or one disk operation.

    ``did`` is ``message``, ``copy`` (of one, which came twice), ``lost`` (its connection was over
    when it arrived), ``never`` (a cut held it to the end of the run, or the machine that would send
    it again was gone; ``at_s`` is when it was sent), ``reset``, ``left-out`` (``what`` says how
    many rows had no room), or the disk's verb; ``what`` names the message or the file; all
    times are true seconds.
    """

    at_s: float
    from_s: float
    node: str
    did: Crossing | Literal["reset", "left-out"] | Verb
    what: str = ""
    to: str = ""
    size_bytes: int = 0
    error: str = ""


class Trace:
    """Collects rows. ``describe`` names a message."""

    def __init__(self, describe: Callable[[bytes], str]) -> None:
        self._describe = describe
        self._rows: deque[Row] = deque(maxlen=MAX_ROWS)
        self._added = 0
        # Frames that were sent and have not come, by a number that their sender keeps.
        self._under_way: dict[int, tuple[tuple[str, str], float, bytes]] = {}
        self._sent = 0

    def sent(self, link: tuple[str, str], sent_s: float, payload: bytes) -> int:
        """A frame goes over ``link``; the number by which ``came`` tells that it arrived."""
        self._sent += 1
        self._under_way[self._sent] = (link, sent_s, payload)
        return self._sent

    def came(self, number: int, *, lost: bool, at_s: float) -> None:
        """The frame that ``sent`` numbered came to the end of its link."""
        link, sent_s, payload = self._under_way.pop(number)
        self.message("lost" if lost else "message", link, sent_s, at_s, payload)

    def message(
        self,
        did: Crossing,
        link: tuple[str, str],
        sent_s: float,
        at_s: float,
        payload: bytes,
    ) -> None:
        """A frame came to the end of ``link``."""
        self._add(self._row(did, link, sent_s, at_s, payload))

    def _row(
        self,
        did: Crossing,
        link: tuple[str, str],
        sent_s: float,
        at_s: float,
        payload: bytes,
    ) -> Row:
        return Row(
            at_s=at_s,
            from_s=sent_s,
            node=link[0],
            to=link[1],
            did=did,
            what=self._describe(payload),
            size_bytes=len(payload),
        )

    def add(self, row: Row) -> None:
        """Anything else."""
        self._add(row)

    def _add(self, row: Row) -> None:
        self._rows.append(row)
        self._added += 1

    def write(self, path: Path) -> None:
        """One JSON object a line."""
        encoder = msgspec.json.Encoder()
        with path.open("wb") as file:
            for row in chain(self._left_out(), self._rows, self._never_came()):
                file.write(encoder.encode(row) + b"\n")

    def _left_out(self) -> Iterator[Row]:
        if missing := self._added - len(self._rows):
            first_s = self._rows[0].at_s
            what = f"{missing} rows before this had no room"
            yield Row(at_s=first_s, from_s=first_s, node="", did="left-out", what=what)

    def _never_came(self) -> Iterator[Row]:
        for link, sent_s, payload in self._under_way.values():
            yield self._row("never", link, sent_s, sent_s, payload)


SHOWN = 3  # messages of a batch by name; the rest as a number
_CLIENT_CODECS = (Codec.request, Codec.reply, Codec.admin)


def describe(payload: bytes) -> str:
    """Names of the message and of its content; its first bytes where it is no message."""
    try:
        return _peer(Codec.peer.decode(payload))
    except (msgspec.DecodeError, RecursionError):
        pass
    for codec in _CLIENT_CODECS:
        try:
            frame = codec.decode(payload)
        except (msgspec.DecodeError, RecursionError):
            continue
        return f"client {type(frame.body).__name__}"
    return f"unknown {payload[:16].hex()}"


def repeatable(payload: bytes) -> bool:
    """Whether it is of raft, or a request that wants no answer: those may come twice, and late."""
    try:
        frame = Codec.peer.decode(payload)
    except (msgspec.DecodeError, RecursionError):
        return False
    unasked = isinstance(frame, PeerRequest) and frame.id == NO_ANSWER
    return unasked or isinstance(frame, RaftBatch)


def _peer(frame: PeerFrame) -> str:
    if isinstance(frame, PeerRequest | PeerReply):
        return f"{type(frame).__name__} {type(frame.body).__name__}"
    if isinstance(frame, RaftBatch):
        shown = [f"{group} {type(message).__name__}" for group, message in frame.messages]
        rest = f" and {len(shown) - SHOWN} more" if len(shown) > SHOWN else ""
        return ", ".join(shown[:SHOWN]) + rest or "an empty batch"
    return type(frame).__name__
