"""Zone timers: what some seeds of churn draw in place of changes of members.

Nodes with data come and go all the time, by twos and threes within the wait of one timer, back
before it ends or after, or back with other attributes before they are missed, while statements
alter waits, filters, replicas and the table's zone, and the data still moves for the statement
before; in some seeds all nodes, those of metastorage too, end and start again while timers run.
Metastorage lies apart from them, and in most of these seeds no fault touches it: so each switch of
data nodes has its time, and is owed by then. In the others its leaders change, or it hears and
commits late (``late_metastorage``).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from random import Random

import attrs

from clusters.reference import late_metastorage
from clusters.reference.node.catalog.catalog import PRIMARY_ZONE
from clusters.reference.node.catalog.options import (
    FILTER,
    HIGHLY_AVAILABLE,
    JOINT,
    MODE,
    REPLICAS,
    RESET_TIMEOUT,
    SCALE_DOWN,
    SCALE_UP,
)

# The table lies in the first, and for a while in the second; the others have timers alone, which
# cost little and are judged like theirs.
ZONES, TABLE = ("TIMED", "TIMED2", "TIMED3", "TIMED4"), "ITEMS"
ZONE, OTHER = ZONES[:2]
GONE = "GONE"
DRIVE_S = 50.0
CALM_S = 8.0  # at the end: for the last timers to fire, and for data to move
FIRST_S = (1.5, 3.0)
NOTICED_S = 0.3  # beside the detection, until a node that is gone is out of the topology
STARTS_S = 1.0  # until a node that is back is in it
SEEN_S = 2.0  # to see that a timer has fired, and only once
MOVES_S = 2.0  # between two statements, for data to move
LABEL = "ssd"
# Nodes that the first filter leaves out are admitted by another, and the other way round.
FILTERS = ('!"away"', f'"{LABEL}"', '!"away" && !{one}', '!"away" && !{one} && !{two}')
# A node that is cut off or stands still leaves the topology as well, and does not know it.
_GOES = {"kill": 11, "restart": 3, "partition": 3, "pause": 2, "attributes": 3}
_SHARE_TROUBLED = 0.25  # of the seeds, in which leaders of metastorage change, too
_SHARE_AVAILABLE = 0.5
_SHARE_RESTARTED, _RESTARTED_S = 0.5, 14.0  # of all nodes, once
_SHARE_DROPPED = 0.5
_SHARE_CONVERTED = 0.5
_SHARE_JOINED = 0.35  # of the statements, which make one wait of two in all zones that have two
_RESTARTS_S = 0.3
# Of those that come back in the next bout: they go again before the timer of their coming is due.
_VISITS, _STAYS_S = 0.4, (0.1, 1.0)
# A disk that is slow now and then, connections that break, small sizes: each may keep the leader of
# metastorage from a switch for longer than a late one is, and stands in no record.
_NOT_KEPT = (
    *("system.replicas", "system.partitions", "system.tuning."),
    *("system.snapshot_bytes", "system.append"),
)
_WEATHER = {"loss": 0.001, "reorder": 0.02, "duplicate": 0.01, "slow": 0.03}
_LEADER_GOES = ("kill", "pause", "restart")
_SHARE_LATE = 0.6  # of the seeds without other leaders: what their metastorage hears, or commits
_HOT = "hot"  # an attribute that no filter names

Row = dict[str, object]
Timed = tuple[tuple[int, ...], str]  # the waits and the filter of a zone


def settings(draw: Random, drawn: Mapping[str, object]) -> dict[str, object]:
    """Return ``drawn`` with a cluster of zones whose timers run, and its schedule."""
    troubled = draw.random() < _SHARE_TROUBLED
    late = not troubled and draw.random() < _SHARE_LATE
    system_nodes = 3 if troubled or late else draw.choice((1, 3))
    data = tuple(f"n{system_nodes + 1 + number}" for number in range(draw.choice((5, 6))))
    labelled = sorted(draw.sample(data, draw.randint(3, len(data) - 1)))
    detection_s = draw.choice((0.5, 0.7, 1.0))
    partitions, replicas = draw.choice((1, 1, 2, 3)), draw.choice((3, 3, 3, 5))
    mode = ""
    if draw.random() < _SHARE_AVAILABLE:
        mode = f", {MODE} = {HIGHLY_AVAILABLE}, {RESET_TIMEOUT} = {draw.randint(0, 3)}"
    zones = {zone: (_waits(draw), _filter(draw, data)) for zone in ZONES}
    bouts = tuple(_bouts(draw, float(max(zones[ZONE][0]))))
    restarted = not late and draw.random() < _SHARE_RESTARTED
    restarts = list(_restart_of_all(draw, bouts)) if restarted else []
    if restarts:
        bouts = _apart_from(bouts, restarts[0])
    schedule = [
        *_departures(draw, data, bouts, detection_s, labelled),
        *_alterations(draw, data, bouts, replicas, zones),
        *(_leaders(draw) if troubled and not restarts else ()),
        *(_late(draw, data, system_nodes, detection_s) if late else ()),
        *restarts,
    ]
    # What is drawn of replicas and partitions is said by statements.
    kept = {key: value for key, value in drawn.items() if not key.startswith(_NOT_KEPT)}
    return kept | {
        "cluster.options.rare": 0.0,
        "cluster.options.weather": dict(_WEATHER) if draw.random() < 0.5 else {},
        "cluster.nodes": system_nodes + len(data),
        "system.system_nodes": system_nodes,
        "system.system_apart": True,
        "system.attributes": {node: [LABEL] for node in labelled},
        "system.detection_s": detection_s,
        "system.phase2": bool(mode) and draw.random() < 0.5,
        "system.ddl": [
            *(
                f"CREATE ZONE {zone} WITH PARTITIONS = {partitions}, REPLICAS = {replicas},"
                f" {waits_text(own)}, {FILTER} = '{text}'{mode}"
                for zone, (own, text) in zones.items()
            ),
            f"CREATE TABLE {TABLE} WITH {PRIMARY_ZONE} = {ZONE}",
            *(_dropped(draw) if draw.random() < _SHARE_DROPPED else ()),
        ],
        "drive.duration_s": DRIVE_S,
        "drive.rate_per_s": round(draw.uniform(10, 18), 1),
        "drive.concurrency": draw.randint(6, 12),
        "nemesis.mix": [],
        "nemesis.schedule": sorted(schedule, key=lambda row: float(str(row["at_s"]))),
        "limits.quiesce_s": 30.0,
    }


def _dropped(draw: Random) -> Iterator[str]:
    """A table that is dropped with its zone, whose groups are to end; in half of the seeds both are
    made anew.
    """
    made = (
        f"CREATE ZONE {GONE} WITH PARTITIONS = {draw.choice((1, 2))}, REPLICAS = 3",
        f"CREATE TABLE {GONE} WITH {PRIMARY_ZONE} = {GONE}",
    )
    yield from (*made, f"DROP TABLE {GONE}", f"DROP ZONE {GONE}")
    if draw.random() < 0.5:
        yield from (made[0], made[1], f"DROP TABLE {GONE}")


def _waits(draw: Random) -> tuple[int, ...]:
    """The waits of a zone: for joins and for leaves, or one for both."""
    if draw.random() < 0.25:
        return _joint(draw)
    return draw.choice((0, 1, 2, 3, 4, 5)), draw.choice((2, 3, 4, 5, 6))


def _joint(draw: Random) -> tuple[int, ...]:
    return (draw.choice((3, 4, 5)),)


def _others(draw: Random, waits: tuple[int, ...]) -> tuple[int, ...]:
    """Other waits than ``waits``: every other time two become one or one becomes two, and so do the
    timers that run.
    """
    found = _waits(draw)
    if draw.random() < _SHARE_CONVERTED:
        while len(found) == len(waits):
            found = _waits(draw)
    return found


def waits_text(waits: tuple[int, ...]) -> str:
    """The options that say ``waits``."""
    if len(waits) == 1:
        return f"{JOINT} = {waits[0]}"
    return f"{SCALE_UP} = {waits[0]}, {SCALE_DOWN} = {waits[1]}"


def _filter(draw: Random, data: tuple[str, ...]) -> str:
    one, two = draw.sample(data, 2)
    return draw.choice(FILTERS).format(one=f'"{one}"', two=f'"{two}"')


@attrs.frozen
class Bout:
    """Some changes one behind the other, within about ``wait_s``, and then none until the timers
    that they have started have fired.
    """

    at_s: float
    wait_s: float
    next_s: float

    def within(self, draw: Random, share: float = 0.9) -> float:
        """A time of its changes."""
        return self.at_s + self.wait_s * draw.uniform(0.0, share)


def _bouts(draw: Random, wait_s: float) -> Iterator[Bout]:
    at_s = draw.uniform(*FIRST_S)
    while at_s + wait_s < DRIVE_S - CALM_S:
        next_s = at_s + wait_s * draw.uniform(1.9, 2.3) + SEEN_S
        yield Bout(at_s, wait_s, next_s)
        at_s = next_s


def _restart_of_all(draw: Random, bouts: tuple[Bout, ...]) -> Iterator[Row]:
    """All nodes end and start again, in the midst of a bout: timers that run go on."""
    for bout in reversed(bouts[1:]):
        if bout.at_s + bout.wait_s + _RESTARTED_S < DRIVE_S - CALM_S:
            options: Row = {
                "by": draw.choice(("kill", "stop")),
                "order": "random",
                "pause_s": round(draw.uniform(0.0, 0.5), 2),
                "down_s": round(draw.uniform(0.2, 2.0), 2),
            }
            at_s = bout.within(draw, 0.6)
            yield _row(at_s, "full-restart", "all", _RESTARTED_S) | {"options": options}
            return


def _apart_from(bouts: tuple[Bout, ...], restart: Row) -> tuple[Bout, ...]:
    """``bouts`` before ``restart``, and those after it."""
    at_s, end_s = (float(str(restart["at_s"])), float(str(restart["hold_s"])))
    return tuple(b for b in bouts if b.at_s + b.wait_s < at_s or b.at_s > at_s + end_s)


def _departures(
    draw: Random,
    data: tuple[str, ...],
    bouts: tuple[Bout, ...],
    detection_s: float,
    labelled: Sequence[str],
) -> Iterator[Row]:
    """Nodes that go and come back: some before the timer that their leave has started is due, some
    in the next bout, so that they join in the midst of others that go; and some of these go again
    before the timer that their coming has started is due.
    """
    most = draw.choice((2, 2, 3))
    back_s = dict.fromkeys(data, 0.0)
    for bout in bouts:
        begins = sorted(bout.within(draw) for _ in range(draw.choice((1, 2, 3, 4))))
        for at_s in begins:
            here = [node for node in data if back_s[node] <= at_s]
            if len(data) - len(here) >= most:
                continue
            node, soon = draw.choice(here), draw.random() < 0.5
            kind = draw.choices(tuple(_GOES), tuple(_GOES.values()))[0]
            if soon:
                hold_s = detection_s + NOTICED_S + bout.wait_s * draw.uniform(0.1, 0.8)
            else:
                hold_s = bout.next_s - at_s + bout.wait_s * draw.uniform(0.0, 0.8)
            hold_s = {"restart": _RESTARTS_S, "attributes": 1.0}.get(kind, hold_s)
            hold_s = min(hold_s, DRIVE_S - CALM_S + STARTS_S - at_s)
            back_s[node] = at_s + hold_s + STARTS_S
            gone = _row(at_s, kind, node, hold_s)
            if kind == "attributes":
                # Back within the detection, as another node that the same filters let in.
                names = [LABEL, _HOT] if node in labelled else [_HOT]
                yield gone | {"options": {"attributes": names, "by": "kill"}}
                continue
            yield gone
            again_s = back_s[node] + draw.uniform(*_STAYS_S)
            away_s = detection_s + NOTICED_S + bout.wait_s * draw.uniform(0.6, 1.2)
            visits = not soon and kind != "restart" and draw.random() < _VISITS
            if visits and again_s + away_s < DRIVE_S - CALM_S:
                back_s[node] = again_s + away_s + STARTS_S
                yield _row(again_s, kind, node, away_s)


def _alterations(
    draw: Random,
    data: tuple[str, ...],
    bouts: tuple[Bout, ...],
    replicas: int,
    zones: Mapping[str, Timed],
) -> Iterator[Row]:
    """Statements, some of which are taken back while data still moves for them, or nodes wait."""
    free_s = 0.0
    for bout in bouts:
        at_s = max(free_s, bout.within(draw, 1.3))
        if at_s >= min(bout.next_s, DRIVE_S - CALM_S - 1.0) or draw.random() < 0.3:
            continue
        statements, back = _statements(draw, data, replicas, zones)
        hold_s = draw.uniform(*draw.choice(((0.05, 0.4), (0.5, 2.0), (0.6 * bout.wait_s, 6.0))))
        hold_s = min(hold_s, DRIVE_S - CALM_S - at_s)
        free_s = at_s + hold_s + MOVES_S
        options: Row = {"statements": statements, "back": back}
        yield _row(at_s, "ddl", "all", hold_s) | {"options": options}


def _statements(
    draw: Random, data: tuple[str, ...], replicas: int, zones: Mapping[str, Timed]
) -> tuple[list[str], list[str]]:
    """Statements that alter what ``zones`` say, or where the table lies; and those that lead back.
    Waits and filters are those of any zone, since each has its timers.
    """
    two = [zone for zone in ZONES if len(zones[zone][0]) == 2]
    if two and draw.random() < _SHARE_JOINED:
        # Where timers of both kinds run they mostly have begun at different times.
        return (
            [f"ALTER ZONE {zone} SET {waits_text(_joint(draw))}" for zone in two],
            [f"ALTER ZONE {zone} SET {waits_text(zones[zone][0])}" for zone in two],
        )
    there, back = [], []
    for name in draw.sample(("replicas", "filter", "waits", "table"), draw.choice((1, 2, 2, 3))):
        any_zone = draw.choice((ZONE, ZONE, *ZONES))
        waits, text = zones[any_zone]
        subject, now, before = {
            "replicas": (
                f"ZONE {ZONE}",
                f"{REPLICAS} = {draw.choice((2, 4, 5))}",
                f"{REPLICAS} = {replicas}",
            ),
            "filter": (
                f"ZONE {any_zone}",
                f"{FILTER} = '{_filter(draw, data)}'",
                f"{FILTER} = '{text}'",
            ),
            "waits": (f"ZONE {any_zone}", waits_text(_others(draw, waits)), waits_text(waits)),
            "table": (f"TABLE {TABLE}", f"{PRIMARY_ZONE} = {OTHER}", f"{PRIMARY_ZONE} = {ZONE}"),
        }[name]
        there.append(f"ALTER {subject} SET {now}")
        back.append(f"ALTER {subject} SET {before}")
    return there, back[::-1]


def _leaders(draw: Random) -> Iterator[Row]:
    """Another node leads metastorage in the middle of waits, and goes on with them."""
    for at_s in (draw.uniform(4.0, 12.0), draw.uniform(15.0, DRIVE_S - CALM_S - 2.0)):
        kind = draw.choice(_LEADER_GOES)
        yield _row(at_s, kind, "metastorage leader", draw.uniform(0.3, 1.5))


def _late(
    draw: Random, data: tuple[str, ...], system_nodes: int, detection_s: float
) -> Iterator[Row]:
    """Metastorage hears of nodes, or commits, later than it waits."""
    system = tuple(f"n{number + 1}" for number in range(system_nodes))
    found = late_metastorage.stories(
        draw,
        nodes=data,
        voters=system,
        detection_s=detection_s,
        begin_s=draw.uniform(*FIRST_S),
        end_s=DRIVE_S - CALM_S,
    )
    for fault in found:
        row = _row(fault.at_s, fault.kind, fault.target, fault.hold_s)
        yield row if fault.options is None else row | {"options": dict(fault.options)}


def _row(at_s: float, kind: str, target: str, hold_s: float) -> Row:
    return {"at_s": round(at_s, 3), "kind": kind, "target": target, "hold_s": round(hold_s, 3)}
