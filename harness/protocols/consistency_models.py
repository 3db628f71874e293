"""The lattice of consistency models, and the models that each anomaly rules out.

Sources: Adya, *Weak Consistency* (1999); Cerone, Bernardi, Gotsman (2015); Crooks et al. (2017);
Bailis et al. (2013); the lattice as Elle wires it. Names are Elle's; ``strong-session-`` adds the
order of each process, ``strong-`` real time.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping
from types import MappingProxyType

import msgspec

from harness.errors import HarnessBug, UsageError
from harness.protocols.claims import ANOMALIES

STRICT_SERIALIZABLE = "strict-serializable"

LOST_WRITE, BANK_TOTAL, NEGATIVE_BALANCE = "lost-write", "bank-total", "negative-balance"
LIVENESS, NODE_EXIT, PANIC = "liveness", "node-exit", "panic"
CAUSAL_REVERSE = "causal-reverse"
"""Anomalies that other rooms ask for by name."""

_STRONGER = {
    "strict-serializable": (
        "serializable",
        "snapshot-isolation",
        "strong-snapshot-isolation",
        "strong-session-serializable",
    ),
    "strong-session-serializable": ("serializable", "strong-session-snapshot-isolation"),
    "strong-snapshot-isolation": ("strong-session-snapshot-isolation", "strong-read-committed"),
    "strong-session-snapshot-isolation": ("snapshot-isolation", "strong-session-read-committed"),
    "strong-read-committed": ("strong-session-read-committed", "strong-read-uncommitted"),
    "strong-session-read-committed": ("read-committed", "strong-session-read-uncommitted"),
    "strong-read-uncommitted": ("strong-session-read-uncommitted",),
    "strong-session-read-uncommitted": ("read-uncommitted",),
    "serializable": (
        "repeatable-read",
        "snapshot-isolation",
        "view-serializable",
        "update-serializable",
    ),
    "view-serializable": (),
    "update-serializable": ("forward-consistent-view",),
    "forward-consistent-view": ("consistent-view",),
    "consistent-view": ("cursor-stability", "monotonic-view"),
    "repeatable-read": ("cursor-stability", "monotonic-atomic-view"),
    "snapshot-isolation": (
        "forward-consistent-view",
        "monotonic-atomic-view",
        "monotonic-snapshot-read",
        "parallel-snapshot-isolation",
        "prefix",
    ),
    "parallel-snapshot-isolation": ("causal-cerone", "update-atomic"),
    "prefix": ("causal-cerone",),
    "causal-cerone": ("read-atomic",),
    "update-atomic": ("read-atomic",),
    "read-atomic": ("monotonic-atomic-view",),
    "monotonic-atomic-view": ("read-committed",),
    "cursor-stability": ("read-committed",),
    "monotonic-view": ("read-committed",),
    "monotonic-snapshot-read": ("read-committed",),
    "read-committed": ("read-uncommitted",),
    "read-uncommitted": (),
}
"""For each model those just below it: a history that satisfies the key satisfies the values."""

DECIDED = frozenset(
    {
        "read-uncommitted",
        "read-committed",
        "consistent-view",
        "repeatable-read",
        "snapshot-isolation",
        "serializable",
        "strong-session-read-uncommitted",
        "strong-session-read-committed",
        "strong-session-snapshot-isolation",
        "strong-session-serializable",
        "strong-read-uncommitted",
        "strong-read-committed",
        "strong-snapshot-isolation",
        "strict-serializable",
    }
)
"""Models that hold where none of the anomalies below was found: they are defined by these. No
checker searches for everything that the other models forbid (a fractured read, say, breaks
read-atomic); those are known to hold only where a stronger one does.
"""

_SYNONYMS = {
    "strong-serializable": STRICT_SERIALIZABLE,
    "conflict-serializable": "serializable",
    # Of single registers: their checker decides one object at a time.
    "linearizable": STRICT_SERIALIZABLE,
}

_WEAKEST_BROKEN: dict[str, tuple[str, ...]] = {
    "G0": ("read-uncommitted",),
    "duplicate-elements": ("read-uncommitted",),
    "garbage-read": ("read-uncommitted",),
    "G1a": ("read-committed",),
    "G1b": ("read-committed",),
    "G1c": ("read-committed",),
    "dirty-update": ("read-committed",),
    "incompatible-order": ("read-committed",),
    "future-read": ("read-committed",),
    "internal": ("read-atomic",),
    "lost-update": ("cursor-stability", "update-atomic"),
    "G-single-item": ("consistent-view", "repeatable-read"),
    "G-nonadjacent-item": ("snapshot-isolation", "repeatable-read"),
    "G2-item": ("repeatable-read",),
    "G0-process": ("strong-session-read-uncommitted",),
    "G1c-process": ("strong-session-read-committed",),
    "G-single-item-process": ("strong-session-snapshot-isolation",),
    "G-nonadjacent-item-process": ("strong-session-snapshot-isolation",),
    "G2-item-process": ("strong-session-serializable",),
    "G0-realtime": ("strong-read-uncommitted",),
    "G1c-realtime": ("strong-read-committed",),
    "G-single-item-realtime": ("strong-snapshot-isolation",),
    "G-nonadjacent-item-realtime": ("strong-snapshot-isolation",),
    "G2-item-realtime": ("strict-serializable",),
    # A lost write is a read skew in real time: the read precedes the write that precedes it.
    LOST_WRITE: ("strong-snapshot-isolation",),
    # A total is wrong by a lost update or by a read that saw half a transfer: both are G-single.
    BANK_TOTAL: ("consistent-view", "repeatable-read"),
    NEGATIVE_BALANCE: ("consistent-view", "repeatable-read"),
    "nil-balance": ("consistent-view", "repeatable-read"),
    # An account comes from nowhere: a write that no transaction made.
    "unexpected-key": ("read-uncommitted",),
    # Between two reads in real time lies what an account should have gained: as for a lost write.
    "wrong-balance": ("strong-snapshot-isolation",),
    "nonlinearizable": (STRICT_SERIALIZABLE,),
}


OF_SNAPSHOTS = frozenset({"fractured-snapshot", "stale-snapshot", "snapshot-went-back"})
"""Broken promises of snapshot reads, which checkers search for only where a system declares them.
They rule out no model: a torn snapshot that does also shows as a cycle."""
STALE_READS = ("G-single-item-realtime", "stale-snapshot")
"""Anomalies of reads that lack what had been acknowledged before them."""


OF_REPLICAS = frozenset(
    {
        "diverged-logs",
        "diverged-replicas",
        "forgotten-state",
        "lock-left",
        "lost-entries",
        "stale-primary",
        "two-leaders",
        "went-back",
    }
)
"""Anomalies that no store of replicated logs may show, under every model promised to clients."""


OF_PLACEMENT = frozenset(
    {
        "diverged-assignments",
        "early-data-nodes",
        "early-reset",
        "erased-copy",
        "event-not-handled",
        "illegal-transition",
        "late-data-nodes",
        "late-reset",
        "quorum-not-running",
        "redundant-replica",
        "repeated-trigger",
        "reset-nodes",
        "stale-term",
        "unfinished-rebalance",
        "wrong-chain",
        "wrong-data-nodes",
        "wrong-stable",
        "worse-copy",
        "wrong-target",
    }
)
"""Anomalies of stores that move partitions between nodes, under every model promised to clients."""


RESET_IN_SC, RESET_WITH_MAJORITY = "reset-in-sc", "reset-with-majority"
RESET_OVER_SURVIVOR, NOT_A_PREFIX = "reset-over-survivor", "not-a-prefix"
RETURNED_WRITE, MIXED_GENERATIONS = "returned-write", "mixed-generations"
RESTORED_IN_PART, RESTORED_OVER_WRITES = "restored-in-part", "restored-over-writes"
TORN_IN_PARTITION = "torn-in-partition"
OF_RESETS = frozenset(
    {
        *(RESET_IN_SC, RESET_WITH_MAJORITY, RESET_OVER_SURVIVOR, NOT_A_PREFIX, RETURNED_WRITE),
        *(MIXED_GENERATIONS, RESTORED_IN_PART, RESTORED_OVER_WRITES, TORN_IN_PARTITION),
    }
)
"""What no forced reset of a partition permits, in either mode."""


LOST_BY_RESET, TORN_BY_RESET = "lost-by-reset", "torn-by-reset"
EMPTIED_BY_RESET = "emptied-by-reset"
"""What a reset permits in a store that declares that it may lose, or that an operator has asked
for: observed and counted."""


OF_CLAIMS = frozenset(ANOMALIES.values())
"""Anomalies of messages that claim what is not so, under every model; only a simulation sees
them."""


OF_NODES = frozenset({NODE_EXIT, PANIC})
"""Anomalies that break the promise that nodes stay up, under every model."""


OF_SERVICE = frozenset({LIVENESS})
"""Anomalies that break the promise to serve again once all is healed, under every model."""


LONGEST_GAP, P99, RECOVERY, INDEFINITE, REFUSAL, SERVICE = (
    *("longest-gap", "p99", "recovery"),
    *("indefinite-share", "late-refusal", "late-service"),
)
OF_LIMITS = frozenset({LONGEST_GAP, P99, RECOVERY, INDEFINITE, REFUSAL, SERVICE})
"""Anomalies that break a limit which the plan sets for the service, under every model."""


RESTART_SILENCE, RESTART_LATENCY, RESTART_FAILURES, RESTART_RESET = (
    *("restart-silence", "restart-latency"),
    *("restart-failures", "restart-reset"),
)
OF_RESTARTS = frozenset({RESTART_SILENCE, RESTART_LATENCY, RESTART_FAILURES, RESTART_RESET})
"""Anomalies of a rolling restart that clients notice more than its limits allow, or by which a
partition was reset, under every model."""


_PROMISES: dict[str, str] = {
    **dict.fromkeys(OF_SNAPSHOTS, "what snapshots promise"),
    **dict.fromkeys(OF_REPLICAS, "what replicas owe each other"),
    **dict.fromkeys(OF_PLACEMENT, "what moving data promises"),
    **dict.fromkeys(OF_RESETS, "what a reset may cost"),
    **dict.fromkeys(OF_CLAIMS, "what its messages promise"),
    **dict.fromkeys(OF_NODES, "the promise stays-up"),
    **dict.fromkeys(OF_SERVICE, "the promise to serve again"),
    **dict.fromkeys(OF_LIMITS, "a limit of the plan"),
    **dict.fromkeys(OF_RESTARTS, "a seamless rolling restart"),
}
"""Anomalies that break a promise beside the lattice, and that promise."""


ONLY_OBSERVED = frozenset({CAUSAL_REVERSE, LOST_BY_RESET, TORN_BY_RESET, EMPTIED_BY_RESET})
"""Anomalies that break nothing that a system declares: transactions of a kind that promises a
staleness have no real time order, so that a cycle which needs one through them is told, no more;
and a store that may lose has lost what a reset permits.
"""


class Meaning(msgspec.Struct, frozen=True, kw_only=True):
    """The consequence of an anomaly.

    ``breaks`` are the weakest models that the anomaly rules out. ``promise``, in words, is the
    promise that it breaks under every model. An anomaly with neither is observed, and decides
    nothing.
    """

    breaks: tuple[str, ...] = ()
    promise: str = ""


OBSERVED = Meaning()
"""The meaning of an anomaly that is reported and violates no promise."""

Meanings = Mapping[str, Meaning]
"""The meanings that plug-in checkers declare, by the names of anomalies."""

NONE_DECLARED: Meanings = MappingProxyType({})


def breaking(*weakest: str) -> Meaning:
    """Return the meaning of an anomaly that rules out the models ``weakest`` and all above them.
    Raises ``UsageError`` for a model that is not in the lattice.
    """
    return Meaning(breaks=tuple(canonical(model) for model in weakest))


def declared(names: Iterable[str], meanings: Meanings, checker: str) -> Meanings:
    """Return the meanings of those anomalies ``names``, found by ``checker``, that this module does
    not know: as ``meanings`` declares them, else as a broken promise of that checker.

    Raises ``HarnessBug`` where ``meanings`` redefines a known anomaly, ``UsageError`` for a model
    that is not in the lattice.
    """
    known = _WEAKEST_BROKEN.keys() | _PROMISES.keys() | ONLY_OBSERVED
    for name, meaning in meanings.items():
        if name in known:
            raise HarnessBug(f"anomaly {name!r} has its meaning, and {checker!r} declares another")
        # For its error alone: a misspelt model would be broken by nothing.
        breaking(*meaning.breaks)
    own = Meaning(promise=f"the promise of checker {checker}")
    return {name: meanings.get(name, own) for name in names if name not in known}


def meaning_of(anomaly: str, meanings: Meanings = NONE_DECLARED) -> Meaning:
    """Return the meaning of ``anomaly``; that of an anomaly unknown here and in ``meanings`` is
    empty.
    """
    if anomaly in meanings:
        return meanings[anomaly]
    breaks_ = _WEAKEST_BROKEN.get(anomaly, ())
    return Meaning(breaks=breaks_, promise=_PROMISES.get(anomaly, ""))


def models() -> tuple[str, ...]:
    """Every model of the lattice, by name."""
    return tuple(sorted(_STRONGER))


def canonical(model: str) -> str:
    """``model`` by its name in the lattice. Raises ``UsageError`` for one that is not in it."""
    lowered = model.lower()
    name = _SYNONYMS.get(lowered, lowered)
    if name not in _STRONGER:
        near = difflib.get_close_matches(lowered, models(), n=1)
        meant = f"did you mean {near[0]!r}? " if near else ""
        known = f"{meant}known: {', '.join(models())}"
        raise UsageError(f"unknown consistency model {model!r} ({known})")
    return name


def implied_by(model: str) -> frozenset[str]:
    """``model`` and every model that it satisfies."""
    found: set[str] = set()
    frontier = [canonical(model)]
    while frontier:
        name = frontier.pop()
        if name not in found:
            found.add(name)
            frontier.extend(_STRONGER[name])
    return frozenset(found)


def ruled_out(
    anomalies: Iterable[str], meanings: Meanings = NONE_DECLARED
) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return the models that ``anomalies`` rule out: the weakest of them, and all others above
    those.
    """
    broken = {weakest for name in anomalies for weakest in meaning_of(name, meanings).breaks}
    every = {model for model in _STRONGER if implied_by(model) & broken}
    weakest = {model for model in every if not (implied_by(model) - {model}) & every}
    return tuple(sorted(weakest)), tuple(sorted(every - weakest))


def breaks(anomaly: str, model: str, meanings: Meanings = NONE_DECLARED) -> bool:
    """Whether ``anomaly`` shows that ``model`` does not hold."""
    return not implied_by(model).isdisjoint(meaning_of(anomaly, meanings).breaks)


def decides(anomaly: str, model: str, meanings: Meanings = NONE_DECLARED) -> bool:
    """Whether ``anomaly`` decides a judgement by ``model``: it rules the model out, or breaks a
    promise beside the lattice. Such promises are those that the system declares of a kind of read,
    those of replicas to each other, that nodes stay up, that service comes back, and those of
    plug-in checkers.
    """
    return bool(meaning_of(anomaly, meanings).promise) or breaks(anomaly, model, meanings)


def left_open(model: str, anomalies: Iterable[str], meanings: Meanings = NONE_DECLARED) -> bool:
    """Whether ``anomalies`` neither rule ``model`` out nor leave a decided model that implies
    it.
    """
    broken = {name for part in ruled_out(anomalies, meanings) for name in part}
    return model not in broken and not any(
        model in implied_by(stronger) for stronger in DECIDED - broken
    )


def promises_real_time(model: str) -> bool:
    """Whether ``model`` requires an acknowledged write to be visible to transactions that start
    later.
    """
    return breaks(LOST_WRITE, model)


def promises_sessions(model: str) -> bool:
    """Whether ``model`` requires a process's transactions to be in the order in which the process
    ran them.
    """
    return breaks("G0-process", model)
