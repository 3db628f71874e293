"""What a seed of a simulated campaign draws for crash points and chosen messages.

Some mistakes show only in situations that last for milliseconds, and that a random fault seldom
meets. So a choice of messages is often the first fault of a story that leads there:

* Logs of a group differ only where a leader has written entries that no follower has. The leader
  that can't replicate is deposed, and as it comes back, with its long tail, the next leader goes,
  or loses messages on its part; or that one goes as soon as it is elected, with a log that is
  shorter than the tail and of a later term.
* A leader's disk is so slow that what is cut off of its log is on its way there still, as it wakes
  from a pause and another one replaces it.
* A participant has prepared, and can't finish: its group has no majority until home has given up
  to wait for it.
* Home has decided and falls silent, before any participant is told, for longer than any waits.
* A participant has prepared, its transaction is decided, and it is away for longer than outcomes
  are kept; meanwhile others are left undecided, which moves the horizon of their homes.
* A commit is on its way to home for longer than participants wait, which ask there meanwhile.
* Primaries lose their leases while they lead, since renewals are lost, and what one has proposed
  before is committed after that.
* Voters hear nothing of metastorage until they take the lease of their primary for over, which goes
  on renewing it; then it stands still for a moment, and one of them leads.
* A primary whose clock loses as much as is allowed is out of reach for longer than its lease.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from random import Random

from msgspec.structs import replace

from clusters.reference import churn
from clusters.reference.node.placement.lease_expiry import LEASE_S
from harness.plan.plan import Plan
from harness.protocols.crash_points import (
    DATAGRAMS,
    METASTORAGE,
    MessageClass,
    Operation,
    Way,
    When,
)
from harness.protocols.fault_kinds import CLOCK_FAST, CLOCK_SLOW, with_strength
from harness.protocols.faults import ITS_NODE, PlannedFault
from harness.protocols.moments import Moment

DRIFT_EDGE = 4.8  # % between two clocks; the design allows 5
CRASHES = ("crash",)
MESSAGES = ("double-messages", "drop-messages", "hold-messages", "reorder-messages")
CHOSEN = (*CRASHES, *MESSAGES)
_ANY_ORDER = ("double-messages", "reorder-messages")  # only of what is sent without an answer
# By which the parts of a transaction are decided, and how long a lack of them lasts.
_DECIDING = (
    *(MessageClass.PREPARES, MessageClass.COMMITS, MessageClass.EXECUTES),
    *(MessageClass.FINISHES, MessageClass.RESOLVES),
)
# Where no zones are nothing joins; stories of zones name that class themselves.
_CLASSES = tuple(each for each in MessageClass if each is not MessageClass.JOINS)
_PATIENCE_S = (2.1, 3.2)
_UNTIL = (Moment.LEADER_ELECTED, Moment.PRIMARY_GRANTED)
_MOST_NTH = 300  # operations of a busy node within a second or two
# The part of the choices of a schedule that keeps a leader from replicating.
_DIVERGING = 0.5
_STORY_SHARE = 0.8  # of the seeds that choose messages
_STORY_S, _FIRST_S = 7.5, 1.0  # how long most of them take, and when they begin at the earliest
_MOST_STORIES, _BETWEEN_S = 2, (1.0, 3.0)
_SHORT_REIGN = 0.6  # the share of leaders that go as they are elected
_SLOW_DISK, _SLOW_MS = 0.4, (100.0, 250.0, 400.0)
# So long is the leader with a slow disk paused: past an election, and its links hold still.
_DOZES_S = (0.75, 1.05)
_DEPOSING = ("kill", "pause")  # beside messages that are chosen; a cut would wait for their end
_REPLICAS = 3  # fewer have no majority without the leader
_TAIL_S = (0.2, 0.8)  # in which the leader writes what nobody else has
_AWAY_S = (0.7, 1.6)  # deposed: an election takes from 0.2 s to 1.3 s
_BACK_S = (-0.15, 0.15)  # the next leader goes about as the one before is back
_NEXT_S = (0.5, 1.2)
_LOSSY_S = (0.4, 1.5)
_SOON_S = 0.3
_LATE_S = 2.0  # by so much a fault of a sequence comes later where no leader is there for it yet
_REIGN_S = (0.001, 0.04)  # of a leader that goes as it is elected: its first entry is on its way
_UNTOLD_S = (1.2, 2.6)  # that it is away: the two that are left elect a leader meanwhile
# Past what home waits for a participant to finish, and a participant for home to tell.
_UNFINISHED_S = (2.9, 4.2)
_ONE_MOMENT = 0.4
# Less than an election waits for: what is behind the commits is held, too.
_HELD_UP_S, _PREPARED_OF_IT = (0.2, 0.33), 0.7
_CUT_S, _DRIFTING_S = (1.2, 1.9), 0.8  # past the end of a lease; a drift shows before it
_SILENT_S = (4.0, 4.6)
# Past what participants wait, and hardly longer: a link that is silent for as long as a commit is
# held on it is dropped, and with it the commit, which then comes never instead of late.
_OVERTAKEN_S = (1.12, 1.4)
_LAPSED_S, _PROPOSED_S, _ON_ITS_WAY_S = (1.4, 2.0), (0.5, 0.8), (0.35, 0.7)
_DEAF_S, _STANDING_S = (0.15, 0.4), (0.5, 0.85)  # past a lease; for less than it lasts
_PAST_IT_S = (1.0, 2.0)  # of the time for which outcomes are kept
_COMMITTING_S = (0.002, 0.004, 0.006)  # of a prepare: its coordinator has been told by then


def sharpened(
    draw: Random, fault: PlannedFault, plan: Plan, end_s: float, *, first: bool = False
) -> Iterator[PlannedFault]:
    """Yield the drawn ``fault`` of a kind in ``CHOSEN`` with its options, and the faults that
    follow from it; all are over at ``end_s``. The ``first`` fault of a seed waits for no moment,
    which may not come.
    """
    if fault.kind in CRASHES:
        yield replace(fault, options=_point(draw))
        return
    if fault.kind not in _ANY_ORDER and _diverges(plan) and draw.random() < _DIVERGING:
        sequence = tuple(_divergence(draw, fault.kind, fault.at_s, plan))
        if _fit(sequence, end_s) and not (first and _only_wait(sequence)):
            yield from sequence
            return
    yield _at_random(draw, fault, plan, end_s)


def stories(draw: Random, plan: Plan, end_s: float) -> tuple[tuple[PlannedFault, ...], ...]:
    """Return the faults of one or more stories, one after the other and over at ``end_s``; none
    where ``plan`` has no room for it or does not draw such faults. Nothing else should come between
    the faults of one.
    """
    kinds = sorted({"drop-messages", "hold-messages"} & set(plan.nemesis.mix))
    weights = tuple(told(plan) for told in _STORIES.values())
    if not kinds or not any(weights) or draw.random() >= _STORY_SHARE:
        return ()
    found: list[tuple[PlannedFault, ...]] = []
    at_s = draw.uniform(_FIRST_S, max(_FIRST_S, min(_FIRST_S + _STORY_S, end_s - _STORY_S)))
    while len(found) < _MOST_STORIES:
        (told,) = draw.choices(tuple(_STORIES), weights)
        faults = tuple(told(draw, draw.choice(kinds), round(at_s, 3), plan))
        if not (found or _fit(faults, end_s)):
            # One that is longer than most begins as soon as any.
            early_s = min(each.at_s for each in faults) - _FIRST_S
            faults = tuple(replace(f, at_s=round(f.at_s - early_s, 3)) for f in faults)
        if not _fit(faults, end_s):
            break
        found.append(faults)
        at_s = max(each.at_s + each.hold_s for each in faults) + draw.uniform(*_BETWEEN_S)
    return tuple(found)


def _fit(faults: Sequence[PlannedFault], end_s: float) -> bool:
    return all(each.at_s + each.hold_s + _LATE_S <= end_s for each in faults)


def _only_wait(faults: Sequence[PlannedFault]) -> bool:
    return all(each.on is not None for each in faults)


def _at_random(draw: Random, fault: PlannedFault, plan: Plan, end_s: float) -> PlannedFault:
    """``fault`` of messages of any class."""
    messages = _messages(draw, fault)
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
    several = _replicas(plan) > 1
    role = draw.choice(("leader", "primary", "other voter") if several else ("leader",))
    hold_s = fault.hold_s
    if messages in _DECIDING and "count" not in options and draw.random() < 0.5:
        # Past what the node waits for an answer itself, as far as there is time for it.
        hold_s = max(hold_s, min(draw.uniform(*_PATIENCE_S), end_s - fault.at_s))
    target = f"{role} of partition {draw.randrange(_partitions(plan))}"
    return replace(fault, target=target, hold_s=round(hold_s, 3), options=options)


def _messages(draw: Random, fault: PlannedFault) -> MessageClass:
    if fault.kind in _ANY_ORDER:
        return draw.choice(sorted(DATAGRAMS))
    return draw.choice(_CLASSES)


def _replicas(plan: Plan) -> int:
    return int(str(plan.system.options.get("replicas", _REPLICAS)))


def _partitions(plan: Plan) -> int:
    known = plan.system.options.get("partitions")
    return churn.partitions(plan) if known is None else int(str(known))


def _point(draw: Random) -> dict[str, object]:
    """The options of a crash: at the disk as often as at a message, of any class or of one."""
    at = draw.choice((Operation.SYNC, Operation.SYNC, Operation.SEND, Operation.RECEIVE))
    options: dict[str, object] = {"at": at.value, "when": draw.choice(tuple(When)).value}
    if at is Operation.SYNC or draw.random() < 0.4:
        options["nth"] = draw.randint(1, _MOST_NTH)
    else:
        # Of one class there are few, and none of some.
        options["messages"] = draw.choice(_CLASSES).value
        options["nth"] = draw.randint(1, 5)
    return options


def _divergence(draw: Random, kind: str, begin_s: float, plan: Plan) -> Iterator[PlannedFault]:
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

    slow = draw.random() < _SLOW_DISK
    # Held ones arrive when another leads, or long after.
    yield planned(begin_s, kind, leader, tail_s + _SOON_S, way=Way.FROM.value, **appends)
    fallen_s = begin_s + tail_s
    if slow:
        # What is cut off of its log is on its way to the disk still.
        away_s = draw.uniform(*_DOZES_S)
        target = with_strength(leader, draw.choice(_SLOW_MS), "ms")
        yield planned(begin_s, "disk-slow", target, tail_s + away_s + _SOON_S)
        yield planned(fallen_s, "pause", leader, away_s)
        return
    yield planned(fallen_s, draw.choice(_DEPOSING), leader, away_s)
    if draw.random() < _SHORT_REIGN:
        reign = planned(fallen_s, "kill", ITS_NODE, draw.uniform(*_UNTOLD_S))
        reign_s = round(draw.uniform(*_REIGN_S), 3)
        yield replace(reign, on=Moment.LEADER_ELECTED, by=leader, after_s=reign_s, options=None)
        return
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


def _unfinished(draw: Random, kind: str, begin_s: float, plan: Plan) -> Iterator[PlannedFault]:
    """Participants that have prepared, and whose group then has no majority for a while: at a
    moment of one, or of all whose commits are held up on their way to a home.
    """
    # Home is the first of those that are written.
    partition = draw.randrange(1, _partitions(plan))
    appends = PlannedFault(
        at_s=begin_s,
        kind=kind,
        target=f"primary of partition {partition}",
        hold_s=round(draw.uniform(*_UNFINISHED_S), 3),
        options={"messages": MessageClass.APPENDS.value, "of": partition, "way": Way.BOTH.value},
    )
    if draw.random() < _ONE_MOMENT:
        yield replace(
            appends,
            target=ITS_NODE,
            on=Moment.PREPARE_LOGGED,
            by=appends.target,
            after_s=draw.choice((None, 0.001, 0.003)),
            nth=draw.choice((None, None, 2, 5)),
        )
        return
    held_s = round(draw.uniform(*_HELD_UP_S), 3)
    yield PlannedFault(
        at_s=begin_s,
        kind="hold-messages",
        target="primary of partition 0",
        hold_s=held_s,
        options={"messages": MessageClass.COMMITS.value, "way": Way.TO.value},
    )
    yield replace(appends, at_s=round(begin_s + _PREPARED_OF_IT * held_s, 3))


def _silent_home(draw: Random, kind: str, begin_s: float, plan: Plan) -> Iterator[PlannedFault]:
    """The node of a home goes as that has decided, and no other leads in its place for a while."""
    del kind
    silent_s = round(draw.uniform(*_SILENT_S), 3)
    after_s = draw.choice((None, None, 0.001))
    # Of two replicas the other one is no majority by itself, of three it is one with a third.
    targets = (ITS_NODE, "other voter of its partition") if _replicas(plan) > 2 else (ITS_NODE,)
    for target in targets:
        yield PlannedFault(
            at_s=begin_s,
            kind="kill",
            target=target,
            hold_s=silent_s,
            on=Moment.OUTCOME_LOGGED,
            after_s=after_s,
        )


def _overtaken(draw: Random, kind: str, begin_s: float, plan: Plan) -> Iterator[PlannedFault]:
    """A commit or two come to home later than the questions of participants for the outcome: all
    that is behind them on their connections waits, too, so that others have to ask.
    """
    del kind
    at_s = begin_s
    for _ in range(draw.choice((2, 3))):
        hold_s = round(draw.uniform(*_OVERTAKEN_S), 3)
        yield PlannedFault(
            at_s=round(at_s, 3),
            kind="hold-messages",
            target=f"primary of partition {draw.choice((0, 0, _partitions(plan) - 2))}",
            hold_s=hold_s,
            options={
                "messages": MessageClass.COMMITS.value,
                "way": Way.TO.value,
                "count": draw.choice((1, 1, 2)),
            },
        )
        at_s += hold_s + draw.uniform(0.3, 0.6)


def _lapsed(draw: Random, kind: str, begin_s: float, plan: Plan) -> Iterator[PlannedFault]:
    """No renewal comes to metastorage until leases are over, and longer: each primary leads still,
    and one has proposed before that what comes to be committed behind it.
    """
    del kind
    yield PlannedFault(
        at_s=begin_s,
        kind="drop-messages",
        target="metastorage leader",
        hold_s=round(draw.uniform(*_LAPSED_S), 3),
        options={"messages": MessageClass.RENEWALS.value, "way": Way.TO.value},
    )
    if _replicas(plan) > 1:
        partition, slow_s = draw.randrange(_partitions(plan)), draw.uniform(*_PROPOSED_S)
        primary, hold_s = f"primary of partition {partition}", draw.uniform(*_ON_ITS_WAY_S)
        # Heartbeats pass, so that no other is elected.
        yield PlannedFault(
            at_s=round(begin_s + slow_s, 3),
            kind="hold-messages",
            target=primary,
            hold_s=round(hold_s, 3),
            options={
                "messages": MessageClass.APPENDS.value,
                "of": partition,
                "way": Way.FROM.value,
            },
        )


def _deaf(draw: Random, kind: str, begin_s: float, plan: Plan) -> Iterator[PlannedFault]:
    """Voters of a partition hear nothing of metastorage for longer than a lease, and then their
    primary stands still for less than that.
    """
    partition = draw.randrange(_partitions(plan))
    standing_s = draw.uniform(*_STANDING_S)
    # The last renewal came a quarter of a second before it at most.
    at_s = begin_s + LEASE_S + draw.uniform(*_DEAF_S)
    for _ in range(2):  # of another voter each
        yield PlannedFault(
            at_s=begin_s,
            kind=kind,
            target=f"other voter of partition {partition}",
            hold_s=round(at_s + standing_s - begin_s, 3),
            options={
                "messages": MessageClass.APPENDS.value,
                "of": METASTORAGE,
                "way": Way.TO.value,
            },
        )
    primary = f"primary of partition {partition}"
    yield PlannedFault(
        at_s=round(at_s, 3), kind="pause", target=primary, hold_s=round(standing_s, 3)
    )


def _outlasting(draw: Random, kind: str, begin_s: float, plan: Plan) -> Iterator[PlannedFault]:
    """A participant goes as its commit is on the way to home, and comes back when outcomes of that
    time are dropped; the next ones go for a moment as theirs have prepared and none knows it.
    """
    del kind
    partition = draw.randrange(1, _partitions(plan))

    def killed(target: str, hold_s: float, at_s: float, **when: object) -> PlannedFault:
        gone = PlannedFault(at_s=round(at_s, 3), kind="kill", target=target, hold_s=hold_s)
        return replace(gone, on=Moment.PREPARE_LOGGED, **when)

    away_s = round(_kept_s(plan) + draw.uniform(*_PAST_IT_S), 3)
    by, after_s = f"primary of partition {partition}", draw.choice(_COMMITTING_S)
    yield killed(ITS_NODE, away_s, begin_s, by=by, after_s=after_s)
    if _replicas(plan) == _REPLICAS:
        yield killed("other voter of its partition", away_s, begin_s, by=by, after_s=after_s)
    for later_s in (0.0, 0.8):
        # What they ask home for then was never decided.
        yield killed(ITS_NODE, 0.4, begin_s + later_s, nth=draw.choice((2, 3)))


def _drifting(draw: Random, kind: str, begin_s: float, plan: Plan) -> Iterator[PlannedFault]:
    """A primary with a slow clock is cut off until another takes its place."""
    del kind
    primary = f"primary of partition {draw.randrange(_partitions(plan))}"
    cut_s = draw.uniform(*_CUT_S)
    slow = with_strength(primary, DRIFT_EDGE, "%")
    yield PlannedFault(
        at_s=begin_s, kind=CLOCK_SLOW.name, target=slow, hold_s=round(_DRIFTING_S + cut_s, 3)
    )
    yield PlannedFault(
        at_s=round(begin_s + _DRIFTING_S, 3),
        kind=draw.choice(("partition", "partition", "pause")),
        target=primary,
        hold_s=round(cut_s, 3),
    )


def _diverges(plan: Plan) -> int:
    return 5 if _replicas(plan) >= _REPLICAS else 0


def _longest(plan: Plan) -> int:
    """How many keys a transaction may have: a register has one, a transfer two accounts."""
    if plan.workload.name == "register":
        return 1
    return int(str(plan.workload.options.get("max_length", 2)))


def _has_participants(plan: Plan) -> bool:
    """Whether there are transactions of several partitions."""
    return min(_longest(plan), _partitions(plan)) > 1


def _leaves_unfinished(plan: Plan) -> int:
    if _replicas(plan) < 2 or not _has_participants(plan):
        return 0
    # Most is at stake where a transaction has several participants.
    return 12 if min(_longest(plan), _partitions(plan)) > 2 else 4


def _is_overtaken(plan: Plan) -> int:
    # The node of a coordinator, that of home, and a participant on a third.
    return 6 if _has_participants(plan) and plan.cluster.nodes >= 3 else 0


def _lapses(plan: Plan) -> int:
    # A node alone hears of its renewals, and of what it proposes, without a message.
    return 0 if plan.cluster.nodes < 2 else 6 if _replicas(plan) > 1 else 2


def _is_deaf(plan: Plan) -> int:
    return 6 if _replicas(plan) >= _REPLICAS and plan.cluster.nodes > _REPLICAS else 0


def _falls_silent(plan: Plan) -> int:
    # With two nodes gone metastorage keeps its majority: the others go on.
    alone = _replicas(plan) < _REPLICAS or plan.cluster.nodes > 2 * (_REPLICAS - 1)
    return 14 if _has_participants(plan) and _replicas(plan) <= _REPLICAS and alone else 0


def _kept_s(plan: Plan) -> float:
    """For how long outcomes are kept, where that is said."""
    tuning = plan.system.options.get("tuning")
    return float(str(tuning.get("outcome_retention_s", 0))) if isinstance(tuning, dict) else 0.0


def _outlasts(plan: Plan) -> int:
    replicas = _replicas(plan)
    # Metastorage and the homes go on: so many nodes are left.
    alone = plan.cluster.nodes > (2 * (_REPLICAS - 1) if replicas == _REPLICAS else _REPLICAS)
    whole = replicas <= _REPLICAS and alone and not plan.cluster.spares
    return 40 if whole and _kept_s(plan) and _has_participants(plan) else 0


def _drifts(plan: Plan) -> int:
    # Where clocks are in the mix another may drift the other way.
    others = set(plan.nemesis.mix) & {CLOCK_FAST.name, CLOCK_SLOW.name}
    return 0 if others or plan.cluster.spares or _replicas(plan) < _REPLICAS else 1


# How likely each is in a plan; 0 where it can't be told.
_STORIES: Mapping[
    Callable[[Random, str, float, Plan], Iterator[PlannedFault]], Callable[[Plan], int]
]
_STORIES = {
    _divergence: _diverges,
    _unfinished: _leaves_unfinished,
    _silent_home: _falls_silent,
    _overtaken: _is_overtaken,
    _lapsed: _lapses,
    _deaf: _is_deaf,
    _outlasting: _outlasts,
    _drifting: _drifts,
}
