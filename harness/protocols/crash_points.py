"""Crash points, and the choice of messages, for a provider that sees every disk and message.

Only a simulation is such a provider. Messages are chosen by class, in the words of the field: which
messages of a store belong to a class is its provider's to know.
"""

from __future__ import annotations

import enum
from collections.abc import Callable
from typing import Annotated, Protocol, runtime_checkable

import msgspec
from msgspec import Meta

from harness.protocols.cluster import Link
from harness.protocols.moments import Moment

MAX_NTH = 10_000_000
METASTORAGE = "metastorage"  # the group of no partition


class Operation(enum.StrEnum):
    """An operation of a node that a crash can be placed at."""

    SYNC = "sync"  # of a file that is appended to
    RENAME = "rename"  # of a new file over an old one
    SEND = "send"
    RECEIVE = "receive"


class When(enum.StrEnum):
    """The place of a crash around its operation.

    ``instead``: in its middle. Of what a sync should have made durable a torn subset is there, a
    rename has happened or has not; a message is lost together with its connection.
    """

    BEFORE = "before"
    AFTER = "after"
    INSTEAD = "instead"


class MessageClass(enum.StrEnum):
    """A class of the messages between nodes, answers included where they can be told apart."""

    VOTES = "votes"
    APPENDS = "appends"
    SNAPSHOTS = "snapshots"
    HEARTBEATS = "heartbeats"
    RENEWALS = "renewals"
    GRANTS = "grants"
    LOCKS = "locks"
    EXECUTES = "executes"
    PREPARES = "prepares"
    COMMITS = "commits"
    FINISHES = "finishes"
    RESOLVES = "resolves"
    SNAPSHOT_READS = "snapshot-reads"
    JOINS = "joins"  # of a node that joins the cluster's topology, or leaves it


# Their senders rely neither on order nor on a single delivery; all others are frames of a stream.
DATAGRAMS = frozenset(
    {
        MessageClass.VOTES,
        MessageClass.APPENDS,
        MessageClass.SNAPSHOTS,
        MessageClass.RENEWALS,
    }
)


class CrashPoint(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The ``nth`` operation of a node from the begin of the wait on; of a ``send`` or ``receive``
    only those of the class ``messages`` count, where it is given.
    """

    at: Annotated[Operation, Meta(description="The operation at which the node crashes.")] = (
        Operation.SYNC
    )
    when: Annotated[When, Meta(description="Before it, after it, or in its middle.")] = When.INSTEAD
    nth: Annotated[
        int,
        Meta(
            ge=1,
            le=MAX_NTH,
            description="The how manyth such operation, from the offset of the fault on.",
        ),
    ] = 1
    messages: Annotated[
        MessageClass | None,
        Meta(description="With `at` of `send` or `receive`: only messages of this class count."),
    ] = None

    def __str__(self) -> str:
        of = f" of {self.messages.value}" if self.messages is not None else ""
        return f"{self.when.value} {self.at.value} {self.nth}{of}"


class Action(enum.StrEnum):
    """What is done to a chosen message."""

    DROP = "drop"
    HOLD = "hold"
    DOUBLE = "double"
    REORDER = "reorder"


class Way(enum.StrEnum):
    """Which messages of a target are meant."""

    FROM = "from"
    TO = "to"
    BOTH = "both"


class Choice(msgspec.Struct, frozen=True, kw_only=True):
    """Which messages are chosen on ``links``: of a class, of one ``partition`` where that is given,
    or of ``metastorage`` alone; by chance a ``share`` of them, and the first ``count`` of these;
    until the moment ``until``, where one is given.
    """

    action: Action
    links: tuple[Link, ...]
    messages: MessageClass
    partition: int | None = None
    metastorage: bool = False
    share: float | None = None
    count: int | None = None
    until: Moment | None = None


class ChoiceLook(msgspec.Struct, frozen=True, kw_only=True):
    """A look at a choice: whether a message of its class that is tried on one of its links is
    ``chosen``, how many messages were, and how many are ``held`` still.
    """

    chosen: bool
    taken: int
    held: int


@runtime_checkable
class CrashesAtPoints(Protocol):
    """A ``Provider`` that can end a node's program in the middle of an operation."""

    async def crash_at(
        self, nodes: tuple[str, ...], point: CrashPoint, claim: Callable[[str], bool]
    ) -> str:
        """Wait until one of ``nodes`` comes to ``point``, end its program there as a power loss
        does, and return the node. ``claim`` is asked at that instant, and may refuse: then the
        operation goes on, and the next one is the point. Cancellation ends the wait.
        """


@runtime_checkable
class ChoosesMessages(Protocol):
    """A ``Provider`` that can single out messages."""

    async def choose(self, choice: Choice) -> None:
        """Put ``choice`` in force. Idempotent."""

    async def unchoose(self, choice: Choice) -> None:
        """Take it out of force, and let go what it holds. Idempotent."""

    async def try_choice(self, choice: Choice) -> ChoiceLook:
        """Try a message of the class on a link of ``choice``, without sending one."""
