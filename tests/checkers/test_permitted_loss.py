"""Which reset may have cost a lost write: beside the plain definition, on random partitions."""

from __future__ import annotations

import random

import numpy as np
import pyarrow as pa
import pytest

from checkers.promises import permitted_loss
from checkers.promises.permitted_loss import Envelope, Envelopes, Held, Loss, judged_resets
from checkers.promises.told_states import ToldStates
from harness.protocols.generations import (
    ANSWERED_WITHIN_NS,
    GenerationTree,
    Reset,
    trees_of,
)
from harness.run.state_log import STATES

UNIT = ANSWERED_WITHIN_NS


def resets(rng: random.Random) -> list[Reset]:
    found = []
    for number in range(1, rng.randrange(2, 9)):
        at = rng.randrange(30)
        survivors = rng.choice((None, ("n1",), ("n1", "n2")))
        found.append(
            Reset(
                partition=1,
                generation=number,
                previous=rng.randrange(number) if rng.random() < 0.2 else number - 1,
                earliest_ns=at * UNIT,
                latest_ns=(at + rng.randrange(3)) * UNIT,
                node="n1",
                survivors=survivors,
                restores=rng.random() < 0.1,
            )
        )
    return found


def states(rng: random.Random, rows: int) -> pa.Table:
    own = [
        {
            "node": rng.choice(("n1", "n2", "n3")),
            "partition": 1,
            "generation": rng.randrange(5),
            "asked_ns": (asked := rng.randrange(30)) * UNIT,
            "answered_ns": (asked + rng.randrange(2)) * UNIT,
            "acting": rng.random() < 0.5,
            "last_index": rng.randrange(9),
            "commit_index": rng.randrange(9),
            "applied_index": rng.randrange(9),
        }
        for _ in range(rows)
    ]
    blank = {
        field.name: "" if pa.types.is_string(field.type) or pa.types.is_dictionary(field.type)
        else False if pa.types.is_boolean(field.type) else 0
        for field in STATES
    }  # fmt: skip
    return pa.Table.from_pylist([blank | row for row in own], schema=STATES)


def losses(rng: random.Random) -> Loss:
    invoke, read = rng.randrange(30), rng.randrange(35)
    return Loss(
        partition=1,
        key=1,
        value=1,
        writer=0,
        invoke_ns=invoke * UNIT,
        ack_ns=(invoke + rng.randrange(4)) * UNIT,
        read_ns=read * UNIT,
        read_end_ns=(read + rng.randrange(4)) * UNIT,
        seen_ns=rng.choice((None, rng.randrange(35) * UNIT)),
    )


def plain(tree: GenerationTree, told: ToldStates, loss: Loss) -> tuple[int, Held] | None:
    """The first reset on the way that took place late enough and left no survivor with it."""
    since, until = tree.span(loss.invoke_ns, loss.ack_ns)
    first, last = tree.span(loss.read_ns, loss.read_end_ns)
    for place in (place for way in tree.ways(since, until, first, last) for place in way):
        reset = tree.resets[place - 1]
        late = loss.invoke_ns <= reset.latest_ns and (
            loss.ack_ns <= reset.latest_ns + ANSWERED_WITHIN_NS
        )
        if reset.restores or not late or (loss.seen_ns or -1) > reset.latest_ns:
            continue
        rows = told.before(reset).states.to_pylist()
        if not rows or reset.survivors is None:
            return place, Held.UNJUDGED
        ends = [
            max(row["last_index"], row["commit_index"])
            for row in rows
            if row["acting"] and row["asked_ns"] >= loss.ack_ns
        ]
        last_of = {row["node"]: row["applied_index"] for row in rows}
        applied = max((last_of[node] for node in reset.survivors if node in last_of), default=0)
        if not ends or applied < min(ends):
            return place, Held.BY_NONE
    return None


def test_the_reset_that_may_have_cost_a_write_is_that_of_the_plain_definition(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(permitted_loss, "LOOKED_AT_ONCE", 2)
    rng = random.Random(14)
    seen = set[Held | None]()
    for _ in range(300):
        own = resets(rng)
        told, trees = ToldStates(states(rng, rng.randrange(40))), trees_of(own)
        judged = judged_resets(trees, told)
        envelopes = Envelopes.of(trees[1], told, lambda _: True, judged[1])
        for _ in range(20):
            loss = losses(rng)
            found = envelopes.permission(loss)
            expected = plain(trees[1], told, loss)
            assert (found and (found.envelope.place, found.held)) == expected, (own, loss)
            seen.add(found.held if found else None)
    assert seen == {None, Held.BY_NONE, Held.UNJUDGED}


def test_survivors_of_resets_beyond_the_limit_are_not_asked(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(permitted_loss, "LEAST_JUDGED", 0)
    monkeypatch.setattr(permitted_loss, "RESETS_JUDGED", 1)
    asked = list[int]()
    own = [
        Reset(partition=1, generation=n, previous=n - 1, earliest_ns=n * UNIT, latest_ns=n * UNIT,
              node="n1", survivors=("n1",))
        for n in (1, 2)
    ]  # fmt: skip
    trees, told = trees_of(own), ToldStates(states(random.Random(1), 0))

    def survived_until(envelope: Envelope) -> int:
        asked.append(envelope.place)
        return 2**62

    monkeypatch.setattr(Envelope, "survived_until", survived_until)
    envelopes = Envelopes.of(trees[1], told, lambda _: True, judged_resets(trees, told)[1])
    loss = Loss(partition=1, key=1, value=1, writer=0, invoke_ns=0, ack_ns=1, read_ns=5 * UNIT,
                read_end_ns=6 * UNIT, seen_ns=None)  # fmt: skip

    found = envelopes.permission(loss)

    assert found is not None
    assert (found.envelope.place, found.held) == (2, Held.TOO_MANY)
    assert asked == [1]
    assert np.all(envelopes._survived.told == [True, False])
