"""A metastorage that hears, or commits, late: what seeds with zones draw in a simulated campaign
for its leader, which decides by what it has applied while the log behind says otherwise already.

* A node is silent for nearly too long, and its next renewal is in the log, but not committed yet,
  as the leader finds it gone.
* A node that stops is started again, and has joined, before the leader hears that it leaves.
* For some seconds all commits take longer than the leader waits for one: what it has given up and
  writes again is committed twice.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from random import Random

from harness.protocols.crash_points import METASTORAGE, MessageClass, Way
from harness.protocols.fault_kinds import with_strength
from harness.protocols.faults import PlannedFault

KINDS = ("renewal", "renewal", "leave", "leave", "commits")
APART_S = (2.5, 5.0)
# So long before a node is out at the latest its renewals come again: one every quarter of a second.
_AGAIN_S = 0.3
# The leader's commits are held from a little before that until a little past it, so that it stays
# the leader: heartbeats pass.
_BEFORE_S, _PAST_S = 0.06, (0.1, 0.25)
# A leave is held from before the stop on until the node has joined again; its link is silent for
# less than the store bears.
_HELD_S, _STOPPED_S, _DOWN_S = (0.8, 1.25), 0.1, 0.05
# Of each sync, and for how long: a write is given up after a second.
_SLOW_MS, _SLOW_S = (500.0, 700.0), (4.0, 6.0)


def stories(
    draw: Random,
    *,
    nodes: Sequence[str],
    voters: Sequence[str],
    detection_s: float,
    begin_s: float,
    end_s: float,
    kinds: Sequence[str] = KINDS,
) -> Iterator[PlannedFault]:
    """Yield the faults of stories of ``kinds`` one behind the other, over at ``end_s``: of
    ``nodes``, any of which may go, and of the ``voters`` of metastorage. A node that is silent for
    ``detection_s`` is gone.
    """
    at_s = begin_s
    while True:
        told = draw.choice(kinds)
        if told == "renewal":
            faults = tuple(_late_renewal(draw, at_s, draw.choice(nodes), detection_s))
        elif told == "leave":
            faults = tuple(_late_leave(draw, at_s, draw.choice(nodes)))
        else:
            faults = tuple(_late_commits(draw, at_s, voters))
        over_s = max(fault.at_s + fault.hold_s for fault in faults)
        if over_s > end_s:
            return
        yield from faults
        at_s = over_s + draw.uniform(*APART_S)


def _late_renewal(
    draw: Random, at_s: float, node: str, detection_s: float
) -> Iterator[PlannedFault]:
    again_s = at_s + detection_s - _AGAIN_S
    held_s = _BEFORE_S + _AGAIN_S + draw.uniform(*_PAST_S)
    yield _chosen("drop-messages", at_s, node, again_s - at_s, MessageClass.RENEWALS)
    appends = _chosen(
        "hold-messages",
        again_s - _BEFORE_S,
        "metastorage leader",
        held_s,
        MessageClass.APPENDS,
        of=METASTORAGE,
    )
    yield appends


def _late_leave(draw: Random, at_s: float, node: str) -> Iterator[PlannedFault]:
    held_s = draw.uniform(*_HELD_S)
    yield _chosen("hold-messages", at_s, node, held_s, MessageClass.JOINS, count=1)
    stopped_s = round(at_s + _STOPPED_S, 3)
    yield PlannedFault(at_s=stopped_s, kind="restart", target=node, hold_s=_DOWN_S)


def _late_commits(draw: Random, at_s: float, voters: Sequence[str]) -> Iterator[PlannedFault]:
    slow_s, slow_ms = round(draw.uniform(*_SLOW_S), 3), round(draw.uniform(*_SLOW_MS))
    for voter in voters:
        target = with_strength(voter, slow_ms, "ms")
        yield PlannedFault(at_s=round(at_s, 3), kind="disk-slow", target=target, hold_s=slow_s)


def _chosen(
    kind: str, at_s: float, target: str, hold_s: float, messages: MessageClass, **more: object
) -> PlannedFault:
    return PlannedFault(
        at_s=round(at_s, 3),
        kind=kind,
        target=target,
        hold_s=round(hold_s, 3),
        options={"messages": messages.value, "way": Way.FROM.value, **more},
    )
