"""What a store that resets partitions owes their copies, and the chain of their assignments.

================== ===============================================================================
``erased-copy``    a replica began anew as another member, without its data, though its node was in
                   the assignments all the while, no fault took its data, and the store told no
                   reason; or one that was erased went on as the same member
``redundant-replica`` a replica went on outside the one node that a reset had given the partition to
``wrong-chain``    the chain of stable assignments does not end with the stable ones, or a reset's
                   were not added to it
================== ===============================================================================

The chain has a link for the last graceful change, and one for each forced reset since then
(``AssignmentsChain`` of IEP-131): what follows a reset without force takes the place of its link.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from operator import itemgetter
from typing import Any

import pyarrow as pa

from checkers.promises.fault_free_windows import Calm
from checkers.promises.legal_transitions import Assigned, Nodes
from harness.clock import NS_PER_S
from harness.history.store_events import erasures_in
from harness.protocols.changes import LINKS_APART, AssignmentKind
from harness.text import seconds

Row = Mapping[str, Any]
Found = Iterator[tuple[str, str]]
Chain = tuple[Nodes, ...]

ERASED_WITHIN_S = 2.0  # of the word that a copy is erased
FORCED_GRACE_S = 2.0  # for a replica outside a forced set to stop
SETTLED_S = 5.0  # of a node under a fault, before it acts on what it is told


def erased_copies(
    held: Mapping[int, Sequence[tuple[int, Assigned]]],
    states: pa.Table,
    events: pa.Table,
    calm: Calm,
) -> Found:
    """Yield one sentence for each replica that was erased without a cause. ``held`` has, by
    partition, what was written about it, each with the time from which on it held.
    """
    told = {
        # Mapped to the run's clock: it may have been told earlier, or later.
        (row["node"], row["partition"], row["at_ns"], row["uncertainty_ns"])
        for row in erasures_in(events)
    }
    for before, after in _next_lives(states):
        node, partition = after["node"], after["partition"]
        since_ns, until_ns = before["since_ns"], after["answered_ns"]
        written = held.get(partition)
        if not written or not _kept_throughout(written, node, since_ns, until_ns):
            continue
        reasons = ((at, by) for n, p, at, by in told if (n, p) == (node, partition))
        if any(before["asked_ns"] - by <= at_ns <= until_ns + by for at_ns, by in reasons):
            continue
        if any(
            node in fault.nodes and fault.kind.may_take_copies and fault.start_ns <= until_ns
            for fault in calm.disturbances
        ):
            continue
        yield (
            "erased-copy",
            f"erased copy: the replica of partition {partition} on {node}, which had entries up to "
            f"{before['last_index']} at {seconds(before['asked_ns'])}, began anew as another "
            f"member by {seconds(after['asked_ns'])}, though {node} was in its assignments and no "
            "reason was told",
        )


def same_members(states: pa.Table, events: pa.Table) -> Found:
    """Yield one sentence for each replica that went on as the same member after its copy had been
    erased: what it had promised in that name is gone.
    """
    erased = erasures_in(events)
    rows = states.to_pylist() if erased else []
    for event in erased:
        first_ns = event["at_ns"] - event["uncertainty_ns"]
        last_ns = event["at_ns"] + event["uncertainty_ns"] + int(ERASED_WITHIN_S * NS_PER_S)
        own = [
            row
            for row in rows
            if (row["node"], row["partition"]) == (event["node"], event["partition"])
        ]
        lives = {row["life"] for row in own if row["answered_ns"] < first_ns and row["last_index"]}
        again = next((r for r in own if r["asked_ns"] > last_ns and r["life"] in lives), None)
        if again is not None:
            yield (
                "erased-copy",
                f"erased copy: {event['node']} erased its replica of partition "
                f"{event['partition']} at {seconds(event['at_ns'])}, and went on as the same "
                f"member, {again['life']}, at {seconds(again['asked_ns'])}",
            )


def _next_lives(states: pa.Table) -> Iterator[tuple[dict[str, Any], dict[str, Any]]]:
    """Yield the last state of each life of a replica that held something (``since_ns``: the first
    question that it answered) with the first state of the next life.
    """
    lives: dict[tuple[str, int], dict[str, Any]] = {}
    for row in states.sort_by("asked_ns").to_pylist():
        if row["partition"] is None:
            continue
        place = row["node"], row["partition"]
        known = lives.get(place)
        if known is not None and known["life"] != row["life"] and known["last_index"]:
            yield known, row
        same = known is not None and known["life"] == row["life"]
        since_ns = known["since_ns"] if known is not None and same else row["asked_ns"]
        lives[place] = row | {"since_ns": since_ns}


def _kept_throughout(
    written: Sequence[tuple[int, Assigned]], node: str, since_ns: int, until_ns: int
) -> bool:
    """Tell whether ``node`` was in a set of the partition, whichever, all the time."""
    found = list[Assigned]()
    for at_ns, sets in written:
        if at_ns > until_ns:
            break
        if at_ns <= since_ns:
            found.clear()
        found.append(sets)
    return bool(found) and all(node in _named(sets) for sets in found)


def _named(sets: Assigned) -> Nodes:
    return frozenset(n for held in (sets.stable, sets.pending, sets.planned) for n in held or ())


def outside_forced(
    forced: Iterable[tuple[int, int, int, Nodes]], states: pa.Table, calm: Calm
) -> Found:
    """Yield one sentence for each replica that ran though a reset had given its partition to
    another node, for longer than the grace; ``forced`` are (partition, since, until, nodes).
    """
    spans = [each for each in forced if each[2] - each[1] > FORCED_GRACE_S * NS_PER_S]
    told: set[tuple[int, str]] = set()
    for row in states.to_pylist() if spans else ():
        for partition, since_ns, until_ns, nodes in spans:
            due_ns = since_ns + int(FORCED_GRACE_S * NS_PER_S)
            place = partition, row["node"]
            if row["partition"] != partition or row["node"] in nodes or place in told:
                continue
            if not due_ns <= row["asked_ns"] <= row["answered_ns"] < until_ns:
                continue
            clear_ns = row["asked_ns"] - int(SETTLED_S * NS_PER_S)
            if any(
                row["node"] in fault.nodes
                and fault.start_ns <= row["answered_ns"]
                and fault.end_ns >= clear_ns
                for fault in calm.disturbances
            ):
                continue
            told.add(place)
            yield (
                "redundant-replica",
                f"redundant replica: {row['node']} runs one of partition {partition} at "
                f"{seconds(row['asked_ns'])}, which a reset has given to "
                f"{' '.join(sorted(nodes))} alone since {seconds(since_ns)}",
            )


def wrong_chains(
    steps: Mapping[int, Sequence[tuple[int, int, Assigned, Assigned, bool]]],
    rows: Iterable[Row],
) -> Found:
    """Yield one sentence for each revision that left a chain which does not tell of the stable
    assignments. ``steps`` are, by partition, (revision, time, before, after, whether what is
    pending before it is a reset's).
    """
    chains: dict[int, list[tuple[int, Chain | None]]] = {}
    for row in sorted(rows, key=itemgetter("revision")):
        if row["kind"] == AssignmentKind.CHAIN:
            chains.setdefault(row["partition"], []).append((row["revision"], _chain_of(row)))
    for partition, of_partition in steps.items():
        written, place = chains.get(partition, []), 0
        chain: Chain | None = None
        for revision, at_ns, before, after, forced in of_partition:
            # Some revisions write the chain alone.
            while place < len(written) and written[place][0] < revision:
                chain, place = written[place][1], place + 1
            was = chain
            while place < len(written) and written[place][0] == revision:
                chain, place = written[place][1], place + 1
            if chain is None or after.stable is None:
                continue
            completes = before.stable != after.stable and after.stable == before.pending
            problem = None
            if chain[-1] != after.stable:
                problem = f"ends with {_text(chain[-1])}, and {_text(after.stable)} is stable"
            elif was is not None and forced and completes and len(chain) != len(was) + 1:
                problem = f"has {len(chain)} links behind a reset, and had {len(was)}"
            if problem is not None:
                yield (
                    "wrong-chain",
                    f"wrong chain: that of partition {partition} {problem}, at revision "
                    f"{revision} ({seconds(at_ns)})",
                )


def _chain_of(row: Row) -> Chain | None:
    if row["nodes"] is None:
        return None
    return tuple(frozenset(link.split()) for link in row["text"].split(LINKS_APART))


def _text(nodes: Nodes) -> str:
    return " ".join(sorted(nodes))
