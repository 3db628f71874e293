"""Swarm: each seed of a simulated campaign draws its own settings of the reference store, so that
seeds differ in more than in chance.

A test that always has the same shape finds what that shape can show. A subset of all kinds of
faults finds more than all of them at once, since they hide each other (Groce et al., "Swarm
Testing", ISSTA 2012); so do few keys beside many, one replica beside five, small segments beside
large ones. All that is drawn here stands in the plan of the seed: a replay or a shrinking knows
nothing of swarm.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from random import Random

from msgspec.structs import replace

from clusters.reference import chosen_faults, churn, majority_losses, zone_timers
from clusters.reference.chosen_faults import CHOSEN, DRIFT_EDGE, MESSAGES
from clusters.reference.node.placement.lease_expiry import LEASE_S
from harness.clock import substream
from harness.plan.overrides import said
from harness.plan.plan import Plan
from harness.protocols.fault_kinds import (
    BUILT_IN,
    CLOCK_FAST,
    CLOCK_SLOW,
    split_strength,
    with_strength,
)
from harness.protocols.faults import ITS_NODE, PlannedFault
from harness.protocols.moments import Moment

Overrides = dict[str, object]

USUAL = (
    *("kill", "restart", "pause", "host-loss", "wipe"),
    *("partition", "one-way", "loss", "delay"),
    *("disk-slow", "disk-full", "disk-error", "bit-flip"),
    *("clock-jump", "clock-fast", "clock-slow"),
)
# Kinds that a single setting leaves out: they hide what others find.
FAULTS = (*USUAL, "freeze", "bridge", "majorities-ring", "one-way-in", *CHOSEN)
_DESTROYING = ("wipe", "bit-flip")  # survivable only where two others are left
_STANDING = ("pause", "freeze")
_ALONE = ("freeze", "host-loss", "majorities-ring")  # they take all of a node, or all nodes
WHOLE_S = 2.0  # between two faults, for a node whose disk is gone to catch up
MOST_KINDS = 5
MIN_OK = 10
SHORT_S = 10.0  # a node whose disk is gone may take that long to be whole under load
MENDED_S = 5.0  # mostly it is within that
# Of a drive in which disks are destroyed: in a shorter one the last node whose disk is gone may not
# be whole before the end, and what it was meant to prove stays open.
DESTROYED_DRIVE_S = 20.0
SEQUENCE_DRIVE_S = 11.0
CALM_S = 1.5  # at the end of each drive
OVERTIME_S = 20.0  # taken where faults waited for each other, or data moved for longer than usual
RING_NODES = 4  # fewer are no ring
JUMP_EDGE_MS = 5000  # a clock that is further ahead is followed by no other node
_RESTART_AFTER_S = (0.2, 0.8)  # of the jump
_WELL_AFTER_S = (0.3, 1.2)  # of the restart, until the clock is set right
_AGAIN_AFTER_S = 0.6  # of that, the start which shows it
_DOWN_S = 0.4
# Kinds that strike one node at an instant, and the share of them that waits for a moment.
_AIMED = ("kill", "restart", "pause", "partition", "one-way", "one-way-in")
_AIMED_SHARE = 0.5
# The share of seeds in which connections break all the time.
_BREAKING_SHARE, _BREAKING_PER_S = 0.25, (1.0, 4.0)
# Those whose wall clocks differ from the begin on. A takeover puts a clock ahead by 1.5 s more, and
# together that is what others just follow.
SKEW_SHARE, SKEW_S = 0.5, (0.3, 2.0, 3.4)
# Those in which members and placement change, and those in which majorities are lost.
_CHURN_SHARE, _LOSSES_SHARE = 0.3, 0.3
_TIMED_SHARE = 0.5  # of those that churn
_MODES = ("HA", "HA", "HA", "HA", "HA", "SC")
_VARIANTS = ("base", "lock", "cancel")
_NO_ZONES = (
    *("cluster.nodes", "cluster.spares", "system.replicas", "system.partitions", "system.ddl"),
    *("nemesis.mix", "nemesis.schedule", churn.ASKED_BY, majority_losses.ASKED_BY),
)
_SCHEDULED = ("nemesis.mix", "nemesis.schedule")
# The share of seeds that have one of these in any case: they reach what chance does not. The more
# a kind leads to logs that differ the more often.
_CHOSEN_SHARE = 0.9
_CHOSEN_WEIGHTS = tuple({"drop-messages": 6, "hold-messages": 6}.get(kind, 1) for kind in CHOSEN)
_WIPE_SHARE = 0.15  # a new member is to be taken in: the only way to it without zones
_FLIP_SHARE = 0.1
_MOMENTS = (
    *(Moment.LEADER_ELECTED, Moment.PRIMARY_GRANTED, Moment.LEASE_ENDING),
    *(Moment.SNAPSHOT_SAVED, Moment.SNAPSHOT_INSTALLING, Moment.SNAPSHOT_INSTALLED),
)
_MOMENTS_OF_CHANGES = (Moment.MEMBERS_CATCHING_UP, Moment.MEMBERS_JOINT, Moment.MEMBERS_STABLE)
_MOMENTS_OF_TWO = (Moment.PREPARE_LOGGED, Moment.OUTCOME_LOGGED)  # of more than one partition
# So long after it: at once, while a message is under way, while a commit is, while a client hears.
_AFTER_S = (None, None, 0.001, 0.006, 0.03)
_STRIKING = ("kill", "one-way", "partition", "partition", "pause")
_STRIKE_SHARE, _STRIKE_S = 0.6, (0.8, 1.5)
# Some last for longer than the store waits for an outcome, and then for the home of it.
_LONG_SHARE, _LONG_S = 0.3, (3.2, 4.6)
_APART_S = 0.3  # a story from other faults
_ROOM_S = 3.0  # behind an aimed fault's earliest end, for its moment to come, and to heal


def settings(seed: int, workload: str, given: Mapping[str, object]) -> Overrides:
    """Return the plan's keys that ``seed`` draws, dotted; what is ``given`` already restricts the
    rest, and is none of them.
    """
    drawn: Overrides = {}
    shape = _shape(_stream(seed, "shape"), given)
    drawn |= shape
    pace = _stream(seed, "pace").choices(_PACES, weights=(4, 3, 3, 2, 8))[0]
    load = _load(_stream(seed, "load"), workload, shape, pace)
    drawn |= load
    drawn |= _faults(_stream(seed, "faults"), given, drawn)
    drawn |= _environment(_stream(seed, "ground"))
    drawn |= _tuning(_stream(seed, "tuning"))
    zoned = _zoned(_stream(seed, "churning"), given)
    asked = {**zoned, **given}
    if churn.wanted(asked):
        drawn = _churning(seed, given, drawn | zoned)
    elif majority_losses.wanted(asked):
        losses = _stream(seed, "majority losses")
        drawn = majority_losses.settings(losses, workload, drawn | zoned, asked)
    else:
        if pace is _QUARREL:
            drawn |= load | _quarrels(_stream(seed, "quarrels"), given, drawn)
        drawn |= _skewed(_stream(seed, "skew"), drawn)
    drawn = _affordable(drawn)
    return {key: value for key, value in drawn.items() if said(given, key) is None}


def _stream(seed: int, purpose: str) -> Random:
    # One for each group of settings: a draw that is added to one leaves the others as they were.
    return substream(seed, "swarm", purpose)


def _churning(seed: int, given: Mapping[str, object], drawn: Overrides) -> Overrides:
    """``drawn`` with members and placement that change, or with timers of zones that run."""
    timed = _stream(seed, "timed").random() < _TIMED_SHARE
    if timed and not any(said(given, key) is not None for key in _SCHEDULED):
        return zone_timers.settings(_stream(seed, "zone timers"), drawn)
    return churn.settings(_stream(seed, "churn"), drawn)


def _zoned(draw: Random, given: Mapping[str, object]) -> Overrides:
    """A variant of rebalance in some seeds, a mode in others, where nothing is given that churn, or
    the losses of majorities, decide themselves.
    """
    share = draw.random()
    if any(said(given, key) is not None for key in _NO_ZONES):
        return {}
    if share < _CHURN_SHARE:
        return {churn.ASKED_BY: draw.choice(_VARIANTS)}
    if share < _CHURN_SHARE + _LOSSES_SHARE:
        return {majority_losses.ASKED_BY: draw.choice(_MODES)}
    return {}


def _shape(draw: Random, given: Mapping[str, object]) -> Overrides:
    """Nodes, replicas and partitions."""
    nodes = said(given, "cluster.nodes") or draw.choice((3, 3, 4, 5, 5, 5, 6))
    replicas = said(given, "system.replicas") or draw.choice((1, 2, 3, 3, 3, 3, 3, 5, 5))
    if isinstance(nodes, int) and isinstance(replicas, int):
        replicas = min(replicas, nodes)
    partitions = draw.choice((1, 2, 2, 3, 3, 4, 5, 8))
    return {"cluster.nodes": nodes, "system.replicas": replicas, "system.partitions": partitions}


# Seconds of the drive, of the first fault, of holds and of quiet; operations a second.
_PACES: tuple[Mapping[str, tuple[float, float]], ...] = (
    # The end is calm for longer than the store may take to serve again.
    {"length": (24, 28), "first": (1, 2), "hold": (1.5, 2.5), "quiet": (2, 3), "rate": (12, 25)},
    {
        "length": (12, 18),
        "first": (1, 2),
        "hold": (0.9, 1.6),
        "quiet": (1.2, 2.2),
        "rate": (20, 50),
    },
    # Faults that meet: several at once, and hardly a moment without any.
    {"length": (12, 16), "first": (1, 2), "hold": (1, 2), "quiet": (0.8, 1.5), "rate": (20, 40)},
    # A burst.
    {
        "length": (5, 7),
        "first": (0.8, 1.2),
        "hold": (0.8, 1.5),
        "quiet": (1, 1.5),
        "rate": (120, 300),
    },
    # Leaders that hardly reign: each goes with entries that no other has, see ``_quarrels``.
    {
        "length": (13, 17),
        "first": (0.8, 1.2),
        "hold": (0.5, 1.2),  # to past the end of a lease
        "quiet": (0.4, 0.8),
        "rate": (30, 60),
    },
)
_QUARREL = _PACES[4]
# What deposes a leader for a moment, and what keeps others from what it sends.
_DEPOSING = ("partition", "one-way", "pause", "kill")
_WITHHOLDING = ("drop-messages", "hold-messages")


def _load(
    draw: Random, workload: str, shape: Overrides, pace: Mapping[str, tuple[float, float]]
) -> Overrides:
    """What clients do, how often and for how long; and the pace of faults, which follows it."""
    of = {name: round(draw.uniform(*bounds), 2) for name, bounds in pace.items()}
    load: Overrides = {
        "drive.duration_s": of["length"],
        "drive.op_deadline_s": draw.choice((2.0, 2.0, 2.0, 1.0)),
        "drive.overtime_s": OVERTIME_S,
        "nemesis.first_s": of["first"],
        "nemesis.hold_s": of["hold"],
        "nemesis.quiet_s": of["quiet"],
        "nemesis.overlap": _together(draw, shape) if pace in (_PACES[2], _QUARREL) else 1,
    }
    reads = draw.choice(_READS)
    burst = pace is _PACES[3]
    if workload == "register":
        load |= _registers(draw, burst=burst)
        keys = int(str(load["workload.key_count"]))
    elif workload == "bank":
        load["workload.read_kinds"] = list(reads)
        load |= _bank(draw, burst=burst)
        keys = int(str(load["workload.accounts"])) * int(str(load["workload.banks"]))
    else:
        load["workload.read_kinds"] = list(reads)
        load |= _lists(draw, burst=burst)
        keys = int(str(load["workload.key_count"]))
    # Most of what meets on a key dies for it: a rate that keys can't carry shows little of a store.
    # A read of a bank meets all that is on its way; a register is to be fought for.
    each = {"bank": 3.0, "register": 25.0}.get(workload, 6.0)
    rate = of["rate"] * (_REGISTER_RATE if workload == "register" and not burst else 1.0)
    rate = min(rate, 12.0 + each * keys)
    load["drive.rate_per_s"] = round(rate, 1)
    load["drive.concurrency"] = max(5, min(60, int(rate * draw.uniform(0.3, 0.9))))
    # A seed of little load on few keys says something, too: it is one of many.
    load["check.min_ok"] = MIN_OK
    return load


_READS = (
    ("read-write",),
    ("snapshot",),
    ("read-write", "one-shot"),
    ("read-write", "snapshot", "one-shot"),
    ("read-write", "snapshot", "one-shot"),
)
_KEYS = ((1, 3), (4, 12), (13, 60))
# Writers of one register meet, so that puts without an answer fail.
_REGISTERS = ((1, 2), (3, 6), (3, 6), (7, 40))
_REGISTER_RATE = 2.5  # times that of others: each operation is of one key
_BLIND_WRITES = (("read-write",), ("one-shot",), ("read-write", "one-shot"))


def _together(draw: Random, shape: Overrides) -> int:
    """How many faults come at once: so many that the partitions still have leaders to aim at."""
    nodes, replicas = int(str(shape["cluster.nodes"])), int(str(shape["system.replicas"]))
    if nodes < RING_NODES or replicas < 3 or int(str(shape["system.partitions"])) < 2:
        return 1
    return draw.choice((2, 3)) if nodes > RING_NODES else 2


def _lists(draw: Random, *, burst: bool) -> Overrides:
    """Transactions of reads and appends; those of a burst need many keys to get through."""
    longest = draw.choice((1, 2, 3, 4, 4, 6))
    return {
        "workload.key_count": draw.randint(*draw.choice(((30, 60),) if burst else _KEYS)),
        "workload.key_choice": draw.choice(("exponential", "uniform")),
        "workload.min_length": draw.randint(1, longest),
        "workload.max_length": longest,
        "workload.read_fraction": round(draw.uniform(0.2, 0.8), 2),
        "workload.max_appends": draw.choice((4, 16, 32, 64)),
        "workload.once_fraction": draw.choice((0.0, 0.0, 0.15, 0.4)),
        "workload.once_kinds": list(draw.choice(_BLIND_WRITES)),
    }


def _bank(draw: Random, *, burst: bool) -> Overrides:
    accounts = draw.choice((4, 8, 8, 12, 20))
    return {
        "workload.accounts": accounts,
        "workload.banks": 8 if burst else draw.choice((1, 1, 2, 4)),
        "workload.total": accounts * draw.choice((2, 12, 100)),
        "workload.max_transfer": draw.choice((1, 5, 20)),
        "workload.read_fraction": round(draw.uniform(0.1, 0.5), 2),
    }


def _registers(draw: Random, *, burst: bool) -> Overrides:
    """Single keys, each replaced after some operations."""
    return {
        "workload.key_count": draw.randint(*draw.choice(((20, 40),) if burst else _REGISTERS)),
        "workload.max_ops": draw.choice((30, 100)),
        "workload.read_fraction": round(draw.uniform(0.3, 0.7), 2),
        "workload.cas_fraction": draw.choice((0.0, 0.3, 0.7)),
    }


def _impossible(drawn: Overrides) -> Iterator[str]:
    """Yield the kinds that ``drawn`` leaves no place for: their faults would come late or never,
    and a seed whose faults were not all proven shows nothing.
    """
    if int(str(drawn["cluster.nodes"])) < RING_NODES:
        yield "majorities-ring"
    if int(str(drawn["system.replicas"])) < 3 or float(str(drawn["drive.duration_s"])) < SHORT_S:
        yield from _DESTROYING
    if drawn["nemesis.overlap"] != 1:
        # Sequences of chosen messages come together as they are, on the links of one leader.
        yield from (*_ALONE, *_DESTROYING, *MESSAGES)


def _faults(draw: Random, given: Mapping[str, object], drawn: Overrides) -> Overrides:
    """A few of the kinds. Pauses and the like are about as long as a lease, every other time."""
    if said(given, "nemesis.schedule") is not None or said(given, "nemesis.mix") == []:
        return {}
    chosen = said(given, "nemesis.mix")
    kinds = tuple(chosen) if isinstance(chosen, list | tuple) else FAULTS
    out = frozenset(_impossible(drawn))
    kinds = tuple(kind for kind in kinds if kind not in out) or kinds
    some = draw.sample(sorted(kinds), min(len(kinds), draw.randint(1, MOST_KINDS)))
    if not isinstance(chosen, list | tuple):
        some += [kind for kind in _often(draw) if kind in kinds and kind not in some]
    faults: Overrides = {"nemesis.mix": sorted(some)}
    if set(some) & set(_DESTROYING):
        faults["nemesis.quiet_s"] = max(WHOLE_S, float(str(drawn["nemesis.quiet_s"])))
        length_s = float(str(drawn["drive.duration_s"]))
        faults["drive.duration_s"] = max(DESTROYED_DRIVE_S, length_s)
    if set(some) & set(MESSAGES):
        # A sequence takes four seconds, in which little is served.
        length_s = float(str(faults.get("drive.duration_s", drawn["drive.duration_s"])))
        faults["drive.duration_s"] = max(SEQUENCE_DRIVE_S, length_s)
    if set(some) & set(_STANDING) and draw.random() < 0.5:
        # It ends just before another may act, or just after. It is up to a quarter shorter than
        # asked for.
        faults["nemesis.hold_s"] = round(LEASE_S * draw.uniform(1.0, 1.35), 2)
    return faults


def _quarrels(draw: Random, given: Mapping[str, object], drawn: Overrides) -> Overrides:
    """Elections that come soon after leaders go, among three voters at least whose logs are brought
    together in small steps: so entries of leaders that are gone are met again and again.
    """
    found: Overrides = {
        "system.tick_ms": 40,
        "system.election_ticks": draw.choice((5, 5, 7)),
        "system.append_entries": draw.choice((1, 2, 4)),
        "system.appends_ahead": draw.choice((1, 3, 8)),
    }
    if not {"cluster.nodes", "system.replicas"} & set(given):
        nodes = max(3, int(str(drawn["cluster.nodes"])))
        found["cluster.nodes"] = nodes
        found["system.replicas"] = draw.choice((3, 3, 5)) if nodes >= 5 else 3
    if not any(said(given, key) is not None for key in _SCHEDULED):
        some = draw.sample(_DEPOSING, draw.randint(2, len(_DEPOSING)))
        withheld = draw.sample(_WITHHOLDING, draw.randint(1, len(_WITHHOLDING)))
        found["nemesis.mix"] = sorted((*some, *withheld, *draw.choice(((), (), ("disk-slow",)))))
    return found


def _often(draw: Random) -> Iterator[str]:
    """Yield the kinds that a seed has beside those of the few that it draws."""
    if draw.random() < _CHOSEN_SHARE:
        yield draw.choices(CHOSEN, weights=_CHOSEN_WEIGHTS)[0]
    if draw.random() < _WIPE_SHARE:
        yield "wipe"
    if draw.random() < _FLIP_SHARE:
        yield "bit-flip"


def _environment(draw: Random) -> Overrides:
    """The network without faults, and the share of rare legal paths that are open."""
    rough = draw.choice((0.0, 1.0, 1.0, 3.0))
    weather = {"loss": 0.002, "reorder": 0.02, "duplicate": 0.01, "slow": 0.05, "resets_per_s": 0.1}
    found = {
        name: round(rough * share * draw.uniform(0.3, 1.7), 4) for name, share in weather.items()
    }
    if draw.random() < _BREAKING_SHARE:
        # Clients go in the middle of their transactions, and requests with their connections.
        found["resets_per_s"] = round(draw.uniform(*_BREAKING_PER_S), 2)
    return {
        "cluster.options.rare": draw.choice((0.0, 0.35, 0.35, 0.7)),
        "cluster.options.weather": found,
    }


def _skewed(draw: Random, drawn: Overrides) -> Overrides:
    """Wall clocks that differ from the begin on, in some seeds: not beside jumps, which go to the
    edge by themselves.
    """
    mix = drawn.get("nemesis.mix")
    jumps = isinstance(mix, list) and "clock-jump" in mix
    skew_s = draw.choice(SKEW_S)
    return {} if jumps or draw.random() >= SKEW_SHARE else {"cluster.options.skew_s": skew_s}


def _tuning(draw: Random) -> Overrides:
    """Sizes and times of the node, each small in half of the seeds."""
    small: Mapping[str, Sequence[float]] = {
        "system.snapshot_bytes": (1500, 6000, 20_000, 60_000),
        "system.append_entries": (1, 4, 32),
        "system.appends_ahead": (1, 3),
        "system.tuning.segment_bytes": (2000, 8000, 40_000),
        "system.tuning.record_bytes": (300, 1500, 8000),
        "system.tuning.piece_bytes": (200, 1000, 5000),
        "system.tuning.chunk_bytes": (100, 1000),
        "system.tuning.max_history": (3, 30),
        "system.tuning.max_proposals": (4, 16),
        "system.tuning.version_retention_s": (3.0, 5.0),
        "system.tuning.outcome_retention_s": (4.0, 6.0),
        "system.padding_bytes": (100, 2000, 20_000),  # small beside large values
        # An election takes from 0.2 s to nearly twice as long as a lease.
        "system.tick_ms": (40, 70),
        "system.election_ticks": (5, 9),
    }
    return {name: draw.choice(values) for name, values in small.items() if draw.random() < 0.5}


# What a seed may cost: it is one of many, and a snapshot that comes in tens of thousands of pieces,
# or a log of tens of thousands of files, shows nothing that some hundred don't.
_MOST_BYTES_PER_S = 300_000.0  # that clients write
_MOST_PIECES = 250  # of a snapshot of all versions that are kept
_MOST_CHUNKS = 1500
_MOST_HISTORY_PIECES = 100
_HISTORY_BYTES_PER_S = 250.0  # of metastorage, for each node while it joins and data moves
_MOST_SEGMENTS_PER_S = 40.0
_MOST_RECORDS = 30  # of a large value
_ENTRY_BYTES = 150  # of a write beside its value
_LEAST_PADDING = 100


def _affordable(drawn: Overrides) -> Overrides:
    """``drawn`` with sizes that are no smaller than what clients write in it can bear."""
    found = dict(drawn)
    padding = float(str(found.get("system.padding_bytes", 0)))
    per_s = _writes_per_s(found)
    if padding and per_s * (padding / 2 + _ENTRY_BYTES) > _MOST_BYTES_PER_S:
        padding = max(_LEAST_PADDING, int(2 * (_MOST_BYTES_PER_S / per_s - _ENTRY_BYTES)))
        found["system.padding_bytes"] = padding
    value = padding / 2 + _ENTRY_BYTES  # it has half of the padding on average
    kept_s = float(str(found["drive.duration_s"]))
    # All of one partition, as where there is one key.
    state = per_s * value * kept_s / _partitions_of(found)
    least = {
        "system.tuning.piece_bytes": state / _MOST_PIECES,
        "system.tuning.chunk_bytes": state / _MOST_CHUNKS,
        "system.tuning.segment_bytes": per_s * value / _MOST_SEGMENTS_PER_S,
        "system.tuning.record_bytes": padding / _MOST_RECORDS,
    }
    if "system.system_nodes" in found and "system.tuning.max_history" not in found:
        # A node that lacks metastorage takes in its history, too, and that grows meanwhile: where
        # it comes in too many pieces the log behind it is gone each time.
        nodes = int(str(found["cluster.nodes"])) + int(str(found.get("cluster.spares", 0)))
        history = _HISTORY_BYTES_PER_S * nodes * kept_s
        pieces = "system.tuning.piece_bytes"
        least[pieces] = max(least[pieces], history / _MOST_HISTORY_PIECES)
    for key, size in least.items():
        if key in found:
            found[key] = max(int(str(found[key])), int(size))
    if found.get("system.append_entries") == 1:
        # One entry a round trip over a slow link is less than the renewals of eight nodes: such a
        # node hears of its own lease when that is over, and never holds one.
        found.pop("system.appends_ahead", None)
    return found


def _writes_per_s(drawn: Overrides) -> float:
    """How many keys clients write in a second, about."""
    rate = float(str(drawn["drive.rate_per_s"]))
    share = 1.0 - float(str(drawn["workload.read_fraction"]))
    if "workload.accounts" in drawn:
        return rate * share * 2
    longest = drawn.get("workload.max_length")
    if longest is None:
        return rate * share
    return rate * share * (int(str(drawn["workload.min_length"])) + int(str(longest))) / 2


def _partitions_of(drawn: Overrides) -> int:
    return int(str(drawn.get("system.partitions", 1)))


# -- schedules


def within_drift(schedule: Sequence[PlannedFault]) -> bool:
    """Whether no two clocks drift further apart in ``schedule`` than the design allows: one that
    gains and one that loses are so far apart as both together. A strength that is no drift is
    within none.
    """
    most = dict.fromkeys((CLOCK_FAST.name, CLOCK_SLOW.name), 0.0)
    for fault in schedule:
        if fault.kind in most:
            usual = BUILT_IN[fault.kind].strength
            _, drift, unit = split_strength(fault.target)
            if usual is None or (drift is not None and unit != usual.unit):
                return False
            most[fault.kind] = max(most[fault.kind], usual.usual if drift is None else drift)
    return sum(most.values()) <= DRIFT_EDGE


def sharpened(plan: Plan, schedule: Sequence[PlannedFault]) -> tuple[PlannedFault, ...]:
    """Return the drawn ``schedule`` of ``plan`` with clocks at the edges of what the design allows,
    and each jump followed by the start of its node that makes it count; some faults aim, and those
    are left out that hardly end before the drive does.
    """
    draw, aims = _stream(plan.seed, "edges"), _stream(plan.seed, "aims")
    choices = _stream(plan.seed, "choices")
    nodes = tuple(f"n{number + 1}" for number in range(plan.cluster.nodes))
    # Faults come late where others are in their way, and all must be over before the drive is.
    end_s = plan.drive.duration_s - CALM_S
    found: list[PlannedFault] = []
    free_s = 0.0
    for fault in schedule:
        needed_s = MENDED_S if fault.kind in _DESTROYING else fault.hold_s
        if found and fault.at_s + needed_s > end_s:
            continue
        if fault.kind == "clock-jump":
            # One at a time: starts that wait for each other would fill the rest of the drive.
            if fault.at_s >= free_s:
                story = _jump(draw, fault, nodes, end_s)
                free_s = max(each.at_s + each.hold_s for each in story)
                found.extend(story)
        elif fault.kind in ("clock-fast", "clock-slow"):
            # Together below 5 %: one clock that gains and one that loses are so far apart.
            percent = draw.choice((0.5, 2.0, DRIFT_EDGE / 2))
            if len({"clock-fast", "clock-slow"} & set(plan.nemesis.mix)) == 1:
                percent = draw.choice((percent, DRIFT_EDGE))
            found.append(replace(fault, target=with_strength(fault.target, percent, "%")))
        elif fault.kind in CHOSEN:
            found.extend(chosen_faults.sharpened(choices, fault, plan, end_s, first=not found))
        else:
            # The first one comes whatever happens: a seed without any fault shows nothing.
            found.append(_aimed(aims, fault, plan) if found else fault)
    for story in chosen_faults.stories(_stream(plan.seed, "stories"), plan, end_s):
        found = _with_story(found, story)
    changes = churn.changes(_stream(plan.seed, "changes"), plan)
    found += changes
    wipes = [fault for fault in found if fault.kind == "wipe"]
    found += _strikes(_stream(plan.seed, "strikes"), (*changes, *wipes), end_s)
    return tuple(sorted(found, key=lambda fault: fault.at_s))


def _with_story(faults: list[PlannedFault], story: tuple[PlannedFault, ...]) -> list[PlannedFault]:
    """``faults`` that do not meet ``story``, and that; without it where none of them would come for
    certain.
    """
    begin_s = min(fault.at_s for fault in story) - _APART_S
    end_s = max(fault.at_s + fault.hold_s for fault in story) + _APART_S
    apart = [f for f in faults if f.at_s + f.hold_s <= begin_s or f.at_s >= end_s]
    found = [*apart, *story]
    return found if any(fault.on is None for fault in found) else faults


def _aimed(draw: Random, fault: PlannedFault, plan: Plan) -> PlannedFault:
    """``fault``, in some cases with a moment to wait for from its offset on: one that does not come
    is no fault.
    """
    end_s = plan.drive.duration_s - CALM_S
    long_s = round(draw.uniform(*_LONG_S), 3)
    fits = fault.at_s + long_s + _ROOM_S <= end_s
    if fits and fault.kind in _AIMED and draw.random() < _LONG_SHARE:
        fault = replace(fault, hold_s=long_s)
    room_s = plan.drive.duration_s - fault.at_s - fault.hold_s
    if fault.kind not in _AIMED or room_s < _ROOM_S or draw.random() >= _AIMED_SHARE:
        return fault
    several = int(str(plan.system.options.get("partitions", 1))) > 1
    return replace(
        fault,
        target=ITS_NODE if draw.random() < 0.75 else fault.target,
        on=draw.choice(
            _MOMENTS
            + _MOMENTS_OF_TWO * (3 if several else 0)
            + _MOMENTS_OF_CHANGES * (2 if "wipe" in plan.nemesis.mix or plan.cluster.spares else 0)
        ),
        after_s=draw.choice(_AFTER_S),
        nth=draw.choice((None, None, 2, 4)),
    )


def _strikes(draw: Random, changes: Sequence[PlannedFault], end_s: float) -> Iterator[PlannedFault]:
    """Yield faults of leaders in the middle of ``changes`` of members: what a leader has written of
    one by then is often on its disk alone.
    """
    for change in changes:
        hold_s = round(draw.uniform(*_STRIKE_S), 3)
        if draw.random() < _STRIKE_SHARE and change.at_s + hold_s + _ROOM_S <= end_s:
            yield PlannedFault(
                at_s=change.at_s,
                kind=draw.choice(_STRIKING),
                target=ITS_NODE,
                hold_s=hold_s,
                on=draw.choice(_MOMENTS_OF_CHANGES[:2]),
                after_s=draw.choice((None, None, 0.001, 0.006)),
                nth=draw.choice((None, None, 2, 3)),
            )


def _jump(
    draw: Random, fault: PlannedFault, nodes: Sequence[str], end_s: float
) -> tuple[PlannedFault, ...]:
    """A jump of a node's wall clock and the starts after it, as far as there is time until
    ``end_s``: the store reads that clock at its start only, so the first start is what the jump
    shows at, and the last one what its heal does.
    """
    node = draw.choice(nodes)
    edge = JUMP_EDGE_MS
    jump_ms = draw.choice((500, 2000, edge - 500, edge - 100, edge + 100, edge + 1000, 4 * edge))
    ends = draw.choice(("kill", "restart"))
    down_s = _DOWN_S
    first_s = fault.at_s + draw.uniform(*_RESTART_AFTER_S)
    healed_s = first_s + down_s + draw.uniform(*_WELL_AFTER_S)
    again_s = healed_s + _AGAIN_AFTER_S
    jumped = replace(
        fault, target=with_strength(node, jump_ms, "ms"), hold_s=round(healed_s - fault.at_s, 3)
    )
    if again_s + down_s > end_s:
        # No time for all of it. The jump alone moves nothing that the store looks at.
        return (replace(jumped, hold_s=fault.hold_s),)
    return (
        jumped,
        PlannedFault(at_s=round(first_s, 3), kind=ends, target=node, hold_s=down_s),
        PlannedFault(at_s=round(again_s, 3), kind="restart", target=node, hold_s=down_s),
    )
