"""What the store told over the whole session: events and error codes."""

from __future__ import annotations

from collections import Counter

from harness.conform.bench import CANCEL_LIMIT_S, LOOK_LIMIT_S, POLL_S, Bench
from harness.conform.result import Broken
from harness.records import EventKind, StoreEvent

AHEAD_NS = 1_000_000_000  # an event mapped further into the future than its uncertainty and this
SHOWN = 3


async def events(bench: Bench) -> str:
    """Events are of known kinds and nodes, on the run's axis, and each is told once."""
    await _asked_again(bench)
    if bench.unheard:
        how = "; ".join(list(bench.unheard)[:SHOWN])
        raise Broken(f"{how}; nodes that don't answer, or answer nonsense, are to be skipped")
    wrong = [text for now, event in bench.events if (text := _wrong(bench, now, event))]
    told = Counter(event for _, event in bench.events)
    twice = [f"{event.kind} of {event.node} twice" for event, n in _again(bench) if n > 1]
    if wrong or twice:
        raise Broken("; ".join((wrong + twice)[:SHOWN]))
    if not told:
        return "none were told"
    kinds = Counter(str(event.kind) for event in told.elements())
    return ", ".join(f"{kind} {count}" for kind, count in kinds.most_common())


async def _asked_again(bench: Bench) -> None:
    """Return when the store was asked once more: where little else is tried, for the first time."""
    before, limit_s = bench.looks, LOOK_LIMIT_S + CANCEL_LIMIT_S

    async def look() -> str:
        return "" if bench.looks > before + 1 else "it was not asked once more"

    await bench.until(look, "events()", 2 * (limit_s + POLL_S) + POLL_S)


def _again(bench: Bench) -> list[tuple[StoreEvent, int]]:
    """Each event and how often it was told: the same moment of the same boot."""
    seen: dict[tuple[object, ...], int] = {}
    first: dict[tuple[object, ...], StoreEvent] = {}
    for _, event in bench.events:
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
        raise Broken("; ".join(dict.fromkeys(bench.strangers[:SHOWN])))
    unknown = [code for code in bench.codes if code not in bench.system.errors]
    if unknown:
        told = ", ".join(f"{code} (at {bench.codes[code]})" for code in sorted(unknown))
        raise Broken(f"in no row of the error table: {told}")
    return f"seen: {', '.join(sorted(bench.codes)) or 'none'}"
