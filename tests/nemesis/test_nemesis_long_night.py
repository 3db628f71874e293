"""The long night's plan: every kind that containers can do, on every role."""

from __future__ import annotations

from itertools import pairwise, product
from pathlib import Path

from nemesis_world import EVERY_FAULT

from harness.plan.plan import load
from harness.protocols import targets
from harness.protocols.cluster import Capability
from harness.protocols.fault_kinds import recorded
from harness.protocols.roles import COVERED, METASTORAGE, PRIMARY, VOTER
from harness.protocols.targets import Form
from nemesis.schedule import check_schedule

PLAN = load(Path(__file__).parents[2] / "scenarios/reference/long-night.toml", seed=1)
NODES = tuple(f"n{n + 1}" for n in range(PLAN.cluster.nodes))
CONTAINERS = frozenset(Capability) - {Capability.DELAY, Capability.CLOCK, Capability.DISK}
ROLE_OF = {
    Form.PRIMARY: PRIMARY,
    Form.FOLLOWER: VOTER,
    Form.METASTORAGE_LEADER: METASTORAGE,
}
KINDS = recorded((fault.kind for fault in EVERY_FAULT.values()), CONTAINERS)


def test_it_can_be_applied() -> None:
    schedule = PLAN.nemesis.schedule
    check_schedule(
        schedule, faults=EVERY_FAULT, nodes=NODES, duration_s=PLAN.drive.duration_s, partitions=8
    )

    assert len(schedule) > 90
    assert {planned.kind for planned in schedule} == {kind.kind for kind in KINDS}


def test_it_tries_every_cell_of_kind_and_role() -> None:
    tried = set()
    for planned in PLAN.nemesis.schedule:
        form = targets.parse(planned.target).form
        if form in ROLE_OF:
            tried.add((planned.kind, ROLE_OF[form]))

    assert tried == set(product([kind.kind for kind in KINDS if kind.of_nodes], COVERED))


def test_between_two_rounds_the_cluster_has_time_to_recover() -> None:
    begins = sorted({planned.at_s for planned in PLAN.nemesis.schedule})
    holds = {planned.hold_s for planned in PLAN.nemesis.schedule}

    assert min(b - a for a, b in pairwise(begins)) > max(holds) + 10
    assert PLAN.drive.duration_s - begins[-1] > max(holds) + 10
