"""The fault that explains a loss is the one that a look at each pair of them finds."""

from __future__ import annotations

import random
import time
from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from checkers.engine.spans import FOREVER_NS
from checkers.explain.fault_attribution import NEAR_NS, Faults, KnownFaults, Moments, attribute
from harness.history import schema
from harness.protocols.fault_spans import FaultSpan, fault_spans
from harness.protocols.roles import Role, RoleKind

moments = st.integers(0, 20)
spans = st.tuples(moments, moments | st.none())
losses = st.tuples(moments, moments, moments)


def by_pairs(faults: Sequence[tuple[int, int | None]], loss: tuple[int, int, int]) -> int:
    since, ack, read = loss
    met = [
        (max(begin - ack, ack - (FOREVER_NS if end is None else end), 0), place)
        for place, (begin, end) in enumerate(faults)
        if begin <= read and (end is None or end >= since)
    ]
    return min(met)[1] if met else -1


def nearest(
    faults: Sequence[tuple[int, int | None]], lost: Sequence[tuple[int, int, int]]
) -> list[int]:
    columns = np.array(lost, np.int64).reshape(-1, 3).T
    found: list[int] = Faults.of(faults).nearest(Moments.of(*columns)).tolist()
    return found


@given(st.lists(spans, max_size=8), st.lists(losses, max_size=8))
def test_the_nearest_fault_is_the_one_that_a_look_at_each_pair_finds(
    faults: list[tuple[int, int | None]], lost: list[tuple[int, int, int]]
) -> None:
    assert nearest(faults, lost) == [by_pairs(faults, loss) for loss in lost]


@given(st.lists(st.tuples(moments, moments), max_size=12), st.lists(losses, max_size=12))
def test_so_it_is_where_faults_end_after_they_began_and_losses_are_in_order(
    faults: list[tuple[int, int]], lost: list[tuple[int, int, int]]
) -> None:
    ordered = [(min(span), max(span)) for span in faults]
    sound = [tuple(sorted(loss)) for loss in lost]

    assert nearest(ordered, sound) == [by_pairs(ordered, loss) for loss in sound]  # type: ignore[arg-type]


def test_faults_of_a_long_run_are_found_the_same() -> None:
    rng = random.Random(3)
    faults = [(at, at + rng.randrange(40)) for at in (rng.randrange(2_000) for _ in range(300))]
    lost = [(at, at + rng.randrange(30), at + 60) for at in range(0, 2_000, 7)]

    assert nearest(faults, lost) == [by_pairs(faults, loss) for loss in lost]


ROLES = (
    *("primary of partition 1", "leader of partition 1", "leader of partition 2"),
    *("follower of partition 1", "metastorage leader", "leader", "leader of partition 01"),
)
STEP_NS = 1_000_000_000


def random_faults(rng: random.Random, count: int) -> list[dict[str, Any]]:
    def some(at: int) -> int | None:
        return None if rng.random() < 0.2 else at * STEP_NS

    rows = []
    for number in rng.sample(range(50), count):
        at = [rng.randrange(30) for _ in range(4)]
        begin, effective, healing, healed = sorted(at) if rng.random() < 0.9 else at
        rows.append(
            dict.fromkeys(schema.FAULTS.names)
            | {"fault": number, "kind": "kill", "target": "n1", "nodes": ["n1"], "state": "healed"}
            | {"roles": rng.sample(ROLES, rng.randrange(3)), "injecting_ns": begin * STEP_NS}
            | {"effective_ns": some(effective), "healing_ns": some(healing)}
            | {"healed_ns": some(healed)}
        )
    return rows


def plainly(loss: dict[str, Any], known: Sequence[FaultSpan]) -> dict[str, Any]:
    """The definition: each fault is looked at."""
    met = [span for span in known if span.touches(loss["since_ns"], loss["shown_ns"])]
    if not met:
        return {}
    at_ns = loss["ack_ns"]

    def rank(span: FaultSpan) -> tuple[bool, int, int]:
        end_ns = FOREVER_NS if span.healed_ns is None else span.healed_ns
        away_ns = max(span.begin_ns - at_ns, at_ns - end_ns, 0)
        led = any(
            str(Role(kind, loss["partition"])) in span.roles
            for kind in (RoleKind.PRIMARY, RoleKind.LEADER)
        )
        return not (led and away_ns <= NEAR_NS), away_ns, span.fault

    span = min(met, key=rank)
    steps = (span.begin_ns, span.effective_ns, span.healing_ns, span.healed_ns)
    named = zip(("injection", "effect", "healing", "heal"), steps, strict=True)
    boundary, step_ns = min(
        ((name, step) for name, step in named if step is not None),
        key=lambda step: abs(at_ns - step[1]),
    )
    phase = "before"
    for name, step in zip(("inject", "hold", "heal"), steps[:3], strict=True):
        phase = name if step is not None and at_ns >= step else phase
    if span.healed_ns is not None and at_ns > span.healed_ns:
        phase = "after"
    told = {"fault": span.fault, "fault_start_ns": span.begin_ns, "fault_end_ns": span.healed_ns}
    roles = {"fault_roles": list(span.roles), "fault_nodes": list(span.nodes)}
    return {
        **(told | roles),
        **{"phase": phase, "boundary": boundary, "distance_ns": at_ns - step_ns},
    }


def test_losses_are_attributed_as_the_definition_says() -> None:
    rng = random.Random(11)
    explained = led = 0
    for _ in range(300):
        faults = pa.Table.from_pylist(random_faults(rng, rng.randrange(9)), schema=schema.FAULTS)
        lost = []
        for _ in range(12):
            times = sorted(rng.randrange(32) for _ in "abc")
            if rng.random() < 0.1:
                rng.shuffle(times)
            names = ("since_ns", "ack_ns", "shown_ns")
            loss = {n: at * STEP_NS for n, at in zip(names, times, strict=True)}
            lost.append(loss | {"partition": rng.choice((None, 1, 2, 3))})
        known, spans = KnownFaults.of(faults), fault_spans(faults.to_pylist())
        found = attribute(pa.Table.from_pylist(lost, schema=_LOST), known).to_pylist()

        for loss, row in zip(lost, found, strict=True):
            expected = plainly(loss, spans)
            names = expected or ("fault", "phase", "boundary", "distance_ns", "fault_roles")
            assert {name: row[name] for name in names} == (expected or dict.fromkeys(names))
            explained += bool(expected)
            led += str(Role(RoleKind.LEADER, loss["partition"])) in (row["fault_roles"] or ())
    assert explained > 1_000
    assert led > 100


_LOST = pa.schema(
    [
        ("since_ns", pa.int64()),
        ("ack_ns", pa.int64()),
        ("shown_ns", pa.int64()),
        ("partition", pa.int32()),
    ]
)


def test_a_hundred_thousand_losses_beside_ten_thousand_faults_take_a_moment() -> None:
    rng = random.Random(1)
    faults = [
        dict.fromkeys(schema.FAULTS.names)
        | {"fault": number, "kind": "kill", "target": "n1", "nodes": ["n1"], "state": "healed"}
        | {"roles": [f"leader of partition {number % 64}"], "injecting_ns": number}
        | {"healed_ns": number + rng.randrange(10_000)}
        for number in range(10_000)
    ]
    known = KnownFaults.of(pa.Table.from_pylist(faults, schema=schema.FAULTS))
    place = np.arange(100_000)
    lost = {"since_ns": place // 10, "ack_ns": place // 10 + 5, "shown_ns": place * 0 + 10**9}
    table = pa.table({**lost, "partition": pa.array(place % 64, pa.int32())})

    begun_s = time.process_time()
    found = attribute(table, known)

    # Pair by pair it was half an hour.
    assert time.process_time() - begun_s < 5
    assert found["fault"].null_count == 0
