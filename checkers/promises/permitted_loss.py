"""Excuses for stores that declare that they may lose data: those that continue without a majority.

Which writes a store may lose then is a question of its own. Until it is answered, the losses of
such a run decide nothing; without the loss of a majority everything counts. A loss takes a store
back in time, and no more: what two nodes that served at once have caused, or a value that no
transaction committed, counts in any case, and so does what was proven before the majority was out.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import Any

import attrs
import msgspec
import pyarrow as pa

from checkers.explain.attribution import windows
from harness.protocols.checker import Setting
from harness.protocols.fault_kinds import by_name
from harness.protocols.models import OF_LIMITS, OF_NODES, OF_SERVICE
from harness.protocols.roles import VOTES, parsed
from harness.protocols.verdict import Anomaly
from harness.text import seconds

_NO_PARTITION = -1  # in which only nodes of unknown roles vote

# Two nodes that serve at once: a reset ends the term and the lease of the replicas that it leaves
# out, and once all is healed one history is left.
_SPLIT_BRAIN = frozenset({"diverged-replicas", "lock-left", "stale-primary", "two-leaders"})

# Values of transactions that did not commit, or that nobody wrote, and flows of information in a
# circle. A lost suffix removes edges from the graph of what was written and read: it adds none.
_NO_COMMITTED_STATE = frozenset(
    {
        *("G0", "G1a", "G1b", "G1c"),
        *("dirty-update", "duplicate-elements", "future-read", "garbage-read", "internal"),
        "unexpected-key",
    }
)

# Anomalies that no loss of a majority excuses.
STILL_COUNTS = OF_NODES | OF_SERVICE | OF_LIMITS | _SPLIT_BRAIN | _NO_COMMITTED_STATE


@attrs.frozen(kw_only=True)
class Excuse:
    """The reason that excuses a store's losses, in words, and the time from which it holds."""

    since_ns: int
    text: str


def excuse(setting: Setting, faults: pa.Table) -> Excuse | None:
    """Return what excuses the store's losses in this run; ``None`` where nothing does."""
    declaration = setting.declaration
    least = declaration.forgets_without
    if isinstance(least, msgspec.UnsetType):
        return None
    keepers = declaration.keepers
    told = None if isinstance(keepers, msgspec.UnsetType) else keepers
    kinds = by_name(setting.fault_kinds)
    # A kind of which nothing is known may take its targets out: an accusation needs certainty.
    away = [
        window
        for window in windows(faults)
        if window["kind"] not in kinds or kinds[window["kind"]].may_be_missed
    ]
    found = _first_out(away, least, told)
    if found is None:
        return None
    at_ns, nodes = found
    return Excuse(
        since_ns=at_ns,
        text=f"{', '.join(nodes)} were out together from {seconds(at_ns)} on, and in mode "
        f"{declaration.mode} what they had acknowledged may be lost then; how much of it is not "
        "judged yet",
    )


def excused(anomalies: Mapping[str, Anomaly], why: Excuse | None) -> frozenset[str]:
    """Return the names of ``anomalies`` that decide nothing because of ``why``: those that a loss
    may show as, unless an example of them was complete before.
    """
    if why is None:
        return frozenset()
    return frozenset(
        name
        for name, anomaly in anomalies.items()
        if name not in STILL_COUNTS and not _proven_before(anomaly, why.since_ns)
    )


def _proven_before(anomaly: Anomaly, at_ns: int) -> bool:
    """Tell whether all operations of an example had ended before ``at_ns``."""
    return any(
        example.operations and all(one.complete_ns < at_ns for one in example.operations)
        for example in anomaly.examples
    )


def _votes(window: Mapping[str, Any]) -> frozenset[int] | None:
    """Return the partitions in which the fault's targets had a vote, by their roles; ``None`` where
    the roles are not known.
    """
    roles = window["roles"]
    if not roles:
        return None
    voting = (role.partition for role in parsed(roles) if role.kind in VOTES)
    return frozenset(partition for partition in voting if partition is not None)


def _first_out(
    away: Iterable[Mapping[str, Any]], least: int, keepers: Collection[str] | None
) -> tuple[int, tuple[str, ...]] | None:
    """Return the first moment at which ``least`` nodes that vote in the same partition were under
    the faults ``away`` together, and those nodes. A target without a known role may vote in any
    partition, if it is one of ``keepers`` (any target may, where the store does not declare them).
    """
    known = [(window, _votes(window)) for window in away]
    for now, _ in known:
        # The nodes that are out together grow in number only where a fault begins.
        at_ns = now["start_ns"]
        out = [
            (node, votes)
            for window, votes in known
            if window["start_ns"] <= at_ns
            and (window["end_ns"] is None or at_ns < window["end_ns"])
            for node in window["nodes"] or ()
            if keepers is None or node in keepers
        ]
        partitions = frozenset[int]().union(*(votes for _, votes in out if votes is not None))
        for partition in (_NO_PARTITION, *sorted(partitions)):
            lost = {node for node, votes in out if votes is None or partition in votes}
            if len(lost) >= least:
                return at_ns, tuple(sorted(lost))
    return None
