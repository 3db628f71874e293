"""Majority losses: what a seed of a simulated campaign draws where its plan asks for a mode.

Such a seed has seven nodes with data and metastorage apart from them. In turn, majorities of them
are killed one behind the other, are cut off from metastorage, lag behind before the others go, or
all nodes are stopped and started; some losses an operator ends by a reset, replicas are restarted,
from their disks or without what is on them, data moves twice at once while leaders go, and
metastorage hears and commits late. A seed
tells several stories, and none twice: so each is told by one seed in three. All of it is drawn from
the seed alone, so the same seed in the other mode, or without phase 2, meets the same faults.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from random import Random

from clusters.reference import late_metastorage
from clusters.reference.node.catalog.options import FILTER, RESET_TIMEOUT
from clusters.reference.zones import ZONE
from harness.plan.overrides import said
from harness.protocols.faults import ITS_NODE
from harness.protocols.moments import Moment

ASKED_BY = "system.mode"
DATA_NODES = 7
MAJORITY = DATA_NODES // 2 + 1
_MOST_VOTERS = 3  # of metastorage
DRIVE_S = 72.0
CALM_S = 10.0  # at the end: to serve again, to be judged, and for what a chain waits for
FIRST_S = (1.5, 3.0)
APART_S = (2.5, 4.0)  # of two stories: nodes that were away are back by then
SERVES_IN_S = 4.0  # beside detection and the reset's timeout
LOST_S = 8.5  # mostly longer than these together
_MOMENTS = (Moment.MEMBERS_CATCHING_UP, Moment.MEMBERS_JOINT, Moment.MEMBERS_JOINT)
_WHOLE_S = 4.0  # for a node to be whole that has lost its disk
_MOVES_S = 3.0  # for data to lie where it is to
_LONG_TIMEOUT_S = 60  # of a reset, which an operator asks for meanwhile
_ASKED_SHARE = 0.4
_SILENT_SHARE = 0.6
_LINKED_SHARE = 0.7  # of full restarts
_AT_MOMENT_SHARE = 0.6
_MOVED_SHARE = 0.4
_SNAPSHOT_BYTES = (1500, 6000, 20_000)
_PLAIN_SHARE = 0.25  # of seeds where nothing but nodes moves, so that limits of a mode are tested
_PHASE2_SHARE = 0.7  # without it no chain is unwound
_VARIANTS = ("base", "base", "lock", "cancel")
# No bit flip: groups are often too small by then for the nemesis to strike one.
_DAMAGES = ("wipe", "wipe", "wipe", "disk-error", "disk-full")
_LEADER_GOES = ("kill", "kill", "pause", "restart")
_LATE_WEIGHT, _LATE_S = 22, 8.0
_SETTLED_S = 8.0  # from the last start, on slow disks, to copies that have everything
_OF_LATE = ("drop-messages", "hold-messages", "disk-slow")

KINDS = frozenset(
    (
        *("kill", "partition", "full-restart", "successive-loss", "ddl"),
        *(*_DAMAGES, *_LEADER_GOES, *_OF_LATE),
    )
)

Row = dict[str, object]
Story = Callable[[Random, tuple[str, ...]], Iterator[Row]]


def wanted(given: Mapping[str, object]) -> bool:
    """Whether ``given`` asks for losses of majorities: for a mode, and no schedule of its own."""
    return said(given, ASKED_BY) is not None and said(given, "nemesis.schedule") is None


def settings(
    draw: Random, workload: str, drawn: Mapping[str, object], given: Mapping[str, object]
) -> dict[str, object]:
    """Return ``drawn`` with a cluster of one zone in the mode that is ``given``, and with its
    schedule.
    """
    system_nodes = draw.choice((1, 1, _MOST_VOTERS))
    data = tuple(f"n{system_nodes + 1 + number}" for number in range(DATA_NODES))
    detection_s, timeout_s = draw.choice((0.5, 0.5, 1.0, 2.0)), draw.choice((0, 1, 1, 2, 3))
    phase2 = draw.random() < _PHASE2_SHARE
    replicas, partitions = draw.choice((3, 5, 5, 7, 7)), draw.choice((1, 2, 2, 4))
    system = tuple(f"n{number + 1}" for number in range(system_nodes))
    schedule = list(_schedule(draw, data, _late(system, detection_s)))
    found: dict[str, object] = {
        **drawn,
        "cluster.nodes": system_nodes + DATA_NODES,
        "system.system_nodes": system_nodes,
        "system.system_apart": True,
        "system.replicas": replicas,
        "system.partitions": partitions,
        "system.detection_s": detection_s,
        "system.rebalance": draw.choice(_VARIANTS),
        "drive.duration_s": DRIVE_S,
        "drive.rate_per_s": round(draw.uniform(10, 18), 1),
        "drive.concurrency": draw.randint(6, 16),
        "nemesis.mix": [],
        "nemesis.schedule": schedule,
        "limits.quiesce_s": 30.0,
    }
    # A log that is soon cut: what was away has to take a snapshot.
    found.setdefault("system.snapshot_bytes", draw.choice(_SNAPSHOT_BYTES))
    if workload == "list-append":
        # Partitions are asked apart: a transaction of several is refused for any of them.
        found |= {"workload.min_length": 1, "workload.max_length": draw.choice((1, 2, 3))}
    highly_available = said(given, ASKED_BY) == "HA"
    if highly_available:
        found |= {"system.reset_timeout_s": timeout_s, "system.phase2": phase2}
    served_s = detection_s + timeout_s + SERVES_IN_S if highly_available else 0.0
    if workload != "bank" and _loses(schedule, replicas, served_s):
        found |= (
            {"promise.kill.serves_within_s": served_s}
            if highly_available
            else {"promise.kill.refused_within_s": 1.0}
        )
    return found


def _loses(schedule: list[Row], replicas: int, served_s: float) -> bool:
    """Whether every partition certainly loses its majority by one kill for longer than ``served_s``
    and nothing else is in force for a while, nor does data move: else limits of a mode are not
    tested.
    """
    return not any("on" in row or "ALTER" in str(row.get("options")) for row in schedule) and any(
        row["kind"] == "kill"
        and float(str(row["hold_s"])) > served_s
        and str(row["target"]).count(",") + 1 >= DATA_NODES - replicas // 2
        and all(
            other is row or abs(float(str(other["at_s"])) - float(str(row["at_s"]))) >= LOST_S
            for other in schedule
        )
        for row in schedule
    )


def _schedule(draw: Random, data: tuple[str, ...], late: Story) -> Iterator[Row]:
    """The stories of a seed, one after the other and each once, as long as there is time."""
    at_s, left = draw.uniform(*FIRST_S), _STORIES | {late: _LATE_WEIGHT}
    if draw.random() < _PLAIN_SHARE:
        left = {**_PLAIN, _loss: 40}
    while left:
        story = draw.choices(tuple(left), tuple(left.values()))[0]
        del left[story]
        rows = list(story(draw, data))
        end_s = max(float(str(row["at_s"])) + float(str(row["hold_s"])) for row in rows)
        if at_s + end_s > DRIVE_S - CALM_S:
            continue  # there may be time for another one
        yield from ({**row, "at_s": round(at_s + float(str(row["at_s"])), 3)} for row in rows)
        # The next life of a node is to be whole before a majority may be gone.
        at_s += end_s + draw.uniform(*APART_S) + (_WHOLE_S if story is _damage else 0.0)


def _chain(draw: Random, data: tuple[str, ...]) -> Iterator[Row]:
    """Majorities go in turn, each time the last ones that are left, and then all are back; before
    it, in most cases, those that go first have what the others lack.
    """
    first, second, last = _parts(draw, data, (MAJORITY, 2, 1))
    lag_s = draw.choice((0.0, 1.5, 2.5))
    if lag_s:
        yield _row(0.0, "partition", (*second, *last), lag_s + 0.3)
    apart_s = draw.uniform(4.5, 6.0)
    goes_s = (lag_s, lag_s + apart_s, lag_s + 2 * apart_s)
    back_s = goes_s[-1] + draw.uniform(1.0, 2.0)
    for nodes, at_s in zip((first, second, last), goes_s, strict=True):
        yield _row(at_s, "kill", nodes, back_s + draw.uniform(0.0, 2.0) - at_s)


def _lag(draw: Random, data: tuple[str, ...]) -> Iterator[Row]:
    """A majority goes on alone, and is killed before the others have what it acknowledged; in half
    of the cases but for one of them, and what a leader has written among the others is longer.
    """
    gone, left = _parts(draw, data, draw.choice(((4, 3), (5, 2), (4, 2))))
    lag_s = draw.uniform(0.9, 3.0)
    yield _row(0.0, "partition", left, lag_s + 0.3)
    yield _row(lag_s, "kill", gone, draw.uniform(5.0, 8.0))


def _loss(draw: Random, data: tuple[str, ...]) -> Iterator[Row]:
    (gone,) = _parts(draw, data, (draw.randint(MAJORITY, DATA_NODES - 1),))
    yield _row(0.0, "kill", gone, draw.uniform(LOST_S, LOST_S + 1.0))


def _apart(draw: Random, data: tuple[str, ...]) -> Iterator[Row]:
    """A majority is cut off from metastorage, and from the others."""
    (gone,) = _parts(draw, data, (draw.randint(MAJORITY, DATA_NODES),))
    yield _row(0.0, "partition", gone, draw.uniform(2.0, 6.0))


def _one_by_one(draw: Random, data: tuple[str, ...]) -> Iterator[Row]:
    (gone,) = _parts(draw, data, (DATA_NODES - 1,))
    options = {"by": draw.choice(("kill", "stop")), "pause_s": round(draw.uniform(0.2, 1.0), 2)}
    yield _row(0.0, "successive-loss", gone, 11.0) | {"options": options}


def _all(draw: Random, data: tuple[str, ...]) -> Iterator[Row]:
    """All nodes, those of metastorage too, end and start again. In most cases a majority has been
    cut off for long enough to be reset by then: each copy has to find out whether it is of the link
    that counts.
    """
    lost_s = 0.0
    if draw.random() < _LINKED_SHARE:
        lost_s = draw.uniform(5.5, 7.0)
        (gone,) = _parts(draw, data, (draw.randint(MAJORITY, DATA_NODES - 1),))
        # It heals while all are down, or as they start.
        yield _row(0.0, "partition", gone, lost_s + draw.uniform(0.3, 2.0))
    pause_s, down_s = round(draw.uniform(0.0, 0.8), 2), round(draw.uniform(0.2, 1.5), 2)
    options = {
        "by": draw.choice(("kill", "stop")),
        "order": "random",
        "pause_s": pause_s,
        "down_s": down_s,
    }
    # The leader of metastorage may be started last, and all copies find their place after that.
    started_s = down_s + (_MOST_VOTERS + len(data) - 1) * pause_s
    hold_s = max(14.0, started_s + _SETTLED_S)
    yield _row(lost_s, "full-restart", ("all",), hold_s) | {"options": options}


def _again(draw: Random, data: tuple[str, ...]) -> Iterator[Row]:
    """More nodes go while the reset timer of the first runs; in half of the cases one of the first
    is back by then, or comes back before the timer is due.
    """
    size = draw.choice((MAJORITY, MAJORITY, MAJORITY + 1))
    first, next_ones = _parts(draw, data, (size, 1 if size > MAJORITY else draw.randint(1, 2)))
    goes_s, end_s = draw.uniform(0.3, 3.0), draw.uniform(LOST_S, LOST_S + 2.0)
    early = first[:1] if draw.random() < 0.5 else ()
    for node in early:
        yield _row(0.0, "kill", (node,), draw.uniform(1.5, 4.0))
    yield _row(0.0, "kill", first[len(early) :], end_s)
    yield _row(goes_s, "kill", next_ones, end_s - goes_s + draw.uniform(0.0, 1.0))


def _moved(draw: Random, data: tuple[str, ...]) -> Iterator[Row]:
    """A majority goes while data moves: as the next configuration is entered, or a moment after. In
    most cases some of those that are left lag behind, so that others have what they lack.
    """
    size = draw.randint(MAJORITY - 1, MAJORITY + 1)
    gone, behind = _parts(draw, data, (size, draw.choice((1, 2))))
    replicas = draw.choice((2, 3, 4, 5, 7))
    hold_s, lag_s = draw.uniform(6.0, 9.0), draw.choice((0.0, 0.8, 1.5))
    if lag_s:
        yield _row(0.0, "partition", behind, lag_s + draw.uniform(0.8, 2.0))
    yield _asked(lag_s, f"ALTER ZONE {ZONE} SET REPLICAS = {replicas}", hold_s + 1.0)
    struck = _row(lag_s, "kill", gone, hold_s)
    if draw.random() < _AT_MOMENT_SHARE:
        nth = draw.choice((None, None, 2))
        yield struck | {"on": draw.choice(_MOMENTS).value} | ({"nth": nth} if nth else {})
    else:
        yield struck | {"at_s": round(lag_s + draw.uniform(0.01, 0.8), 3)}


def _replaced(draw: Random, data: tuple[str, ...]) -> Iterator[Row]:
    """Data lies on three nodes and moves off two of them, and these go as the next ones are taken
    in: those alone have what the third one lacks. Or these have nothing yet, and an operator asks
    for a reset while the third one is silent, and not missed yet.
    """
    gone, third, others = _parts(draw, data, (2, 1, DATA_NODES - 3))
    moves_s = _MOVES_S + draw.choice((0.8, 1.5))
    hold_s = draw.uniform(6.0, 8.0)
    yield _asked(0.0, _without(others), 1.0)
    leaves = _asked(moves_s, _without(gone), hold_s + 1.5, _without(()))
    if draw.random() < _ASKED_SHARE:
        # Asked again and again, it comes as soon as the loss is noticed.
        reset = f"RESET PARTITIONS OF ZONE {ZONE}"
        options = {"statements": [_without(gone), reset], "may_be_refused": [reset]}
        yield leaves | {"options": options | {"back": [_without(())]}}
        for node in gone:
            yield _row(moves_s, "kill", (node,), hold_s) | {"on": Moment.MEMBERS_CATCHING_UP.value}
        yield _row(moves_s + draw.uniform(0.3, 2.0), "partition", third, 2.5)
        return
    yield leaves
    yield _row(_MOVES_S, "partition", third, moves_s - _MOVES_S + draw.uniform(0.8, 1.6))
    # Without the first one the old members decide no more: their next ones wait.
    for node, after_s in zip(gone, (None, draw.choice((0.05, 0.3))), strict=True):
        struck = _row(moves_s, "kill", (node,), hold_s) | {"on": Moment.MEMBERS_JOINT.value}
        yield struck if after_s is None else struck | {"after_s": after_s}


def _without(nodes: Sequence[str]) -> str:
    text = " && ".join(f'!"{node}"' for node in nodes or ("gone",))
    return f"ALTER ZONE {ZONE} SET {FILTER} = '{text}'"


def _reset(draw: Random, data: tuple[str, ...]) -> Iterator[Row]:
    """A majority lags or not, and is lost for good; an operator resets what it leaves, in most
    cases while one that may have more is silent, and not missed yet. No timer comes before him.
    """
    yield _asked(0.0, f"ALTER ZONE {ZONE} SET {RESET_TIMEOUT} = {_LONG_TIMEOUT_S}", 0.2)
    # Of those that are left one at least can be asked: without, the statement is in vain.
    size = draw.randint(MAJORITY, DATA_NODES - 2)
    gone, left = _parts(draw, data, (size, DATA_NODES - size))
    apart_s, lag_s = draw.uniform(1.0, 1.6), draw.choice((0.0, 1.0, 2.0))
    if lag_s:
        yield _row(apart_s, "partition", left, lag_s + 0.3)
    lag_s, hold_s = apart_s + lag_s, draw.uniform(8.0, 10.0)
    yield _row(lag_s, "kill", gone, hold_s)
    asked_s = lag_s + draw.uniform(3.0, 5.0)  # once it is noticed
    if draw.random() < _SILENT_SHARE:
        silent = draw.sample(left, draw.randint(1, len(left) - 1))
        yield _row(asked_s - draw.uniform(0.4, 1.2), "partition", sorted(silent), 2.5)
    back = f"ALTER ZONE {ZONE} SET {RESET_TIMEOUT} = {draw.randint(0, 3)}"
    hold_s = lag_s + hold_s + 0.5 - asked_s
    yield _asked(asked_s, f"RESET PARTITIONS OF ZONE {ZONE}", hold_s, back)


def _half(draw: Random, data: tuple[str, ...]) -> Iterator[Row]:
    """Data lies on four nodes, and exactly two of them go: half of them is no majority."""
    gone, left, others = _parts(draw, data, (2, 2, DATA_NODES - 4))
    moved = [f"ALTER ZONE {ZONE} SET REPLICAS = 4", _without(others)]
    gone_s, hold_s = _MOVES_S + draw.uniform(0.5, 1.0), draw.uniform(LOST_S, LOST_S + 1.0)
    options = {"statements": moved, "back": [_without(())]}
    yield _row(0.0, "ddl", ("all",), gone_s + hold_s + 0.5) | {"options": options}
    yield _row(gone_s, "kill", gone, hold_s)
    if draw.random() < 0.3:
        yield _row(gone_s + draw.uniform(4.0, 5.0), "pause", left[:1], draw.uniform(0.5, 1.5))


def _given(draw: Random, data: tuple[str, ...]) -> Iterator[Row]:
    """A majority goes, and then the node that its reset has chosen, before the others have what it
    has: one of those that are left goes on instead.
    """
    (gone,) = _parts(draw, data, (MAJORITY,))
    end_s = draw.uniform(LOST_S + 5.0, LOST_S + 7.0)
    yield _row(0.0, "kill", gone, end_s)
    # No other group is without a leader by then: who leads again does so by a reset.
    after_s = draw.choice((None, None, 0.01, 0.05))
    struck = _row(0.5, "kill", (ITS_NODE,), end_s - 3.5) | {"on": Moment.LEADER_ELECTED.value}
    yield struck if after_s is None else struck | {"after_s": after_s}


def _restart(draw: Random, data: tuple[str, ...]) -> Iterator[Row]:
    """Replicas are restarted by an operator, all or those of a node, where another may be gone."""
    one, other = draw.sample(data, 2)
    on = draw.choice(("", f" ON '{one}'"))
    gone_s = draw.choice((0.0, 4.0))  # longer than any detection
    if gone_s:
        yield _row(0.0, "kill", (other,), gone_s + draw.uniform(1.0, 2.0))
    yield _asked(gone_s, f"RESTART PARTITIONS OF ZONE {ZONE}{on}", 2.0)


def _cleanup(draw: Random, data: tuple[str, ...]) -> Iterator[Row]:
    """Copies of one node, in half of the cases of two, are cleaned up by an operator, while others
    lag, are gone or, in some, data moves: what is needed stays until they have it.
    """
    ones, behind = _parts(draw, data, (draw.choice((1, 2)), draw.choice((1, 2, 3))))
    kind, lag_s = draw.choice(("partition", "partition", "kill")), draw.choice((0.0, 1.5, 3.0))
    if lag_s:
        yield _row(0.0, kind, behind, lag_s)
    statements = []
    if draw.random() < _MOVED_SHARE:
        statements.append(f"ALTER ZONE {ZONE} SET REPLICAS = {draw.choice((3, 5, 7))}")
    cleanup = "RESTART PARTITIONS OF ZONE {} ON '{}' WITH CLEANUP"
    cleanups = [cleanup.format(ZONE, one) for one in ones]
    options = {"statements": [*statements, *cleanups], "may_be_refused": cleanups}
    at_s = max(lag_s - draw.uniform(0.3, 1.0), 0.1)
    # It may have to wait for those that lag, and then for data that moves.
    yield _row(at_s, "ddl", ("all",), 9.0) | {"options": options}


def _unled(draw: Random, data: tuple[str, ...]) -> Iterator[Row]:
    """A majority goes, and metastorage is without its leader as that is noticed, or as its reset is
    on the way: another one goes on with the timer.
    """
    (gone,) = _parts(draw, data, (draw.randint(MAJORITY, DATA_NODES - 1),))
    yield _row(0.0, "kill", gone, draw.uniform(LOST_S, LOST_S + 2.0))
    yield _row(
        draw.uniform(0.3, 5.0),
        draw.choice(_LEADER_GOES),
        ("metastorage leader",),
        draw.uniform(0.4, 1.8),
    )


def _twice(draw: Random, data: tuple[str, ...]) -> Iterator[Row]:
    """Data is to move, elsewhere before it has, and back; in most cases a leader goes at one of the
    stages, that of a group or that of metastorage.
    """
    hold_s = draw.choice((0.05, 0.4, draw.uniform(2.0, 5.0)))
    statements = [
        f"ALTER ZONE {ZONE} SET REPLICAS = {draw.choice((2, 3, 4, 5, 7))}",
        _without(draw.sample(data, 2)),
    ]
    options = {"statements": draw.sample(statements, 2), "back": [_without(())]}
    yield _row(0.0, "ddl", ("all",), hold_s) | {"options": options}
    struck = _row(0.0, draw.choice(_LEADER_GOES), (ITS_NODE,), draw.uniform(0.6, 1.8))
    match draw.choice(("group", "group", "metastorage", "none")):
        case "group":
            aim: Row = {"on": draw.choice(_MOMENTS).value, "nth": draw.choice((1, 2, 3))}
            yield struck | aim
        case "metastorage":
            at_s = round(draw.uniform(0.05, 2.0), 3)
            yield struck | {"target": "metastorage leader", "at_s": at_s}


def _damage(draw: Random, data: tuple[str, ...]) -> Iterator[Row]:
    """One node loses its disk, or the disk fails it: another member is taken in, or a copy of
    before comes back to what went on without it. In some cases a leader goes beside.
    """
    (node,) = _parts(draw, data, (1,))
    kind = draw.choice(_DAMAGES)
    yield _row(0.0, kind, node, draw.uniform(0.4, 2.0))
    if draw.random() < 0.4:
        at_s = draw.uniform(0.3, 3.0)
        yield _row(at_s, "pause", ("metastorage leader",), draw.uniform(0.6, 1.6))


def _late(system: tuple[str, ...], detection_s: float) -> Story:
    """The story of a metastorage of the nodes ``system`` that hears, and commits, late."""

    def late(draw: Random, data: tuple[str, ...]) -> Iterator[Row]:
        faults = late_metastorage.stories(
            draw, nodes=data, voters=system, detection_s=detection_s, begin_s=0.0, end_s=_LATE_S
        )
        for fault in faults:
            row = _row(fault.at_s, fault.kind, (fault.target,), fault.hold_s)
            yield row if fault.options is None else row | {"options": dict(fault.options)}

    return late


_PLAIN = {_chain: 16, _lag: 12, _loss: 10, _apart: 5, _one_by_one: 4, _all: 11, _again: 8}
_STORIES: dict[Story, int] = {
    **_PLAIN,
    **{
        _reset: 16,
        _restart: 10,
        _half: 8,
        _given: 10,
        _moved: 13,
        _replaced: 27,
        _cleanup: 16,
        _unled: 9,
        _twice: 10,
        _damage: 14,
    },
}


def _parts(
    draw: Random, data: tuple[str, ...], sizes: tuple[int, ...]
) -> tuple[tuple[str, ...], ...]:
    """Disjoint sets of so many nodes each, drawn."""
    some = draw.sample(data, len(data))
    found = []
    for size in sizes:
        found.append(tuple(sorted(some[:size])))
        some = some[size:]
    return tuple(found)


def _asked(at_s: float, statement: str, hold_s: float, back: str | None = None) -> Row:
    options = {"statements": [statement]} | ({} if back is None else {"back": [back]})
    # Of an operator: it is refused where nothing is to be done, or where copies are needed.
    if statement.startswith(("RESET", "RESTART")):
        options |= {"may_be_refused": [statement]}
    return _row(at_s, "ddl", ("all",), hold_s) | {"options": options}


def _row(at_s: float, kind: str, nodes: Sequence[str], hold_s: float) -> Row:
    target = ",".join(nodes)
    return {"at_s": at_s, "kind": kind, "target": target, "hold_s": round(hold_s, 3)}
