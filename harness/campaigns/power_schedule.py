"""The power schedule of a guided search: how likely a plan that was kept becomes a parent again.

The energy of a plan grows with how few runs reach what it reached (Böhme, Pham, Roychoudhury,
"Coverage-based Greybox Fuzzing as Markov Chain", CCS 2016), and falls with what it costs and with
the children that it has.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

import attrs

from harness.campaigns.corpus import Entry
from harness.protocols.moments import Moment

RARE_SHARE = 0.1  # of runs: what more of them reach tells no plan from another


@attrs.define
class Parent:
    """A plan that was kept, and how many children were made of it."""

    entry: Entry
    children: int = 0


def energy(parent: Parent, reached: Mapping[str, int], runs: int) -> float:
    """Return the weight of ``parent`` among all; ``reached`` counts by feature those of ``runs``
    that reached it.
    """
    # Of few runs the share alone is less than one run, and nothing would be rare.
    rare = max(2.0, RARE_SHARE * runs)
    counts = (reached[feature] for feature in parent.entry.features)
    # Exact, since a set of texts has another order in each process.
    rarity = math.fsum(1 / count for count in counts if count <= rare)
    # The 0.1 keeps a chance for plans all of whose features have become common.
    return (0.1 + rarity) / math.sqrt(parent.entry.cost_s * (1 + parent.children))


def moment_weight(reached: Mapping[str, int], moment: Moment) -> float:
    """Return the weight of ``moment`` as one that a fault waits for: the more, the fewer runs came
    to it; one that none came to is hardly worth a wait.
    """
    prefix = f"moment {moment.value} "
    most = max(
        (count for feature, count in reached.items() if feature.startswith(prefix)), default=0
    )
    return 1 / math.sqrt(most) if most else 0.02
