"""The drill that suits each planted bug: short simulated ones, small enough to try many seeds.

A bug that loses unsynced data needs kills, one that trusts a lease too long needs pauses. A drill
here only makes a bug likely to bite; the checks are the same for all bugs.
"""

from __future__ import annotations

from collections.abc import Mapping

Overrides = dict[str, object]

_BASE: Overrides = {
    "cluster.provider": "sim",
    "cluster.nodes": 3,
    "system.partitions": 2,
    "workload.name": "list-append",
    "workload.read_kinds": ["read-write", "snapshot"],
    "drive.duration_s": 9.0,
    "drive.rate_per_s": 60.0,
    "drive.concurrency": 10,
    "check.executor": "local",
    "check.min_ok": 50,
    # A store that a bug has brought down for good must not cost a minute of every seed.
    "limits.quiesce_s": 10.0,
    "limits.final_reads_s": 5.0,
    "nemesis.first_s": 0.5,
    "nemesis.hold_s": 1.6,
    "nemesis.quiet_s": 1.2,
}
_USUAL = ("kill", "partition", "pause")
# Most transactions span partitions, and rarely meet on a key.
_WIDE: Overrides = {
    "system.partitions": 4,
    "workload.min_length": 3,
    "workload.max_length": 5,
    "workload.key_count": 24,
    "workload.key_choice": "uniform",
    "drive.rate_per_s": 80.0,
}
_SNAPSHOTS: Overrides = {"workload.read_kinds": ["snapshot"]}
_SMALL_SNAPSHOTS: Overrides = {"system.snapshot_bytes": 6000}
# A follower that was cut off is back just when the partition has no leader.
_LAGGARDS = [
    row
    for number, node in enumerate(("n3", "n2", "n1"))
    for row in (
        {"at_s": 0.5 + 4.2 * number, "kind": "partition", "target": node, "hold_s": 2.4},
        {
            "at_s": 2.7 + 4.2 * number,
            "kind": "kill",
            "target": "leader of partition 0",
            "hold_s": 1.5,
        },
    )
]
# Figure 8 of the paper on raft. Two followers are far behind a leader, n1 if luck has it, that is
# cut off with entries of its own; the next leader, with an entry of a later term in their place, is
# killed before those two have that, too; n1 leads again and counts them for its old entries; and
# when it is gone, the later term wins.
_FIGURE_8: Overrides = {
    "cluster.nodes": 5,
    "system.partitions": 1,
    "system.replicas": 5,
    "system.append_entries": 1,
    "system.appends_ahead": 1,
    "workload.key_count": 1000,
    "workload.key_choice": "uniform",
    "workload.min_length": 1,
    "workload.max_length": 1,
    "workload.read_fraction": 0.05,
    "drive.duration_s": 12.0,
    "drive.rate_per_s": 300.0,
    "drive.concurrency": 150,
    "check.min_ok": 5,
    "nemesis.schedule": [
        {"at_s": 0.8, "kind": "delay", "target": "n4,n5 at 10 ms", "hold_s": 6.0},
        {"at_s": 1.1, "kind": "partition", "target": "n1", "hold_s": 1.3},
        {"at_s": 2.4, "kind": "kill", "target": "n2,n3", "hold_s": 4.0},
        {"at_s": 4.8, "kind": "kill", "target": "n1", "hold_s": 5.5},
    ],
}
_SLOW_DISKS = [
    {"at_s": 0.5 + 3.0 * number, "kind": "disk-slow", "target": f"{node} at 500 ms", "hold_s": 2.6}
    for number, node in enumerate(("n1", "n2", "n3"))
]
_ONE_FAST_CLOCK = [{"at_s": 0.1, "kind": "clock-fast", "target": "n1 at 3 %", "hold_s": 8.0}]
# Both followers of most groups miss something, one after the other; then comes calm, long enough to
# tell what stands still from what is late.
_THEN_CALM: Overrides = {
    "drive.duration_s": 16.0,
    "drive.rate_per_s": 30.0,
    "nemesis.schedule": [
        {"at_s": 0.5 + 2.5 * number, "kind": kind, "target": "one", "hold_s": 1.6}
        for number, kind in enumerate(("partition", "kill", "pause"))
    ],
}


def _mix(*kinds: str) -> Overrides:
    return {"nemesis.mix": list(kinds)}


# Longer than an election and a lease together.
_LONG_PAUSES: Overrides = _mix("pause") | {
    "drive.duration_s": 16.0,
    "drive.rate_per_s": 120.0,
    "nemesis.hold_s": 3.0,
}


_WIPES: Overrides = _mix("wipe", "kill", "partition") | {
    "cluster.nodes": 4,
    "drive.duration_s": 16.0,
    "nemesis.hold_s": 2.0,
    "nemesis.quiet_s": 2.5,
}


# What is committed without the slow node, while a node that was wiped is taken in, may lack voters.
_SLOW_NODE = {"at_s": 0.3, "kind": "delay", "target": "n2 at 40 ms", "hold_s": 8.0}
_TIMES = (0.8, 3.4, 6.0)
_WIPES_BESIDE_A_SLOW_NODE: Overrides = {
    "system.partitions": 4,
    "drive.rate_per_s": 150.0,
    "drive.concurrency": 30,
    "nemesis.schedule": [
        _SLOW_NODE,
        *({"at_s": at_s, "kind": "wipe", "target": "n3", "hold_s": 1.2} for at_s in _TIMES),
    ],
}


# -- of zones and rebalances: few clients, since it is what is written that is judged

_ALL = "DATA_NODES_FILTER = '$..*'"


def _alter(at_s: float, to: str, back: str | None = None, hold_s: float = 1.0) -> Overrides:
    """The zone of the drill is altered ``to`` something, and ``back``."""
    undone = () if back is None else (f"ALTER ZONE drill SET {back}",)
    return _asked(at_s, f"ALTER ZONE drill SET {to}", back=undone, hold_s=hold_s)


def _asked(at_s: float, *statements: str, back: tuple[str, ...] = (), hold_s: float) -> Overrides:
    options = {"statements": list(statements)} | ({"back": list(back)} if back else {})
    return {"at_s": at_s, "kind": "ddl", "target": "all", "hold_s": hold_s, "options": options}


def _hit(at_s: float, kind: str, target: str, hold_s: float) -> Overrides:
    return {"at_s": at_s, "kind": kind, "target": target, "hold_s": hold_s}


def _zoned(*rows: Overrides, duration_s: float = 9.0, nodes: int = 4) -> Overrides:
    """A drill of one zone on ``nodes`` nodes, three of which hold metastorage."""
    return {
        "cluster.nodes": nodes,
        "system.system_nodes": 3,
        "workload.read_kinds": ["read-write"],
        "drive.duration_s": duration_s,
        "drive.rate_per_s": 15.0,
        "drive.concurrency": 3,
        "check.min_ok": 30,
        "nemesis.schedule": list(rows),
    }


def _only(*nodes: str) -> str:
    words = " || ".join(f'"{node}"' for node in nodes)
    return f"DATA_NODES_FILTER = '{words}'"


# Pending waits for a node that is down, not long enough to have left, and the next target
# is planned behind it.
_QUEUED = (_hit(1.8, "kill", "n4", 1.6), _alter(2.0, "REPLICAS = 4", "REPLICAS = 2"))
_UP, _DOWN = "DATA_NODES_AUTO_ADJUST_SCALE_UP", "DATA_NODES_AUTO_ADJUST_SCALE_DOWN"
# n1 gives its replicas up, and gets them back.
_THERE_AND_BACK = _alter(1.5, _only("n2", "n3", "n4"), _ALL, 2.5)

# Two of the three nodes that hold data are gone for longer than it takes to find that out.
_WITHOUT_A_MAJORITY = _zoned(_hit(2.0, "kill", "n5,n6", 6.0), duration_s=13.0, nodes=6) | {
    "system.system_apart": True,
    "system.replicas": 3,
    "drive.rate_per_s": 40.0,
}

# In a highly available zone, with every copy of it on nodes of their own.
_HA: Overrides = {
    "system.system_apart": True,
    "system.mode": "HA",
    "system.reset_timeout_s": 0,
    "drive.rate_per_s": 40.0,
}
_OUT_AT_ONCE: Overrides = _HA | {"system.replicas": 3, "system.detection_s": 0.5}
# Of two copies that are left one lacks what the others had acknowledged for seconds.
_ONE_LAGS = (
    _zoned(
        _hit(1.0, "partition", "n4", 3.0),
        _hit(3.8, "kill", "n6,n7,n8", 6.0),
        duration_s=13.0,
        nodes=8,
    )
    | _HA
    | {"system.replicas": 5}
)

# A leader that is cut off with a minority appends what it can't commit; the others go on, and of
# both sides one copy is left, as soon as the others have acknowledged something.
_LONGER_BUT_OLDER = (
    _zoned(
        _hit(2.0, "partition", "n2,n3", 2.6),
        _hit(2.5, "kill", "n3,n5,n6", 6.0) | {"on": "primary-granted", "after_s": 0.2},
        duration_s=14.0,
        nodes=6,
    )
    | _HA
    | {
        "system.system_nodes": 1,
        "system.replicas": 5,
        "system.partitions": 1,
        "system.detection_s": 0.5,
        "system.reset_timeout_s": 2,
        "workload.min_length": 1,
        "workload.max_length": 1,
        "workload.read_fraction": 0.1,
        "workload.key_count": 300,
        "workload.key_choice": "uniform",
        "drive.rate_per_s": 150.0,
        "drive.concurrency": 100,
    }
)

# Commits of slow coordinators reach their home once a participant was reset to a copy that had been
# cut off, and so lacks what was prepared.
_HOME, _PARTICIPANT = ("n2", "n3", "n4"), ("n5", "n6", "n7")
_SLOW_COORDINATORS = _zoned(
    _hit(1.0, "partition", "n5", 2.2),
    _hit(2.7, "hold-messages", "n8,n9,n10,n11", 1.5)
    | {"options": {"messages": "commits", "of": 0}},
    _hit(3.0, "kill", "n6,n7", 7.0),
    duration_s=15.0,
    nodes=11,
) | {
    "system.system_nodes": 1,
    "system.system_apart": True,
    "system.detection_s": 0.5,
    "system.ddl": [
        statement
        for name, nodes in (("home", _HOME), ("participant", _PARTICIPANT))
        for statement in (
            f"CREATE ZONE {name} WITH PARTITIONS = 1, REPLICAS = 3, {_only(*nodes)}, "
            "CONSISTENCY_MODE = HIGH_AVAILABILITY",
            f"CREATE TABLE {name} WITH PRIMARY_ZONE = {name}",
        )
    ],
    "workload.min_length": 2,
    "workload.max_length": 3,
    "workload.read_fraction": 0.2,
    "workload.key_count": 200,
    "workload.key_choice": "uniform",
    "drive.op_deadline_s": 9.0,
    "drive.rate_per_s": 120.0,
    "drive.concurrency": 120,
}

# A majority that is cut off commits until its lease ends, and is joined to a partition without it.
_REJOINED = _zoned(_hit(1.5, "partition", "n5,n6", 4.0), duration_s=11.0, nodes=6) | _OUT_AT_ONCE
# While one of three copies lags an operator has the other two begin anew, one behind the other: the
# second waits until the first is taken in.
_CLEANED_UP = _zoned(
    _hit(1.0, "partition", "n6", 3.0),
    _asked(
        2.0,
        *(f"RESTART PARTITIONS OF ZONE drill ON '{node}' WITH CLEANUP" for node in ("n4", "n5")),
        hold_s=6.0,
    ),
    duration_s=14.0,
    nodes=6,
) | {"system.system_apart": True, "system.replicas": 3, "drive.rate_per_s": 40.0}
# Two majorities in turn go, then all, and come back: phase 2 has to tell who wrote last.
_CHAINED = (
    _zoned(
        _hit(1.5, "kill", "n6,n7,n8", 11.0),
        _hit(6.0, "kill", "n5", 6.5),
        _hit(9.0, "kill", "n4", 3.0),
        duration_s=20.0,
        nodes=8,
    )
    | _OUT_AT_ONCE
    | {"system.replicas": 5, "system.phase2": True, "limits.quiesce_s": 30.0}
)

OWN: Mapping[str, Overrides] = {
    "chain-not-appended": _CHAINED,
    "clock-not-advanced": _WIDE
    | _SNAPSHOTS
    | {
        "nemesis.schedule": _ONE_FAST_CLOCK,
        "drive.rate_per_s": 120.0,
        "workload.key_count": 12,
        "workload.read_fraction": 0.85,
    },
    "commit-retried": _WIDE | _mix("partition", "one-way", "one-way-in"),
    "dead-coordinator-kept": _WIDE | _mix("kill"),
    "destroyed-replica-votes": _zoned(_THERE_AND_BACK) | {"drive.rate_per_s": 40.0},
    "diverged-kept": _REJOINED,
    "doubt-called-abort": _mix("one-way-in", "one-way", "partition") | {"drive.rate_per_s": 150.0},
    # One by one, so that each comes back to what it is still assigned to.
    "erased-at-every-start": _zoned(
        *(_hit(1.5 + 3.5 * n, "kill", node, 1.5) for n, node in enumerate(("n4", "n5", "n6"))),
        duration_s=13.0,
        nodes=6,
    )
    | _HA,
    "erased-copy-votes": _REJOINED,
    "filter-keeps-timers": _zoned(
        _alter(0.3, f"{_UP} = 6", hold_s=0.1),
        _hit(1.0, "kill", "n4", 3.0),
        _alter(6.5, _only("n1", "n2", "n3"), hold_s=0.1),
        duration_s=14.0,
    ),
    "finished-at-own-time": _WIDE | _SNAPSHOTS | {"workload.key_count": 12},
    # What a reset has given to one node stays so while its disk takes its time; others are back.
    "forced-pending-ignored": _zoned(
        _hit(1.5, "disk-slow", "n4 at 2500 ms", 14.0),
        _hit(2.0, "kill", "n5,n6", 1.8),
        duration_s=18.0,
        nodes=6,
    )
    | _OUT_AT_ONCE,
    # Whose home dies between its decision and telling it.
    "in-doubt-aborted": _WIDE
    | {
        "drive.rate_per_s": 150.0,
        "drive.concurrency": 20,
        "nemesis.schedule": [
            _hit(1.0 + 2.5 * n, "kill", "its node", 1.2) | {"on": "outcome-logged"}
            for n in range(3)
        ],
    },
    "joint-counted-as-one": _WIPES_BESIDE_A_SLOW_NODE
    | {
        "cluster.nodes": 5,
        "system.replicas": 5,
        "nemesis.schedule": [
            _SLOW_NODE,
            *({"at_s": at_s, "kind": "wipe", "target": "n4,n5", "hold_s": 1.2} for at_s in _TIMES),
        ],
    },
    "laggard-left-behind": _THEN_CALM,
    "last-entry-dropped": _mix("kill"),
    "lease-past-end": _LONG_PAUSES,
    "leave-moves-scale-up": _zoned(
        _alter(0.3, f"{_UP} = 6", hold_s=0.1),
        _hit(1.0, "kill", "n4", 3.5),
        # Back only when the timer is long over: its join starts it anew.
        _hit(6.5, "kill", "n5", 8.5),
        duration_s=19.0,
        nodes=5,
    ),
    "lock-leaked": _zoned(*_QUEUED) | {"system.rebalance": "lock"},
    # A commit on a slow disk holds its locks for longer than any transaction waits.
    "lock-timeout-ignored": _WIDE
    | {
        "workload.key_count": 10,
        "drive.duration_s": 10.0,
        "drive.rate_per_s": 120.0,
        "drive.concurrency": 20,
        "nemesis.schedule": _SLOW_DISKS,
    },
    "learner-counted": _WIPES_BESIDE_A_SLOW_NODE,
    "locks-not-rebuilt": _WIDE | _mix("kill"),
    "lost-hold-ignored": _WIDE | _mix("kill", "pause"),
    "no-fsync": _mix("kill"),
    "needed-copy-erased": _CLEANED_UP,
    "old-term-counted": _FIGURE_8,
    "pending-ignored": _WIDE | _SNAPSHOTS | {"workload.key_count": 12},
    "pending-member-stopped": _zoned(_alter(1.0, "REPLICAS = 4", "REPLICAS = 2")),
    "planned-lost": _zoned(*_QUEUED),
    "prepared-forgotten": _WIDE | _mix("kill"),
    "prepared-outlives-lease": _SLOW_COORDINATORS,
    "prepared-times-out": _WIDE | _mix("kill", "pause"),
    "prepared-not-saved": _WIDE
    | _mix("kill", "disk-slow")
    # Many keys: a version that a replica lacks must not be hidden under the next one.
    | {"system.snapshot_bytes": 2000, "nemesis.overlap": 2, "workload.key_count": 500},
    "refusal-ignored": _WIDE,
    "removed-node-answers": _zoned(
        _alter(1.0, _only("n2", "n3", "n4"), hold_s=0.1), duration_s=16.0
    ),
    "reset-by-index-alone": _LONGER_BUT_OLDER,
    "reset-in-sc": _WITHOUT_A_MAJORITY,
    "reset-picks-any": _ONE_LAGS,
    # A majority that is cut off serves on until its lease ends, and is out of the topology before.
    "reset-unfenced": _zoned(_hit(2.0, "partition", "n5,n6", 4.0), duration_s=11.0, nodes=6)
    | _OUT_AT_ONCE
    | {
        "system.partitions": 1,
        "workload.max_length": 1,
        "workload.key_count": 40,
        "workload.key_choice": "uniform",
        "drive.rate_per_s": 150.0,
        "drive.concurrency": 30,
    },
    # Where no lease holds: that of the primary has ended, and the next one is not elected yet.
    "reset-with-majority": _zoned(
        *(_hit(2.0 + 5.0 * n, "kill", "leader of partition 0", 3.0) for n in range(2)),
        duration_s=13.0,
        nodes=6,
    )
    | _OUT_AT_ONCE,
    "snapshot-applied-partly": _SMALL_SNAPSHOTS | _mix("kill"),
    "snapshot-reads-newest": _WIDE | _SNAPSHOTS | {"workload.key_count": 12},
    # Leadership goes round until a node leads again that has led before; then data is to move.
    "stale-term-accepted": _zoned(
        *(_hit(0.5 + 2.4 * n, "pause", "leader of partition 0", 1.3) for n in range(4)),
        _alter(10.5, "REPLICAS = 2"),
        duration_s=14.0,
    ),
    "term-not-checked": _mix("partition") | {"drive.rate_per_s": 120.0},
    "term-not-persisted": _mix("kill"),
    # The timer of n4 runs while another node comes to lead metastorage, and for long after that.
    "timer-not-rearmed": _zoned(
        _alter(0.3, f"{_UP} = 12", hold_s=0.1),
        _hit(1.0, "kill", "n4", 3.5),
        _hit(7.0, "pause", "metastorage leader", 1.5),
        duration_s=21.0,
    ),
    "torn-tail-accepted": _mix("bit-flip") | {"nemesis.hold_s": 2.5},
    "trigger-not-compared": _zoned(
        _alter(0.5, "REPLICAS = 2"), _hit(3.0, "kill", "metastorage leader", 1.5)
    ),
    "user-index-not-saved": _CHAINED,
    "versions-collected-early": _SNAPSHOTS | {"workload.key_count": 4},
    "vote-ignores-log": {
        "nemesis.schedule": _LAGGARDS,
        "drive.duration_s": 14.0,
        "drive.rate_per_s": 100.0,
    },
    "vote-not-persisted": _mix("kill"),
    "watch-event-lost": _zoned(_alter(1.0, _only("n1", "n2"), _ALL, 1.5)),
    "wiped-node-votes": _WIPES,
}


def overrides(bug: str) -> dict[str, object]:
    """The plan's keys of a drill for ``bug``, dotted; bug and seed are not among them."""
    own = OWN.get(bug, {})
    faults = {} if "nemesis.schedule" in own else _mix(*_USUAL)
    keys = {**_BASE, **faults, **own}
    if "system.ddl" in own:
        del keys["system.partitions"]
    return keys


# Partitions move to other nodes and back under load, and a leader dies meanwhile: no planted bug
# needs that, and nothing else stops a replica, erases one or starts it again.
MOVING: Overrides = {
    "cluster.provider": "sim",
    "cluster.nodes": 5,
    "check.executor": "local",
    "check.min_ok": 50,
    "system.system_nodes": 3,
    "system.ddl": [
        "CREATE ZONE moving WITH PARTITIONS = 2, REPLICAS = 3, DATA_NODES_FILTER = '\"old\"'",
        "CREATE TABLE items WITH PRIMARY_ZONE = moving",
    ],
    **{f"system.attributes.{node}": ["old"] for node in ("n1", "n2")},
    "system.attributes.n3": ["old", "new"],
    **{f"system.attributes.{node}": ["new"] for node in ("n4", "n5")},
    "workload.key_count": 20,
    "workload.key_choice": "uniform",
    "drive.duration_s": 16.0,
    "drive.concurrency": 6,
    "drive.rate_per_s": 25.0,
    "drive.op_deadline_s": 2.0,
    "nemesis.schedule": [
        {
            "at_s": 2.0,
            "kind": "ddl",
            "target": "all",
            "hold_s": 5.0,
            "options": {
                "statements": ["ALTER ZONE moving SET DATA_NODES_FILTER = '\"new\"'"],
                "back": ["ALTER ZONE moving SET DATA_NODES_FILTER = '\"old\"'"],
            },
        },
        {"at_s": 2.2, "kind": "kill", "target": "leader of partition 0", "hold_s": 1.0},
    ],
}


def drills() -> dict[str, Overrides]:
    """The plan's keys of each distinct drill, by a bug that it suits; the usual one first."""
    found: dict[str, Overrides] = {}
    for name in ("usual", *OWN):
        keys = overrides(name)
        if keys not in found.values():
            found[name] = keys
    return found
