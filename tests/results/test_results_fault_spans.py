"""A fault begins and ends at the same moments in words, tables and pictures."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import pyarrow as pa

from checkers.explain.fault_attribution import KnownFaults, attribute
from checkers.explain.fault_explanations import ACKNOWLEDGED, explain
from harness.history.schema import FAULTS
from harness.protocols.fault_spans import SETTLED_NS, fault_spans, in_calm
from results.drawing.node_roles import DOWN, roles_over_time

MS = 1_000_000
LAST_NS = 9000 * MS


def row(**times_ms: int) -> dict[str, Any]:
    return {
        "fault": 0,
        "kind": "kill",
        "target": "n1",
        "nodes": ["n1"],
        "roles": [],
        "state": "healed",
        "proof": None,
        "heal_proof": None,
        "reason": None,
    } | {
        name: times_ms[name.removesuffix("_ns")] * MS
        if name.removesuffix("_ns") in times_ms
        else None
        for name in FAULTS.names
        if name.endswith("_ns")
    }


WHOLE = row(planned=2990, injecting=3000, injected=3600, effective=4200, healing=7000, healed=7500)


def test_a_fault_is_unsure_until_it_is_proven_and_again_while_it_heals() -> None:
    (span,) = fault_spans([WHOLE])

    assert (span.begin_ns, span.end_ns(LAST_NS)) == (3000 * MS, 7500 * MS)
    assert span.in_force(LAST_NS) == (4200 * MS, 7000 * MS)
    assert span.unsure(LAST_NS) == ((3000 * MS, 4200 * MS), (7000 * MS, 7500 * MS))


def test_a_fault_that_never_healed_lasts_to_the_end_and_one_never_proven_is_unsure_all_along() -> (
    None
):
    left, vain = row(injecting=3000, effective=4000), row(injecting=3000, healed=5000)

    (span,) = fault_spans([left])
    assert span.in_force(LAST_NS) == (4000 * MS, LAST_NS)
    assert span.unsure(LAST_NS) == ((3000 * MS, 4000 * MS),)
    (span,) = fault_spans([vain])
    assert span.in_force(LAST_NS) is None
    assert span.unsure(LAST_NS) == ((3000 * MS, 5000 * MS),)


def test_what_was_planned_or_skipped_alone_was_never_in_force() -> None:
    skipped = row(planned=1, injecting=2) | {"state": "skipped"}

    assert fault_spans([row(planned=1), skipped]) == ()


def test_an_acknowledgement_while_a_fault_is_injected_is_during_it_in_words_and_in_the_lane() -> (
    None
):
    known = KnownFaults.of(pa.Table.from_pylist([WHOLE], schema=FAULTS))
    at = {"since_ns": [3100 * MS], "ack_ns": [3100 * MS], "shown_ns": [8000 * MS]}
    lost = pa.table(at | {"partition": [0]})

    (span,) = fault_spans([WHOLE])
    explained = explain(attribute(lost, known).to_pylist()[0], ACKNOWLEDGED, known)
    events = pa.table({name: [] for name in ("kind", "node", "at_ns", "partition")})
    (lane,) = roles_over_time(events, [WHOLE], ["n1"], LAST_NS).nodes

    assert explained is not None
    told = explained.text
    assert told == (
        "acknowledged at 3.100 s, during kill of n1, in force from 3.000 s to 7.500 s "
        "(inject: 0.100 s after its injection)"
    )
    assert [(s.start_s, s.end_s, s.state, s.unsure) for s in lane.stretches] == [
        (3.0, 4.2, DOWN, True),
        (4.2, 7.0, DOWN, False),
        (7.0, 7.5, DOWN, True),
    ]
    assert (span.begin_ns, span.healed_ns) == (3000 * MS, 7500 * MS)


def test_an_operation_is_calm_that_was_open_in_no_fault_nor_in_what_one_left() -> None:
    drawn = random.Random(7)
    for _ in range(200):
        spans = fault_spans(
            row(injecting=begin, **({} if drawn.random() < 0.2 else {"healed": begin + length}))
            | {"fault": number}
            for number, (begin, length) in enumerate(
                (drawn.randrange(20_000), drawn.randrange(3000)) for _ in range(drawn.randrange(4))
            )
        )
        begun = np.array([drawn.randrange(20_000) * MS for _ in range(20)])
        ended = begun + np.array([drawn.randrange(2000) * MS for _ in range(20)])

        found = in_calm(begun, ended, spans, {"drive": 1000 * MS, "heal": 18_000 * MS})

        for start_ns, end_ns, calm in zip(begun, ended, found, strict=True):
            inside = start_ns >= 1000 * MS and end_ns < 18_000 * MS
            met = [
                span
                for span in spans
                if end_ns >= span.begin_ns and start_ns < span.end_ns(18_000 * MS) + SETTLED_NS
            ]
            assert calm == (inside and not met)
        assert not in_calm(begun, ended, spans, {"drive": 0}).any()
