"""Families of messages: what has one colour in a space-time diagram.

They go by the beginnings of what a trace calls its messages; what none of them fits is raft's.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import attrs

Row = Mapping[str, Any]
"""A row of a trace: ``at_s``, ``from_s``, ``node``, ``did``, ``what``, ``to``, ``error``."""


@attrs.frozen
class Family:
    """Messages of one colour. ``starts`` are beginnings of what they are called."""

    name: str
    colour: str
    starts: tuple[str, ...] = ()
    named: bool = False  # each of them, however many there are


WATCH = "observer"
PING = "ping"
DISK = "disk"
_WATCHED = ("AskStatus", "NodeReport", "AskEvents", "EventBatch", "AskStates", "StateReport")
# The first that fits; colours that also the colour-blind tell apart (Okabe and Ito).
FAMILIES = (
    Family(PING, "#9aa3ab", ("Ping", "Pong", "Hello", "an empty batch")),
    Family(WATCH, "#c9ced3", tuple(f"client {body}" for body in _WATCHED)),
    Family("client", "#d55e00", ("client ",)),
    Family("lease", "#b8860b", ("PeerRequest Renew", "PeerRequest Meta", "PeerReply Invoked")),
    Family("transaction", "#009e73", ("PeerRequest", "PeerReply")),
    Family("vote", "#cc79a7", (), named=True),
    Family("raft", "#0072b2"),
)
USUAL = ("client", "lease", "transaction", "vote", "raft", DISK)
CHOICES = (*(family.name for family in FAMILIES), DISK)


def family_of(row: Row) -> Family:
    """The family of a row of a trace."""
    if not row.get("to"):
        return Family(DISK, "#3b4046")
    what = row.get("what", "")
    for family in FAMILIES:
        if any(what.startswith(start) for start in family.starts):
            return family
    return FAMILIES[-2] if "Vote" in what else FAMILIES[-1]
