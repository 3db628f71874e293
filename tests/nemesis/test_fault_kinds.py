"""Kinds of faults are values that every reader shares, in this run and in those recorded before."""

from __future__ import annotations

import attrs
import msgspec
import pytest
from msgspec.structs import replace

from cli.plan_plugins import build_fault
from harness import plugins
from harness.errors import BrokenPlugin
from harness.protocols import targets
from harness.protocols.cluster import Capability
from harness.protocols.fault_kinds import (
    BIT_FLIP,
    BUILT_IN,
    CLOCK_JUMP,
    DDL,
    DISK_FULL,
    DISK_SLOW,
    FREEZE,
    FULL_RESTART,
    JOIN,
    KILL,
    MAJORITIES_RING,
    PARTITION,
    ROLLING_RESTART,
    WIPE,
    Effect,
    FaultKind,
    Mechanism,
    RecordedFaultKind,
    by_name,
    possible,
    recorded,
)
from nemesis.node_faults import NodeFault
from nemesis.node_faults import kill as kill_fault

OLD = b'[{"kind":"kill"},{"kind":"bit-flip","may_end":true},{"kind":"torn-disk","may_end":true}]'


def test_every_installed_kind_of_ours_is_a_value_of_the_one_table() -> None:
    assert {name: build_fault(name).kind for name in plugins.names("faults")} == BUILT_IN


@pytest.mark.parametrize("kind", BUILT_IN.values(), ids=lambda kind: kind.name)
def test_every_aim_of_a_kind_is_a_target_that_its_fault_accepts(kind: FaultKind) -> None:
    nodes = tuple(f"n{number}" for number in range(1, 6))
    for aim in kind.aims:
        build_fault(kind.name).check(aim, nodes, 4, "target")
        assert all(targets.parse(end).strength is None for end in aim.split(">"))


@pytest.mark.parametrize("kind", BUILT_IN.values(), ids=lambda kind: kind.name)
def test_a_kind_comes_back_from_a_manifest_with_what_judgements_ask(kind: FaultKind) -> None:
    stored = msgspec.json.encode(recorded([kind], Capability))
    (found,) = possible(msgspec.json.decode(stored, type=tuple[RecordedFaultKind, ...]))

    assert (found.name, found.effects, found.of_nodes) == (kind.name, kind.effects, kind.of_nodes)


def test_only_kinds_that_the_provider_can_do_were_possible_in_a_run() -> None:
    found = recorded([PARTITION, KILL, DISK_FULL], {Capability.KILL, Capability.PARTITION})

    assert [row.kind for row in found] == ["kill", "partition"]


def test_a_run_recorded_before_effects_were_is_read_by_the_table_and_its_own_word() -> None:
    rows = msgspec.json.decode(OLD, type=tuple[RecordedFaultKind, ...])
    kill, flip, torn = possible(rows)

    assert kill.effects == KILL.effects
    assert flip.effects == BIT_FLIP.effects
    assert torn.effects == {Effect.MAY_END_PROGRAM}
    (mild,) = possible((RecordedFaultKind(kind="bit-flip", may_end=False),))
    assert not mild.may_end


def test_what_a_run_recorded_of_a_kind_counts_before_the_built_in_one() -> None:
    gentle = FaultKind(name="kill", effects=frozenset({Effect.IMPAIRS_DISK}))

    assert by_name([gentle])["kill"] is gentle
    assert by_name([])["kill"] is KILL
    assert possible(msgspec.UNSET) == ()


@pytest.mark.parametrize(
    ("kind", "missed"), [(KILL, True), (PARTITION, True), (DISK_FULL, True), (BIT_FLIP, True),
                         (DISK_SLOW, False), (CLOCK_JUMP, False), (DDL, False),
                         (FaultKind(name="strange", effects=frozenset()), True)],
)  # fmt: skip
def test_nodes_that_answer_as_before_are_not_missed(kind: FaultKind, missed: bool) -> None:
    assert kind.may_be_missed is missed


def test_each_effect_acts_through_some_mechanism_and_an_unknown_one_through_all() -> None:
    for effect in Effect:
        assert FaultKind(name="x", effects=frozenset({effect})).mechanisms
    assert FaultKind(name="x", effects=frozenset()).mechanisms == set(Mechanism)
    assert WIPE.mechanisms == set(Mechanism)
    assert FREEZE.mechanisms == set(Mechanism) - {Mechanism.PLACEMENT}
    assert DISK_FULL.mechanisms == {Mechanism.DISK, Mechanism.PROGRAM}
    assert not KILL.mechanisms & (PARTITION.mechanisms | DISK_SLOW.mechanisms)


def test_a_kind_that_takes_the_whole_cluster_is_of_no_role() -> None:
    whole = [kind.name for kind in BUILT_IN.values() if not kind.of_nodes]
    restarts = [ROLLING_RESTART.name, FULL_RESTART.name]
    assert whole == [*restarts, MAJORITIES_RING.name, DDL.name, JOIN.name]
    assert [kind for kind in BUILT_IN.values() if kind.of_spares] == [JOIN]


@pytest.mark.parametrize(
    ("made", "told"),
    [
        (attrs.evolve(kill_fault(), kind="kill"), "(got 'kill')"),
        (attrs.evolve(kill_fault(), kind=replace(KILL, name="slay")), "name='slay'"),
    ],
)
def test_a_fault_whose_kind_is_no_value_of_its_name_is_refused(
    made: NodeFault, told: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(plugins, "load", lambda group, name: lambda: made)

    with pytest.raises(BrokenPlugin, match="expected its kind to be a FaultKind named 'kill'") as e:
        build_fault("kill")
    assert told in str(e.value)
