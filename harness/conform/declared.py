"""The declarations of an adapter, checked before any node runs."""

from __future__ import annotations

import itertools
from collections import Counter

import attrs
import msgspec

from harness.conform.bench import CANCEL_LIMIT_S, LOOK_LIMIT_S, POLL_S, Bench, CheckFailure
from harness.errors import PlanError
from harness.history.records import EventKind, StoreEvent
from harness.protocols.client import READ_WRITE
from harness.protocols.cluster import Address, Capability, Cluster
from harness.protocols.fail_or_info import Certainty
from harness.protocols.promise import MAX_LOG_PATTERNS, Declaration

SCOPES = ("partition", "cluster")
NO_OPTION = "no_such_option"
KEYS = 64  # tried against ``partition_of``


async def declaration(bench: Bench) -> str:
    """Promises, patterns and bounds are of the kinds that checkers know."""
    told = bench.system.declaration
    kinds = [promise.kind for promise in told.promises]
    wrong = [f"kind {kind!r} is promised twice" for kind in kinds if kinds.count(kind) > 1]
    if READ_WRITE not in kinds:
        wrong.append(f"no promise of kind {READ_WRITE!r}, which every workload writes with")
    for promise in told.promises:
        if bench.models and promise.model not in bench.models:
            wrong.append(f"kind {promise.kind!r} promises {promise.model!r}, which is no model")
        if promise.staleness_s is not None and promise.staleness_s < 0:
            wrong.append(f"kind {promise.kind!r} is {promise.staleness_s:g} s stale")
    if told.system != bench.system.name:
        wrong.append(f"it declares system {told.system!r} and is named {bench.system.name!r}")
    if told.transaction_scope not in SCOPES:
        wrong.append(f"transaction_scope {told.transaction_scope!r} is none of {', '.join(SCOPES)}")
    wrong += _patterns(told)
    if told.conflicts is not msgspec.UNSET:
        known = bench.system.errors
        wrong += [f"conflict {code} is in no row" for code in told.conflicts if code not in known]
    if not bench.system.versions():
        wrong.append("versions() is empty: a run would not say what was under test")
    if wrong:
        raise CheckFailure("; ".join(wrong))
    return f"mode {told.mode}: {', '.join(_promised(told))}"


def _promised(told: Declaration) -> list[str]:
    return [
        f"{promise.kind} {promise.model}"
        + (f" at most {promise.staleness_s:g} s old" if promise.staleness_s is not None else "")
        for promise in told.promises
    ]


def _patterns(told: Declaration) -> list[str]:
    from harness.run.log_patterns import unusable  # heavy

    logs = told.logs or ()
    wrong = [
        f"log pattern {pattern.name!r} can't be used: {why}"
        for pattern in logs
        if (why := unusable(pattern))
    ]
    if len(logs) > MAX_LOG_PATTERNS:
        wrong.append(f"{len(logs)} log patterns: a run is judged by at most {MAX_LOG_PATTERNS}")
    return wrong


async def errors(bench: Bench) -> str:
    """Each row of the error table stands under its own code and gives its reason."""
    table = bench.system.errors
    wrong = [f"row {code} is of code {row.code}" for code, row in table.items() if row.code != code]
    wrong += [f"row {code} gives no reason" for code, row in table.items() if not row.reason]
    if not table:
        wrong.append("the error table is empty: every error at commit would be indefinite")
    if wrong:
        raise CheckFailure("; ".join(wrong))
    definite = sum(row.at_commit is Certainty.DEFINITE for row in table.values())
    return f"{len(table)} codes, {definite} of them definite at commit"


async def options(bench: Bench) -> str:
    """An unknown option is refused with a ``PlanError`` at its path."""
    try:
        bench.build({NO_OPTION: 1})
    except PlanError as error:
        if not error.path.startswith("system"):
            raise CheckFailure(
                f"option {NO_OPTION!r} is refused at {error.path!r}, not system.…"
            ) from None
        return str(error)
    except Exception as error:
        raise CheckFailure(
            f"option {NO_OPTION!r} raised {type(error).__name__}: {error}"
        ) from error
    raise CheckFailure(
        f"option {NO_OPTION!r} was taken: a slip of the pen in a plan would be silent"
    )


async def program(bench: Bench) -> str:
    """Equal inputs give equal programs, and no two nodes share one."""
    cluster, made = bench.cluster, {}
    for node in cluster.nodes:
        made[node] = bench.system.program(node, cluster)
        if bench.system.program(node, cluster) != made[node]:
            raise CheckFailure(f"program({node!r}) is another one when it is asked for again")
    if len(cluster.nodes) > 1 and made[cluster.nodes[0]] == made[cluster.nodes[1]]:
        raise CheckFailure(f"{cluster.nodes[0]} and {cluster.nodes[1]} are given the same program")
    if Capability.PARTITION in bench.able:
        _dials_links(bench)
    between = ", ".join(port.name for port in bench.system.ports if port.between_nodes)
    return f"argv {made[cluster.nodes[0]].argv[0]}; ports between nodes: {between or 'none'}"


def _dials_links(bench: Bench) -> None:
    """Raise ``CheckFailure`` where a node gets another node's listening address although there is a
    link address: its traffic would bypass every cut.
    """
    cluster = bench.cluster
    between = [port.name for port in bench.system.ports if port.between_nodes]
    for (node, other), name in itertools.product(sorted(cluster.peer), between):
        if cluster.peer[(node, other)][name] == cluster.bind[other][name]:
            continue  # the provider cuts elsewhere than in a proxy
        moved = attrs.evolve(cluster, bind=_elsewhere(cluster, other, name))
        if bench.system.program(node, cluster) != bench.system.program(node, moved):
            raise CheckFailure(
                f"the program of {node} depends on where {other} listens (cluster.bind): it is to "
                "dial cluster.peer, or no link can be cut"
            )


def _elsewhere(cluster: Cluster, node: str, port: str) -> dict[str, dict[str, Address]]:
    bind = {name: dict(ports) for name, ports in cluster.bind.items()}
    bind[node][port] = Address(host=bind[node][port].host, port=1)  # another one, never dialed
    return bind


async def partitions(bench: Bench) -> str:
    """``partition_of`` names existing partitions, and the same ones on every call."""
    count = bench.system.partitions
    placed = [bench.system.partition_of(key) for key in range(KEYS)]
    if placed != [bench.system.partition_of(key) for key in range(KEYS)]:
        raise CheckFailure("partition_of() places a key elsewhere when it is asked again")
    known = [partition for partition in placed if partition is not None]
    if not known:
        return f"{count or 'an unknown number of'} partitions; keys are not placed"
    if count is None:
        raise CheckFailure("partition_of() places keys, and partitions is None")
    if outside := [partition for partition in known if not 0 <= partition < count]:
        raise CheckFailure(f"partition_of() names partition {outside[0]} of {count}")
    return f"{count} partitions, {len(set(known))} of them hold keys 0 to {KEYS - 1}"


AHEAD_NS = 1_000_000_000  # an event mapped further into the future than its uncertainty and this
SHOWN = 3


async def events(bench: Bench) -> str:
    """Events are of known kinds and nodes, on the run's axis, and each is returned once."""
    await _asked_again(bench)
    if bench.unheard:
        how = "; ".join(list(bench.unheard)[:SHOWN])
        raise CheckFailure(f"{how}; nodes that don't answer, or answer nonsense, are to be skipped")
    wrong = [text for now, event in bench.events if (text := _wrong(bench, now, event))]
    told = Counter(event for _, event in bench.events)
    twice = [f"{event.kind} of {event.node} twice" for event, n in _again(bench) if n > 1]
    if wrong or twice:
        raise CheckFailure("; ".join((wrong + twice)[:SHOWN]))
    if not told:
        return "none were told"
    kinds = Counter(str(event.kind) for event in told.elements())
    return ", ".join(f"{kind} {count}" for kind, count in kinds.most_common())


async def _asked_again(bench: Bench) -> None:
    """Return after one more request for events, which in a short selection of checks may be the
    first.
    """
    before, limit_s = bench.looks, LOOK_LIMIT_S + CANCEL_LIMIT_S

    async def look() -> str:
        # The next to end may have asked before the question: only the one after it counts.
        return "" if bench.looks > before + 1 else "it was not asked once more"

    # Two requests with their pauses, each as slow as it may be.
    await bench.until(look, "events()", 2 * (limit_s + POLL_S) + POLL_S)


def _again(bench: Bench) -> list[tuple[StoreEvent, int]]:
    """Each event and how often it was returned: equal means the same moment of the same boot."""
    seen: dict[tuple[object, ...], int] = {}
    first: dict[tuple[object, ...], StoreEvent] = {}
    for _, event in bench.events:
        # Without the time on the run's axis: each request maps an event anew.
        key = (event.node, event.boot, event.wall_ns, event.kind, event.partition, event.text)
        first.setdefault(key, event)
        seen[key] = seen.get(key, 0) + 1
    return [(first[key], count) for key, count in seen.items()]


def _wrong(bench: Bench, now_ns: int, event: StoreEvent) -> str:
    about = f"{event.kind!r} of {event.node!r}"
    if event.kind not in frozenset(EventKind):
        return f"{about}: no known kind"
    if event.node not in bench.cluster.nodes:
        return f"{about}: no node of this cluster"
    if not event.boot:
        return f"{about}: of no boot, so that a restart would double it"
    if event.uncertainty_ns < 0:
        return f"{about}: an uncertainty of {event.uncertainty_ns} ns"
    if event.at_ns > now_ns + event.uncertainty_ns + AHEAD_NS:
        return f"{about}: mapped {(event.at_ns - now_ns) / 1e9:.1f} s into the future"
    count = bench.system.partitions
    if event.partition is not None and count is not None and not 0 <= event.partition < count:
        return f"{about}: of partition {event.partition} of {count}"
    return ""


async def codes(bench: Bench) -> str:
    """Clients raise nothing but ``StoreError``, and each code stands in the table."""
    if bench.strangers:
        raise CheckFailure("; ".join(dict.fromkeys(bench.strangers[:SHOWN])))
    unknown = [code for code in bench.codes if code not in bench.system.errors]
    if unknown:
        told = ", ".join(f"{code} (at {bench.codes[code]})" for code in sorted(unknown))
        raise CheckFailure(f"in no row of the error table: {told}")
    return f"seen: {', '.join(sorted(bench.codes)) or 'none'}"
