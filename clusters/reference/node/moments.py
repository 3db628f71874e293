"""The moments of a node's life at which a fault hurts most.

``tell`` costs next to nothing where nothing listens, as in every real process. A simulation
listens, and acts at that very instant; so a call stands where its moment *is*: behind the write
that makes it durable, before the first message that tells of it. As a planted bug does, a listener
counts for the process that it was set in and for every task that the process starts.
"""

from __future__ import annotations

import contextvars
from collections.abc import Callable

LEADER_ELECTED = "leader-elected"
PRIMARY_GRANTED = "primary-granted"
PREPARE_LOGGED = "prepare-logged"
OUTCOME_LOGGED = "outcome-logged"
SNAPSHOT_INSTALLING = "snapshot-installing"
SNAPSHOT_INSTALLED = "snapshot-installed"
SNAPSHOT_SAVED = "snapshot-saved"
MEMBERS_CATCHING_UP = "members-catching-up"
MEMBERS_JOINT = "members-joint"
MEMBERS_STABLE = "members-stable"
LEASE_ENDING = "lease-ending"

KNOWN = {
    LEADER_ELECTED: "this node begins to lead a group (groups/host.py)",
    PRIMARY_GRANTED: "this node's takeover of a partition is applied (placement/lease_manager.py)",
    PREPARE_LOGGED: "a prepare is durable, its coordinator not told yet (tx/primary.py)",
    OUTCOME_LOGGED: "a commit of several partitions is durable at home, no other participant and "
    "no client told yet (tx/primary.py)",
    SNAPSHOT_INSTALLING: "all bytes of a snapshot are here, nothing of it is installed "
    "(groups/snapshot_manager.py)",
    SNAPSHOT_INSTALLED: "a received snapshot took the place of log and state, in memory "
    "(groups/snapshot_manager.py)",
    SNAPSHOT_SAVED: "a snapshot is on the disk, the log names it and is cut "
    "(groups/snapshot_manager.py)",
    MEMBERS_CATCHING_UP: "a leader begins to change its group's members (groups/host.py)",
    MEMBERS_JOINT: "a leader's log holds the joint configuration (groups/host.py)",
    MEMBERS_STABLE: "a change of members is over (groups/host.py)",
    LEASE_ENDING: "this node's lease ends before another renewal (placement/lease_manager.py)",
}

# Is given the moment and the partition that it is of, ``None`` where it is of none.
Listener = Callable[[str, int | None], None]

_listener: contextvars.ContextVar[Listener | None] = contextvars.ContextVar(
    "listener of moments", default=None
)


def tell(moment: str, partition: int | None = None) -> None:
    """The node has come to ``moment``, one of ``KNOWN``."""
    listener = _listener.get()
    if listener is not None:
        listener(moment, partition)


def listen(listener: Listener) -> None:
    """From here on, in the running task and those that it starts, ``listener`` is told."""
    _listener.set(listener)
