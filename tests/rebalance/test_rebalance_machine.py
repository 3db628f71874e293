"""Random leaders, crashes, lost answers and late invokes: voters always run, and the last target is
reached.
"""

from __future__ import annotations

import random
from collections import Counter

import pytest
from group_model import Model
from hypothesis import given
from hypothesis import strategies as st

from clusters.reference.node.rebalance.keys import assignments
from clusters.reference.node.rebalance.transitions import Outcome, Variant

SETS = ["abc", "abd", "def", "a", "bce", "abcde"]
EVENTS = st.lists(
    st.one_of(
        st.tuples(st.just("trigger"), st.sampled_from(SETS)),
        st.tuples(st.just("refresh"), st.sampled_from([-1, -1, -2, -3])),
        st.tuples(st.just("act"), st.sampled_from([-1, -1, -1, -2, -3])),
        st.tuples(st.just("lose"), st.sampled_from([-1, -2, -3])),
        st.tuples(st.just("caught_up"), st.sampled_from([-1, -1, -2])),
        st.tuples(st.just("lock lost"), st.sampled_from([-1, -2])),
        st.tuples(st.just("committed"), st.none()),
        st.tuples(st.just("failed"), st.sampled_from([-1, -2])),
        st.tuples(st.just("elect"), st.none()),
        st.tuples(st.just("leave"), st.sampled_from("abcdef")),
        st.tuples(st.just("join"), st.sampled_from("abcdef")),
        st.tuples(st.just("deliver"), st.integers(0, 9)),
    ),
    max_size=60,
)
VARIANTS = pytest.mark.parametrize("variant", list(Variant))


def happen(model: Model, kind: str, value: object) -> None:
    match kind:
        case "trigger":
            model.trigger(tuple(str(value)))
        case "act" | "lose":
            assert isinstance(value, int)
            model.act(value, lose=kind == "lose")
        case "caught_up" | "lock lost":
            assert isinstance(value, int)
            model.caught_up(value, lose=kind == "lock lost")
        case "committed" | "elect":
            getattr(model, kind)()
        case _:
            getattr(model, kind)(value)
    model.check()


def settled(model: Model) -> None:
    for node in "abcdef":
        model.join(node)
    model.settle()
    state = model.read()

    assert (state.pending, state.planned, state.lock) == (None, None, None)
    assert state.stable == assignments(model.voters) == assignments(model.asked)


@VARIANTS
@given(events=EVENTS)
def test_whatever_happens_voters_run_and_the_last_target_is_reached(
    variant: Variant, events: list[tuple[str, object]]
) -> None:
    model = Model(variant, tuple("abc"))
    for kind, value in events:
        happen(model, kind, value)

    settled(model)


@VARIANTS
@pytest.mark.parametrize("begun", [False, True])
def test_a_node_that_has_left_for_good_holds_up_only_what_still_asks_for_it(
    variant: Variant, begun: bool
) -> None:
    model = Model(variant, tuple("abc"))
    model.trigger(tuple("abd"))
    if begun:
        model.refresh(-1)
        model.act(-1)
    model.leave("d")
    model.settle()
    waiting = model.read()
    model.trigger(tuple("abe"))
    model.settle()

    assert waiting.pending == assignments("abd")
    assert model.read().stable == assignments("abe")
    assert model.read().pending is None


def test_the_base_overtakes_nothing_where_the_node_came_back_meanwhile() -> None:
    model = Model(Variant.BASE, tuple("abc"))
    model.trigger(tuple("abd"))
    model.trigger(tuple("abe"))
    model.leave("d")
    model.refresh(-1)
    model.join("d")
    model.act(-1)

    assert model.outcomes[-1] is Outcome.CHANGED
    assert model.read().pending == assignments("abd")


def wandering(seed: int, variant: Variant, length: int = 120) -> Model:
    """One long history, whose events follow each other more often than random ones do."""
    rng = random.Random(seed)
    model = Model(variant, tuple("abc"))
    kinds = ["act"] * 6 + ["caught_up"] * 3 + ["committed"] * 3 + ["trigger", "elect", "failed"]
    kinds += ["leave", "join"]
    kinds += ["refresh"] * 4 + ["lose", "lock lost", "deliver", "deliver"]
    for _ in range(length):
        kind = rng.choice(kinds)
        value: object = rng.choice([-1, -1, -1, -1, -2, -3])
        if kind == "trigger":
            value = rng.choice(SETS)
        elif kind == "deliver":
            value = rng.randrange(10)
        elif kind in ("leave", "join"):
            value = rng.choice("abcdef")
        happen(model, kind, value)
    settled(model)
    return model


@VARIANTS
def test_long_histories_take_every_branch_of_their_variant(variant: Variant) -> None:
    seen = Counter(o for seed in range(150) for o in wandering(seed, variant).outcomes)

    lock = {Outcome.LOCKED, Outcome.REFUSED, Outcome.UNLOCKED}
    never = {
        Variant.BASE: lock,
        Variant.LOCK: set(),
        Variant.CANCEL: lock,
    }[variant]
    rare = {Outcome.SUPERSEDED, Outcome.CHANGED, Outcome.OUTDATED, Outcome.RESET}
    if variant is not Variant.CANCEL:
        # Only what waits for a node that has left, or fails between the lock and the joint
        # configuration.
        rare.add(Outcome.MOVED)
        assert seen[Outcome.MOVED]
    assert {outcome for outcome in set(Outcome) - rare if seen[outcome] < 20} == never
    assert not any(seen[outcome] for outcome in never)
