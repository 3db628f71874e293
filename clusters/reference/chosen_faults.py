"""What a seed of a simulated campaign draws for crash points and chosen messages.

Logs of a group differ only where a leader has written entries that no follower has, and a mistake
in mending them shows only while they differ: for milliseconds, which a random fault seldom meets.
So a choice of appends is the first fault of a sequence: the leader that can't replicate is deposed,
and as it comes back, with its long tail, the next leader goes, or loses messages on its part.
"""

from __future__ import annotations

from collections.abc import Iterator
from random import Random

from msgspec.structs import replace

from harness.plan.plan import Plan
from harness.protocols.crash_points import DATAGRAMS, MessageClass, Operation, Way, When
from harness.protocols.faults import PlannedFault
from harness.protocols.moments import Moment

CRASHES = ("crash",)
MESSAGES = ("double-messages", "drop-messages", "hold-messages", "reorder-messages")
CHOSEN = (*CRASHES, *MESSAGES)
_ANY_ORDER = ("double-messages", "reorder-messages")  # only of what is sent without an answer
# By which the parts of a transaction are decided, and how long a lack of them lasts.
_DECIDING = (
    *(MessageClass.PREPARES, MessageClass.COMMITS, MessageClass.EXECUTES),
    *(MessageClass.FINISHES, MessageClass.RESOLVES),
)
_PATIENCE_S = (2.1, 3.2)
# The part of the choices that keeps a leader from replicating, and begins a sequence.
_DIVERGING = 0.6
_UNTIL = (Moment.LEADER_ELECTED, Moment.PRIMARY_GRANTED)
_MOST_NTH = 300  # operations of a busy node within a second or two
_DEPOSING = ("kill", "pause")  # beside messages that are chosen; a cut would wait for their end
_REPLICAS = 3  # fewer have no majority without the leader
_TAIL_S = (0.2, 0.8)  # in which the leader writes what nobody else has
_AWAY_S = (0.7, 1.6)  # deposed: an election takes from 0.2 s to 1.3 s
_BACK_S = (-0.15, 0.15)  # the next leader goes about as the one before is back
_NEXT_S = (0.5, 1.2)
_LOSSY_S = (0.4, 1.5)
_SOON_S = 0.3
_LATE_S = 2.0  # by so much a fault of a sequence comes later where no leader is there for it yet


def sharpened(
    draw: Random, fault: PlannedFault, plan: Plan, end_s: float
) -> Iterator[PlannedFault]:
    """Yield the drawn ``fault`` of a kind in ``CHOSEN`` with its options, and the faults that
    follow from it; all are over at ``end_s``.
    """
    if fault.kind in CRASHES:
        yield replace(fault, options=_point(draw))
        return
    messages = _messages(draw, fault)
    replicas = int(str(plan.system.options.get("replicas", _REPLICAS)))
    diverging = fault.kind not in _ANY_ORDER and draw.random() < _DIVERGING
    if diverging and replicas >= _REPLICAS:
        sequence = tuple(_divergence(draw, fault, plan))
        if all(each.at_s + each.hold_s + _LATE_S <= end_s for each in sequence):
            yield from sequence
            return
    partitions = _partitions(plan)
    options: dict[str, object] = {
        "messages": messages.value,
        "way": draw.choice(tuple(Way)).value,
    }
    if draw.random() < 0.4:
        options["count"] = draw.choice((1, 2, 5, 20))
    elif messages in DATAGRAMS and draw.random() < 0.6:
        # Lost or late one by one, as no stream loses them.
        options["share"] = round(draw.uniform(0.15, 0.6), 2)
    if fault.kind == "hold-messages" and draw.random() < 0.5:
        options["until"] = draw.choice(_UNTIL).value
    role = draw.choice(("leader", "primary", "other voter") if replicas > 1 else ("leader",))
    hold_s = fault.hold_s
    if messages in _DECIDING and "count" not in options and draw.random() < 0.5:
        # Past what the node waits for an answer itself, as far as there is time for it.
        hold_s = max(hold_s, min(draw.uniform(*_PATIENCE_S), end_s - fault.at_s))
    target = f"{role} of partition {draw.randrange(partitions)}"
    yield replace(fault, target=target, hold_s=round(hold_s, 3), options=options)


def _messages(draw: Random, fault: PlannedFault) -> MessageClass:
    if fault.kind in _ANY_ORDER:
        return draw.choice(sorted(DATAGRAMS))
    return draw.choice(tuple(MessageClass))


def _partitions(plan: Plan) -> int:
    return int(str(plan.system.options.get("partitions", 1)))


def _point(draw: Random) -> dict[str, object]:
    """The options of a crash: at the disk as often as at a message, of any class or of one."""
    at = draw.choice((Operation.SYNC, Operation.SYNC, Operation.SEND, Operation.RECEIVE))
    options: dict[str, object] = {"at": at.value, "when": draw.choice(tuple(When)).value}
    if at is Operation.SYNC or draw.random() < 0.4:
        options["nth"] = draw.randint(1, _MOST_NTH)
    else:
        # Of one class there are few, and none of some.
        options["messages"] = draw.choice(tuple(MessageClass)).value
        options["nth"] = draw.randint(1, 5)
    return options


def _divergence(draw: Random, fault: PlannedFault, plan: Plan) -> Iterator[PlannedFault]:
    """A leader that can't replicate for a while, its fall, and what meets it as it returns."""
    partition = draw.randrange(_partitions(plan))
    leader = f"leader of partition {partition}"
    appends = {"messages": MessageClass.APPENDS.value, "of": partition}
    tail_s, away_s = draw.uniform(*_TAIL_S), draw.uniform(*_AWAY_S)

    def planned(
        at_s: float, kind: str, target: str, hold_s: float, **options: object
    ) -> PlannedFault:
        return PlannedFault(
            at_s=round(at_s, 3),
            kind=kind,
            target=target,
            hold_s=round(hold_s, 3),
            options=options or None,
        )

    begin_s = fault.at_s
    # Held ones arrive when another leads, or long after.
    yield planned(begin_s, fault.kind, leader, tail_s + _SOON_S, way=Way.FROM.value, **appends)
    fallen_s = begin_s + tail_s
    yield planned(fallen_s, draw.choice(_DEPOSING), leader, away_s)
    back_s = fallen_s + away_s + draw.uniform(*_BACK_S)
    if draw.random() < 0.6:
        yield planned(back_s, draw.choice(_DEPOSING), leader, draw.uniform(*_NEXT_S))
    lossy_s = draw.uniform(*_LOSSY_S)
    match draw.choice(("none", "first", "some", "some")):
        case "first":
            target = f"other voter of partition {partition}"
            kind, count = draw.choice(("drop-messages", "reorder-messages")), draw.randint(1, 3)
            yield planned(back_s, kind, target, lossy_s, way=Way.TO.value, count=count, **appends)
        case "some":
            share = round(draw.uniform(0.3, 0.7), 2)
            yield planned(
                back_s, "drop-messages", leader, lossy_s, way="both", share=share, **appends
            )
