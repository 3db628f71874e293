"""A container as the provider knows it: the ways to it, what runs there, what was done to it."""

from __future__ import annotations

import attrs

from clusters.providers.remote import program
from clusters.providers.remote.lanes import Lane
from clusters.providers.remote.session import Session
from clusters.providers.remote.watchdog import Lease


@attrs.define(kw_only=True)
class Node:
    """One machine and what was done on it.

    ``hand`` is one thread: what acts on the program does so in order, also where nobody awaits it
    any longer. A kill that outlasts its caller must not land after the start that heals it.
    """

    name: str
    address: str
    lane: Lane
    hand: Lane
    wiring: Lane
    session: Session
    lease: Lease = attrs.field(
        default=attrs.Factory(lambda self: Lease(self.session, lambda: self.reachable), True)
    )
    launch: program.Launch | None = None
    process: program.Process | None = None
    lost: bool = False
    frozen: bool = False
    delayed: bool = False

    @property
    def reachable(self) -> bool:
        """Whether a command can reach the machine."""
        return not (self.lost or self.frozen)
