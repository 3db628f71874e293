"""A metastorage that hears, or commits, late: where seeds with zones have it."""

from __future__ import annotations

from random import Random

from cli.campaign_plans import swarm_plans
from clusters.reference import churn, late_metastorage, majority_losses
from harness.plan.plan import Plan
from harness.protocols.faults import PlannedFault

DATA, VOTERS = ("n4", "n5"), ("n1", "n2", "n3")


def told(seed: int, kind: str) -> list[PlannedFault]:
    faults = late_metastorage.stories(
        Random(seed),
        nodes=DATA,
        voters=VOTERS,
        detection_s=0.7,
        begin_s=2.0,
        end_s=30.0,
        kinds=(kind,),
    )
    return list(faults)


def test_stories_are_over_in_time_and_none_begins_before_the_last_is_over() -> None:
    for kind, faults in (("renewal", 2), ("leave", 2), ("commits", len(VOTERS))):
        found = told(7, kind)
        assert found
        assert len(found) % faults == 0
        ends_s = 2.0
        for first in range(0, len(found), faults):
            story = found[first : first + faults]
            assert min(fault.at_s for fault in story) >= ends_s - 0.01
            ends_s = max(fault.at_s + fault.hold_s for fault in story)
            ends_s += late_metastorage.APART_S[0]
        assert ends_s <= 30.0 + late_metastorage.APART_S[0]


def late(plan: Plan) -> bool:
    return any(
        fault.target == "metastorage leader" and (fault.options or {}).get("of") == "metastorage"
        for fault in plan.nemesis.schedule
    )


def test_seeds_of_churn_and_of_losses_of_majorities_have_it_too() -> None:
    for asked in ({churn.ASKED_BY: "base"}, {majority_losses.ASKED_BY: "HA"}):
        plans = swarm_plans(None, asked, (), range(7100, 7140))
        if churn.ASKED_BY in asked:
            plans = [plan for plan in plans if plan.cluster.spares]
        assert 0.2 * len(plans) < sum(map(late, plans)) < 0.8 * len(plans)
