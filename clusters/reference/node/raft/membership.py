"""A change of members as its leader drives it: catch up, joint, stable.

What travels through the log are whole configurations; the plan to get to a target lives with the
leader that was asked, and ends with its leadership. A joint configuration is left by whoever leads.
"""

from __future__ import annotations

import enum
from collections.abc import Callable

from clusters.reference.node.raft.configuration import (
    Change,
    Configuration,
    enter_joint,
    simple,
    towards,
)

CATCH_UP_MARGIN = 256  # entries that a new voter may lack: a few messages, less than an election


class Stage(enum.StrEnum):
    """How far a change of members is."""

    CATCHING_UP = "catching-up"
    JOINT = "joint"
    STABLE = "stable"


class PeerChange:
    """The way to ``voters`` and ``learners``. New voters are learners until they have nearly
    everything, so that the group never waits for them (thesis 4.2.1).
    """

    def __init__(self, voters: tuple[str, ...], learners: tuple[str, ...], goal: int) -> None:
        """``goal``: the last index when the change was asked for; everything up to there at least
        must be on a new voter.
        """
        self.voters, self.learners, self._goal = voters, learners, goal

    def same(self, other: PeerChange) -> bool:
        """Whether it leads to the same members."""
        return (self.voters, self.learners) == (other.voters, other.learners)

    def reached(self, config: Configuration) -> bool:
        """Whether there is nothing left to do."""
        return not config.joint and not towards(config, self.voters, self.learners)

    def step(
        self, config: Configuration, match: Callable[[str], int], last_index: int
    ) -> Configuration | None:
        """The next configuration, or ``None`` while new voters catch up. ``config`` is committed
        and not joint.
        """
        new = [n for n in self.voters if n not in config.voters]
        if not new and not [n for n in config.voters if n not in self.voters]:
            return simple(config, towards(config, self.voters, self.learners))
        strangers = [Change("learner", n) for n in new if n not in config.learners]
        if strangers:
            return simple(config, strangers)
        if any(self._lags(match(n), last_index) for n in new):
            return None
        return enter_joint(config, towards(config, self.voters, self.learners))

    def _lags(self, match_index: int, last_index: int) -> bool:
        return match_index < max(self._goal, last_index - CATCH_UP_MARGIN)
