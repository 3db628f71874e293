"""What a primary declares of its transactions: the answers that it gives, and the locks that it
gives up; and what a replica declares of itself: with what it begins, what it holds at some entries,
and whether its invariants hold.

A primary may be its own coordinator: then no message tells what it granted. A simulation listens
here, and holds every answer against those before it; on a real machine a declaration is one look at
a variable. An answer is declared as it is given, and locks are given up before others have them.
"""

from __future__ import annotations

import contextvars
from collections.abc import Callable

import msgspec

from clusters.reference.node.wire.messages import PeerAnswer, PrimaryBody, TxnId


class PrimaryAnswer(msgspec.Struct, frozen=True):
    """A primary here gave ``answer`` to ``body``, whether a peer or this node had asked."""

    body: PrimaryBody
    answer: PeerAnswer


class LocksRelease(msgspec.Struct, frozen=True):
    """The primary of ``partition`` under ``epoch`` holds no lock for ``txn`` any more."""

    partition: int
    epoch: int
    txn: TxnId


class Recovery(msgspec.Struct, frozen=True, kw_only=True):
    """A replica of ``group`` begins with what was found of it on the disk."""

    group: str
    generation: int
    term: int
    vote: str | None
    last_term: int
    last_index: int


class Content(msgspec.Struct, frozen=True):
    """A replica of ``group``, in that generation, has applied everything up to ``index``; equal
    content has an equal ``digest``, in one process.
    """

    group: str
    generation: int
    index: int
    digest: int


class Inspection(msgspec.Struct, frozen=True):
    """The invariants of a replica of ``group`` were looked at: ``problem`` is the first one that
    does not hold.
    """

    group: str
    problem: str | None


Listener = Callable[[PrimaryAnswer | LocksRelease | Recovery | Content | Inspection], None]
CONTENT_EVERY = 16  # entries; at places that are the same on every replica

# By context as planted bugs are: nodes of one process declare each for itself.
_listener: contextvars.ContextVar[Listener | None] = contextvars.ContextVar(
    "listener of declarations", default=None
)


def answered(body: PrimaryBody, answer: PeerAnswer) -> None:
    """A primary here answers ``body``."""
    listener = _listener.get()
    if listener is not None:
        listener(PrimaryAnswer(body, answer))


def released(partition: int, epoch: int, txn: TxnId) -> None:
    """A primary here, under ``epoch``, gives up all locks of ``txn``."""
    listener = _listener.get()
    if listener is not None:
        listener(LocksRelease(partition, epoch, txn))


def recovered(recovery: Callable[[], Recovery]) -> None:
    """A replica here begins; ``recovery`` is asked for where it is listened to."""
    listener = _listener.get()
    if listener is not None:
        listener(recovery())


def applied(content: Callable[[], Content]) -> None:
    """A replica here has applied ``CONTENT_EVERY`` more entries; ``content`` is asked for where it
    is listened to.
    """
    listener = _listener.get()
    if listener is not None:
        listener(content())


def inspected(inspection: Callable[[], Inspection]) -> None:
    """The state of a replica here is told; ``inspection`` is made where it is listened to."""
    listener = _listener.get()
    if listener is not None:
        listener(inspection())


def listened() -> bool:
    """Whether declarations of the running task are listened to."""
    return _listener.get() is not None


def listen(listener: Listener) -> None:
    """From here on, in the running task and those that it starts, ``listener`` is told."""
    _listener.set(listener)
