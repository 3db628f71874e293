"""A leader's changes of its group's members: catch up, joint, stable; and handing leadership over.

One ``Membership`` lives with one leadership. It decides which configuration comes next, and when;
the core puts it into the log. New voters are learners until they catch up within an election
timeout, so that the group never waits longer for them (thesis 4.2.1). A leader that is not to stay
hands over to a voter that is (thesis 3.10): before the change where one of the present voters
stays, else as soon as the new ones have votes. Without a successor in time it leads to the end and
steps down (Raft 6).
"""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from clusters.reference.node.bugs import planted
from clusters.reference.node.markers import reached
from clusters.reference.node.raft.configuration import (
    Change,
    Configuration,
    Stage,
    enter_joint,
    leave_joint,
    simple,
    towards,
)
from clusters.reference.node.raft.leader import Leadership
from clusters.reference.node.raft.raft_log import Log
from clusters.reference.node.raft.settings import (
    ChangeBusy,
    ChangeRefused,
    RaftConfig,
    StaleRevision,
    StaleTerm,
)
from clusters.reference.node.raft.types import (
    CatchUpError,
    ChangeFailed,
    LeaderElected,
    PeersApplied,
    RaftEvent,
)

# Rounds of a new voter, one after the other, that took no less time than the round before: where a
# voter is faster than the load they get shorter, and one that is not would never be there.
MAX_GROWING_ROUNDS = 3


class CatchUp:
    """The rounds in which one new voter catches up (thesis 4.2.1): a round ends as the voter has
    what the log held when the round began. Under load the log's very end is never reached, so
    nearly all is judged by time: the entries that came during a short round are few.
    """

    def __init__(self, goal: int, now: int) -> None:
        """The first round begins at tick ``now``, with a log up to ``goal``."""
        self._goal, self._began = goal, now
        self._took: int | None = None  # ticks of the last round that has ended
        self.growing = 0

    def observe(self, match: int, last_index: int, now: int, limit_ticks: int) -> bool:
        """Take in how far the voter is. Whether it has caught up: its last round took less than
        ``limit_ticks``, and so does the present one as yet.
        """
        lasts = now - self._began
        if match >= self._goal:
            grows = self._took is not None and lasts >= max(self._took, limit_ticks)
            self.growing = self.growing + 1 if grows else 0
            self._took, lasts = lasts, 0
            self._goal, self._began = last_index, now
        return self._took is not None and max(self._took, lasts) < limit_ticks


class PeerChange:
    """The way to ``voters`` and ``learners``."""

    def __init__(
        self,
        voters: tuple[str, ...],
        learners: tuple[str, ...],
        *,
        revision: int = 0,
        confirm: bool = False,
    ) -> None:
        """With ``confirm`` it waits for ``confirmed`` before it is joint."""
        self.voters, self.learners, self.revision = voters, learners, revision
        self._rounds: dict[str, CatchUp] = {}
        self.confirmed = not confirm
        self.caught_up = False
        self.learning_index = 0  # of the configuration with the new voters as learners
        self._seen: dict[str, tuple[tuple[int, int], int]] = {}

    def same(self, other: PeerChange) -> bool:
        """Whether it leads to the same members."""
        return (frozenset(self.voters), frozenset(self.learners)) == (
            frozenset(other.voters),
            frozenset(other.learners),
        )

    def reached(self, config: Configuration) -> bool:
        """Whether there is nothing left to do."""
        return not config.joint and not towards(config, self.voters, self.learners)

    def learning(self, config: Configuration) -> Configuration | None:
        """``config`` with all new voters and wanted learners as learners, and without learners that
        are not wanted; ``None`` where it is that already, or no voter changes. Learners do not wait
        for the voters, of which one may never catch up.
        """
        new = self._new(config)
        if not new:
            return None
        wanted = {*self.voters, *self.learners}
        coming = (*new, *self.learners)
        strangers = [Change("learner", n) for n in coming if n not in config.members]
        unwanted = [Change("none", n) for n in config.learners if n not in wanted]
        if not strangers and not unwanted:
            return None
        reached("new voter begins as a learner")
        return simple(config, (*strangers, *unwanted))

    def deciding(self, config: Configuration) -> Configuration:
        """The configuration in which voters change: joint, unless none does."""
        changes = towards(config, self.voters, self.learners)
        # Learners alone change no majority, so that a single step is safe.
        if not self._new(config) and not [n for n in config.voters if n not in self.voters]:
            return simple(config, changes)
        reached("joint configuration is entered")
        return enter_joint(config, changes)

    def lagging(
        self, config: Configuration, leads: Leadership, last_index: int, now: int, limit_ticks: int
    ) -> list[str]:
        """The new voters that have not caught up within ``limit_ticks``."""
        lagging: list[str] = []
        for name in self._new(config):
            rounds = self._rounds.setdefault(name, CatchUp(last_index, now))
            if not rounds.observe(leads.match(name), last_index, now, limit_ticks):
                lagging.append(name)
        return lagging

    def stalled(
        self, lagging: Iterable[str], leads: Leadership, now: int, limit_ticks: int
    ) -> str | None:
        """One of ``lagging`` that has come no further for ``limit_ticks``, or whose rounds get no
        shorter.
        """
        for name in lagging:
            progress = leads.progress(name)
            # Judged by progress, not by time: slow is allowed, standing still is not.
            seen, since = self._seen.get(name, (None, 0))
            if seen != progress:
                self._seen[name] = progress, now
            elif now - since >= limit_ticks:
                return name
            if self._rounds[name].growing >= MAX_GROWING_ROUNDS:
                reached("new voter slower than the load")
                return name
        return None

    def _new(self, config: Configuration) -> list[str]:
        return [name for name in self.voters if name not in config.voters]


class HandOver(msgspec.Struct):
    """Leadership goes to ``target``, unless it does not take it until tick ``until``. ``asked``:
    the target was asked to lead, with all of the log.
    """

    target: str
    until: int
    asked: bool = False


class Membership:
    """The changes that the leader of one term is asked for."""

    def __init__(
        self,
        *,
        config: RaftConfig,
        term: int,
        log: Log,
        leads: Leadership,
        events: list[RaftEvent],
    ) -> None:
        """``events`` are added to."""
        self._config, self._term, self._log, self._leads = config, term, log, leads
        self._events = events
        self._change: PeerChange | None = None
        self._newest_revision = 0
        self._elected_told = False
        self._told_index = log.configuration_index
        self._handed_at = -1  # index of the joint configuration in which a hand-over was tried
        self.hand_over: HandOver | None = None

    @property
    def change(self) -> PeerChange | None:
        """The change that goes on."""
        return self._change

    def stage(self, commit: int) -> Stage:
        """How far the change is; it can be cancelled only while it is catching up."""
        log, change = self._log, self._change
        if log.configuration.joint:
            return Stage.JOINT
        if log.configuration_index > commit:
            learning = change is not None and change.learning_index == log.configuration_index
            return Stage.CATCHING_UP if learning else Stage.JOINT
        return Stage.STABLE if change is None else Stage.CATCHING_UP

    def request(
        self, wanted: PeerChange, *, term: int | None, commit: int, now: int, adjust: bool
    ) -> None:
        """Begin ``wanted``. The errors are those of ``Raft.change_peers``."""
        if term not in (None, self._term) and not planted("stale-term-accepted"):
            raise StaleTerm(f"a change was asked of the leader of term {term}, not {self._term}")
        if wanted.revision < self._newest_revision:
            reached("change of members older than the last one")
            raise StaleRevision(
                f"a change of revision {wanted.revision} comes after {self._newest_revision}"
            )
        if not wanted.voters:
            raise ChangeRefused("a group needs voters")
        running, stage = self._change, self.stage(commit)
        if running is not None and running.same(wanted):
            # The change goes on for the newer request, so its events must name that one.
            self._newest_revision = running.revision = wanted.revision
            return
        adjustable = adjust and stage is Stage.CATCHING_UP
        if stage is not Stage.STABLE and not adjustable:
            raise ChangeBusy(f"a change of members goes on: it is {stage}")
        if self._log.term(commit) != self._term:
            raise ChangeRefused("nothing of this leader's term is committed yet")
        if adjustable and running is not None:
            reached("change of members adjusted")
            self._fail(CatchUpError.REPLICATOR_STOPPED)
        self._newest_revision, self._change, self.hand_over = wanted.revision, wanted, None
        if wanted.reached(self._log.configuration):
            self._told_index = 0  # it is told again of what it has
        if self._config.node not in wanted.voters:
            staying = [name for name in self._log.configuration.voters if name in wanted.voters]
            self.begin_hand_over(staying, now)

    def cancel(self, commit: int) -> bool:
        """Forget a change that is catching up. False where there is none, and once it is joint."""
        if self.stage(commit) is not Stage.CATCHING_UP:
            return False
        # Proposals are refused while leadership is handed over: that ends with the change.
        self._change = self.hand_over = None
        return True

    def confirm(self, revision: int) -> bool:
        """Let the change of ``revision`` go on, whose new voters have caught up. False where it is
        not the one that waits.
        """
        change = self._change
        if change is None or not change.caught_up or change.revision != revision:
            return False
        change.confirmed = True
        return True

    def may_ask(self, commit: int) -> str | None:
        """The member to ask to lead: it has all of the log, and all of it is committed."""
        held, last = self.hand_over, self._log.last_index
        if held is None or held.asked or commit < last or self._leads.match(held.target) < last:
            return None
        held.asked = True
        return held.target

    def tick(self, now: int, commit: int) -> None:
        """Time passes: give up what takes too long."""
        if self.hand_over is not None and now >= self.hand_over.until:
            reached("leadership was not taken over in time")
            self.hand_over = None
        change, log = self._change, self._log
        # Past catching up there is no way back: a joint configuration is completed (Raft 6).
        if change is None or log.configuration_index > commit or log.configuration.joint:
            return
        lagging = self._lagging(change, now)
        name = change.stalled(lagging, self._leads, now, self._config.catch_up_ticks)
        # Once caught up it waits for its confirmation, which is no fault of a new voter.
        if name is not None and not change.caught_up:
            reached("catch-up of a new voter timed out")
            self._fail(CatchUpError.TIMED_OUT, name)

    def ended(self, error: CatchUpError) -> None:
        """The leadership is over, and with it a change that was not joint."""
        if self._change is not None and not self._log.configuration.joint:
            self._fail(error)

    def advance(self, commit: int, now: int) -> Configuration | None:
        """The next configuration for the log, if it is time for one: one change at a time, each
        configuration once the one before is committed (majorities of two changes that overlap need
        not meet: thesis 4.3).
        """
        log = self._log
        if log.term(commit) != self._term:
            return None
        if not self._elected_told:
            self._elected_told = True
            self._events.append(LeaderElected(self._term))
        if log.configuration_index > commit or self.hand_over is not None:
            return None
        config = log.configuration
        if config.joint:
            return self._leave_joint(config, now)
        self._tell_applied(config)
        return None if self._change is None else self._step(self._change, config, now)

    def removed(self, commit: int) -> bool:
        """Whether the leader has led its group up to a configuration without itself."""
        log = self._log
        return (
            log.configuration_index <= commit
            and log.term(commit) == self._term
            and not log.configuration.decides(self._config.node)
        )

    def _leave_joint(self, config: Configuration, now: int) -> Configuration | None:
        index = self._log.configuration_index
        if self._config.node not in config.voters and self._handed_at != index:
            # Once a configuration: a successor that does not take over must not hold the change up.
            self._handed_at = index
            self.begin_hand_over(config.voters, now)
            if self.hand_over is not None:
                return None
        reached("joint configuration is left")
        return leave_joint(config)

    def _lagging(self, change: PeerChange, now: int) -> list[str]:
        log, limit_ticks = self._log, self._config.election_ticks
        return change.lagging(log.configuration, self._leads, log.last_index, now, limit_ticks)

    def _step(self, change: PeerChange, config: Configuration, now: int) -> Configuration | None:
        log = self._log
        if change.reached(config):
            reached("change of members reached")
            self._change = None
            return None
        learning = change.learning(config)
        if learning is not None:
            # It is no configuration that was asked for, and is not told.
            change.learning_index = self._told_index = log.last_index + 1
            return learning
        if not change.caught_up and self._lagging(change, now):
            reached("new voter still catches up")
            return None
        if not change.caught_up:
            change.caught_up = True
        return change.deciding(config) if change.confirmed else None

    def _tell_applied(self, config: Configuration) -> None:
        index = self._log.configuration_index
        if index > self._told_index:
            self._told_index = index
            self._events.append(PeersApplied(self._term, index, config))

    def begin_hand_over(self, names: Iterable[str], now: int) -> None:
        """Hand leadership over to the one of ``names``, voters, that is there and has most of the
        log, if any is.
        """
        # A member that is down would cost an election timeout without proposals.
        there = [name for name in names if self._leads.is_there(name, now)]
        if there:
            reached("leadership is handed over")
            # Proposals wait until the target has the whole log: the
            # nearest one is the shortest wait.
            target = max(there, key=self._leads.match)
            self.hand_over = HandOver(target, now + self._config.election_ticks)

    def _fail(self, error: CatchUpError, member: str | None = None) -> None:
        if self._change is not None:
            revision = self._change.revision
            self._change = self.hand_over = None
            self._events.append(ChangeFailed(self._term, revision, error, member))
