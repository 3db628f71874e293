"""Churn: what a seed of a simulated campaign draws where its plan asks for a variant of rebalance.

Such a seed has a cluster with distribution zones and spares, and beside a few usual faults
members that join, leave and replace each other, and statements that alter where data lies. All that
is drawn stands in the plan of the seed, as in ``swarm``.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import islice
from random import Random

from clusters.reference import late_metastorage
from clusters.reference.node.catalog.options import HIGHLY_AVAILABLE, MODE, RESET_TIMEOUT
from clusters.reference.node.config import DEFAULT_DETECTION_S
from clusters.reference.zones import partitions_of
from harness.plan.overrides import said
from harness.plan.plan import Plan
from harness.protocols.fault_kinds import with_strength
from harness.protocols.faults import ITS_NODE, PlannedFault
from harness.protocols.moments import Moment

ASKED_BY = "system.rebalance"
ZONE, OTHER, TABLE = "CHURN", "CHURN2", "ITEMS"
FILTER = "DATA_NODES_FILTER"
UP, DOWN = "DATA_NODES_AUTO_ADJUST_SCALE_UP", "DATA_NODES_AUTO_ADJUST_SCALE_DOWN"
EVERY_ONE = '!"away"'  # that a change of attributes has not sent away
# With fewer a member that leaves takes a majority of its partitions with it, and may not leave.
REPLICAS = 3
LEAST_NODES = 4  # all of them are members at first
SPARES = 2
# Kinds that strike while data moves; those that take a node's disk wait for whole replicas.
# Slow disks and links make the stages of a change long enough to fall into, and differ by member.
KINDS = ("delay", "disk-error", "disk-slow", "kill", "one-way", "partition", "pause", "restart")
CHOSEN = ("crash", "drop-messages", "drop-messages", "hold-messages")
_CHOSEN_SHARE = 0.5  # of the seeds, which have one of these beside
_FEWER_SHARE = 0.2  # of the seeds, in which there are fewer replicas for a while
_AVAILABLE_SHARE = 0.5  # of the seeds, whose zones are highly available
DRIVE_S = 38.0
FIRST_S = (1.0, 2.0)  # the first change, of which there are ``CHANGES``, so long apart
CHANGES = 6
APART_S = (4.5, 5.5)
HOLD_S = (0.5, 2.0)
_SLOW_MS, _SLOW_BEFORE_S, _SLOW_S = (120.0, 300.0), 0.2, 5.0  # of each sync
_JOINT_S = (0.02, 0.35)  # others have the joint configuration by then, and few have left it
_GONE_S = (0.8, 1.2)  # past an election
_BURST = (
    (
        f"ALTER ZONE {ZONE} SET {FILTER} = '{EVERY_ONE} && !\"n1\"'",
        f"ALTER ZONE {ZONE} SET {FILTER} = '{EVERY_ONE}'",
    ),
    (
        f"ALTER ZONE {ZONE} SET REPLICAS = {REPLICAS + 1}",
        f"ALTER ZONE {ZONE} SET REPLICAS = {REPLICAS}",
    ),
    (
        f"ALTER TABLE {TABLE} SET PRIMARY_ZONE = {OTHER}",
        f"ALTER TABLE {TABLE} SET PRIMARY_ZONE = {ZONE}",
    ),
)
_LATE_SHARE, _LATE_FROM_S, _LATE_CALM_S, _MOST_LATE = 0.5, (2.0, 14.0), 6.0, 4


def wanted(given: Mapping[str, object]) -> bool:
    """Whether ``given`` asks for churn."""
    return said(given, ASKED_BY) is not None


def settings(draw: Random, drawn: Mapping[str, object]) -> dict[str, object]:
    """Return ``drawn`` with a cluster whose members and placement may change."""
    partitions = draw.choice((1, 2, 2, 3, 4))
    up_s, down_s = draw.choice((0, 0, 1)), draw.choice((0, 0, 1, 2))
    without = draw.randint(1, LEAST_NODES)
    mode = ""
    if draw.random() < _AVAILABLE_SHARE:
        mode = f", {MODE} = {HIGHLY_AVAILABLE}, {RESET_TIMEOUT} = {draw.randint(0, 3)}"
    kinds = draw.sample(KINDS, draw.randint(1, 2))
    if draw.random() < _CHOSEN_SHARE:
        kinds.append(draw.choice(CHOSEN))
    # What is drawn of replicas and partitions is said by statements.
    kept = {
        key: value
        for key, value in drawn.items()
        if key not in ("system.replicas", "system.partitions")
    }
    return kept | {
        "cluster.nodes": draw.choice((LEAST_NODES, LEAST_NODES + 1)),
        "cluster.spares": SPARES,
        "system.system_nodes": 3,
        "system.system_apart": False,
        "system.phase2": bool(mode) and draw.random() < 0.5,
        "system.ddl": [
            *(
                f"CREATE ZONE {zone} WITH PARTITIONS = {partitions}, REPLICAS = {REPLICAS},"
                f" {UP} = {up_s}, {DOWN} = {down_s}, {FILTER} = '{text}'{mode}"
                for zone, text in ((ZONE, EVERY_ONE), (OTHER, f'{EVERY_ONE} && !"n{without}"'))
            ),
            f"CREATE TABLE {TABLE} WITH PRIMARY_ZONE = {ZONE}",
        ],
        "drive.duration_s": DRIVE_S,
        "drive.rate_per_s": round(draw.uniform(15, 25), 1),
        "drive.concurrency": draw.randint(8, 16),
        "nemesis.mix": sorted(kinds),
        "nemesis.first_s": round(draw.uniform(2, 4), 2),
        "nemesis.hold_s": round(draw.uniform(0.8, 1.6), 2),
        "nemesis.quiet_s": round(draw.uniform(3, 5), 2),
        "nemesis.overlap": 1,
    }


def partitions(plan: Plan) -> int:
    """How many partitions the tables of ``plan`` begin with, as its statements say."""
    statements = plan.system.options.get("ddl")
    return partitions_of(map(str, statements)) if isinstance(statements, list | tuple) else 1


def changes(draw: Random, plan: Plan) -> tuple[PlannedFault, ...]:
    """Return the changes of members and placement of ``plan``; none for a plan without spares."""
    if plan.cluster.spares < SPARES or plan.system.options.get("rebalance") is None:
        return ()
    found: list[PlannedFault] = []
    # Each spare is taken once at most by what stays, so that none is missing.
    if draw.random() < _FEWER_SHARE:
        # No member leaves beside: changes wait for each other, and may overlap.
        chosen = ["join", "fewer", "more", "filter", "timers", "zone"]
    else:
        # Restarts are refused where a fault beside keeps a node away: few seeds may show nothing.
        others = ("more", "leave", "away", "visit", "filter", "timers", "zone", "restart", "burst")
        chosen = ["join", "replace", *draw.sample(others, CHANGES - 2)]
    draw.shuffle(chosen)
    at_s = draw.uniform(*FIRST_S)
    for name in chosen[:CHANGES]:
        kind, target, options = _change(draw, name)
        found.append(
            PlannedFault(
                at_s=round(at_s, 3),
                kind=kind,
                target=target,
                hold_s=round(draw.uniform(*HOLD_S), 3),
                options=options,
            )
        )
        if name == "burst":
            found += _around_joint(draw, at_s, plan)
        at_s += draw.uniform(*APART_S)
    if draw.random() < _LATE_SHARE:
        found += _late(draw, plan)
    return tuple(found)


def _around_joint(draw: Random, at_s: float, plan: Plan) -> Iterator[PlannedFault]:
    """Disks so slow that statements at ``at_s`` meet each other's changes in every stage, on so few
    nodes that metastorage is quick; and a leader that goes while its group is joint.
    """
    slow_ms, begin_s = round(draw.uniform(*_SLOW_MS)), round(at_s - _SLOW_BEFORE_S, 3)
    for number in (draw.randint(1, LEAST_NODES - 1), LEAST_NODES):
        target = with_strength(f"n{number}", slow_ms, "ms")
        yield PlannedFault(at_s=begin_s, kind="disk-slow", target=target, hold_s=_SLOW_S)
    yield PlannedFault(
        at_s=round(at_s, 3),
        kind=draw.choice(("kill", "pause")),
        target=ITS_NODE,
        hold_s=round(draw.uniform(*_GONE_S), 3),
        on=Moment.MEMBERS_JOINT,
        by=f"leader of partition {draw.randrange(partitions(plan))}",
        after_s=round(draw.uniform(*_JOINT_S), 3),
    )


def _late(draw: Random, plan: Plan) -> Iterator[PlannedFault]:
    """Renewals that come nearly too late, and are committed later still, while members change."""
    nodes = tuple(f"n{number + 1}" for number in range(LEAST_NODES))
    faults = late_metastorage.stories(
        draw,
        nodes=nodes,
        voters=nodes[:REPLICAS],
        detection_s=float(str(plan.system.options.get("detection_s", DEFAULT_DETECTION_S))),
        begin_s=draw.uniform(*_LATE_FROM_S),
        end_s=plan.drive.duration_s - _LATE_CALM_S,
        kinds=("renewal",),
    )
    yield from islice(faults, _MOST_LATE)


def _change(draw: Random, name: str) -> tuple[str, str, dict[str, object]]:
    """The kind, target and options of the change ``name``."""
    member = draw.choice(("one", "leader of any partition", "other voter of any partition"))
    match name:
        case "join":
            return "join", "spare", {"stays": True}
        case "visit":
            return "leave", "metastorage leader", {}
        case "replace":
            return "replace", member, {}
        case "leave":
            return "leave", member, {}
        case "away":
            return "attributes", member, {"attributes": ["away"]}
        case "filter":
            node = draw.randint(1, LEAST_NODES)
            left_out = f"""{FILTER} = '{EVERY_ONE} && !"n{node}"'"""
            return "ddl", "all", _altered(left_out, f"{FILTER} = '{EVERY_ONE}'")
        case "timers":
            # For good: what comes after it waits so long.
            return (
                "ddl",
                "all",
                _altered(f"{UP} = {draw.randint(1, 2)}, {DOWN} = {draw.randint(1, 2)}"),
            )
        case "restart":
            on = draw.choice(("", f" ON 'n{draw.randint(1, LEAST_NODES)}'"))
            asked = [f"RESTART PARTITIONS OF ZONE {ZONE}{on}"]
            return "ddl", "all", {"statements": asked, "may_be_refused": asked}
        case "zone":
            there, back = (
                f"ALTER TABLE {TABLE} SET PRIMARY_ZONE = {zone}" for zone in (OTHER, ZONE)
            )
            return "ddl", "all", {"statements": [there], "back": [back]}
        case "burst":
            # Different options, all of which can be seen once the last is in force.
            burst = draw.sample(_BURST, draw.randint(2, len(_BURST)))
            options: dict[str, object] = {
                "statements": [to for to, _ in burst],
                "back": [back for _, back in burst],
            }
            return "ddl", "all", options
        case _:
            replicas = draw.choice((4, 5)) if name == "more" else draw.choice((1, 2))
            return "ddl", "all", _altered(f"REPLICAS = {replicas}", f"REPLICAS = {REPLICAS}")


def _altered(to: str, back: str | None = None) -> dict[str, object]:
    """The options of a change of the zone's ``to`` something, and ``back``."""
    found: dict[str, object] = {"statements": [f"ALTER ZONE {ZONE} SET {to}"]}
    return found if back is None else found | {"back": [f"ALTER ZONE {ZONE} SET {back}"]}
