"""The voters of a group: configurations as values, majorities, the steps from one to the next.

A change of voters goes through a joint configuration, in which majorities of the old *and* of the
new voters decide (Raft 6; thesis 4.3). Drawn as ``(new)&&(old)``: ``(1 2 3)&&()`` becomes ``(1 2
4)&&(1 2 3)`` by ``enter_joint`` and ``(1 2 4)&&()`` by ``leave_joint``.

Whole configurations travel through the log. The way to a target (``membership``: catch up, joint,
stable) lives with the leader that was asked, and ends with its leadership; a later leader, too,
leaves a joint configuration. Majorities are counted here alone.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Mapping, Sequence, Sized
from typing import Literal

import msgspec

from clusters.reference.node.bugs import planted
from clusters.reference.node.raft.settings import ChangeRefused

replace = msgspec.structs.replace


MAX_LINEAGE = 64  # generations that a configuration names; what comes of an older one is erased


class Generation(msgspec.Struct, frozen=True, array_like=True):
    """A generation of a group, which a forced reset began: its log is that of ``previous`` up to
    ``base_index``, an entry of ``base_term``, and its own from there on (IEP-131, resetPartition).
    The founders begin generation 0.
    """

    number: int
    previous: int
    base_index: int
    base_term: int


Lineage = tuple[Generation, ...]


class Configuration(msgspec.Struct, frozen=True, array_like=True):
    """``voters`` decide, while ``outgoing`` is not empty together with it; ``learners`` are sent
    the log and are not counted; ``learners_next`` are outgoing voters that stay as learners.
    ``lineage``: the resets that came before, in order. A log holds those of a generation exactly if
    its configuration names it.
    """

    voters: tuple[str, ...] = ()
    outgoing: tuple[str, ...] = ()
    learners: tuple[str, ...] = ()
    learners_next: tuple[str, ...] = ()
    lineage: Lineage = ()

    @property
    def generation(self) -> int:
        """The number of the generation that the last reset began."""
        return self.lineage[-1].number if self.lineage else 0

    @property
    def joint(self) -> bool:
        """Whether two majorities are needed."""
        return bool(self.outgoing)

    @property
    def members(self) -> tuple[str, ...]:
        """Every member that is sent the log, each once."""
        # Ordered: messages leave in the order of members, the same in each simulated run.
        return tuple(dict.fromkeys((*self.voters, *self.outgoing, *self.learners)))

    def decides(self, node: str) -> bool:
        """Whether ``node`` has a vote."""
        return node in self.voters or node in self.outgoing

    def __str__(self) -> str:
        text = f"({' '.join(self.voters)})"
        if self.outgoing:
            text += f"&&({' '.join(self.outgoing)})"
        if self.learners:
            text += f" learners=({' '.join(self.learners)})"
        if self.learners_next:
            text += f" learners_next=({' '.join(self.learners_next)})"
        if self.lineage:
            text += f" generation={self.generation}"
        return text


class Change(msgspec.Struct, frozen=True):
    """The part that ``node`` is to have."""

    role: Literal["voter", "learner", "none"]
    node: str


_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(Configuration)
encode, decode = _encoder.encode, _decoder.decode


def forced(config: Configuration, voter: str, begun: Generation) -> Configuration:
    """The configuration with which ``begun`` begins: ``voter`` alone, without the others' votes."""
    return Configuration(voters=(voter,), lineage=(*config.lineage, begun)[-MAX_LINEAGE:])


def shared_index(ours: Lineage, theirs: Lineage) -> int | None:
    """The last index at which logs of both lineages are of one generation; ``None``: all of one
    is.
    """
    known = {generation.number: generation for generation in ours}
    common = max((g.number for g in theirs if known.get(g.number) == g), default=0)
    bases: list[int] = []
    for lineage in (ours, theirs):
        later = next((g for g in lineage if g.number > common), None)
        if later is not None:
            # Where one is left out nobody knows from where on it went its own way.
            bases.append(later.base_index if later.previous == common else 0)
    return min(bases, default=None)


def later_base(ours: Lineage, theirs: Lineage) -> Generation | None:
    """The first generation of ``theirs`` that ``ours`` lacks, behind the last that both have."""
    known = {generation.number: generation for generation in ours}
    common = max((g.number for g in theirs if known.get(g.number) == g), default=0)
    return next((g for g in theirs if g.number > common), None)


def enter_joint(config: Configuration, changes: Sequence[Change]) -> Configuration:
    """Begin to change any number of members: ``(1 2 3)&&()`` to ``(1 2 4)&&(1 2 3)``."""
    if config.joint:
        raise ChangeRefused("configuration is already joint")
    if not config.voters:
        raise ChangeRefused("configuration without voters can't become joint")
    return _applied(replace(config, outgoing=config.voters), changes)


def leave_joint(config: Configuration) -> Configuration:
    """End it: ``(1 2 4)&&(1 2 3)`` to ``(1 2 4)&&()``; a demoted voter is a learner now."""
    if not config.joint:
        raise ChangeRefused("configuration is not joint")
    learners = (*config.learners, *config.learners_next)
    return _checked(replace(config, outgoing=(), learners=learners, learners_next=()))


def simple(config: Configuration, changes: Sequence[Change]) -> Configuration:
    """Change learners, and at most one voter, in one step: old and new majorities overlap."""
    if config.joint:
        raise ChangeRefused("configuration is joint")
    result = _applied(config, changes)
    # Majorities of sets that differ by one voter always overlap (thesis 4.1).
    if len(frozenset(config.voters) ^ frozenset(result.voters)) > 1:
        raise ChangeRefused("more than one voter changed without entering a joint configuration")
    return result


def towards(
    config: Configuration, voters: Sequence[str], learners: Sequence[str]
) -> tuple[Change, ...]:
    """The changes that make ``voters`` and ``learners`` all there is."""
    gone = [n for n in config.members if n not in voters and n not in learners]
    return (
        *(Change("voter", n) for n in voters if n not in config.voters),
        *(Change("learner", n) for n in learners if n not in config.learners),
        *(Change("none", n) for n in gone),
    )


def invariants(config: Configuration) -> str | None:
    """The text of the first broken invariant of ``config``, ``None`` when all hold."""
    for name in ("voters", "outgoing", "learners", "learners_next"):
        nodes = getattr(config, name)
        if len(frozenset(nodes)) != len(nodes):
            return f"{name} repeats a node: {nodes}"
    for node in config.learners:
        if config.decides(node):
            return f"{node} is in learners, and a voter"
    for node in config.learners_next:
        if node not in config.outgoing:
            return f"{node} is in learners_next, but not in outgoing"
        if node in config.voters or node in config.learners:
            return f"{node} is in learners_next, and in voters or learners already"
    if not config.voters and (config.outgoing or config.learners):
        return "there are members, but no voters"
    return None


def _applied(config: Configuration, changes: Sequence[Change]) -> Configuration:
    for change in changes:
        # Out of its present part first: a node has one role.
        config = _removed(config, change.node)
        if change.role == "voter":
            config = replace(config, voters=(*config.voters, change.node))
        elif change.role == "learner" and change.node in config.outgoing:
            # It still votes for the old configuration; a learner does not.
            config = replace(config, learners_next=(*config.learners_next, change.node))
        elif change.role == "learner":
            config = replace(config, learners=(*config.learners, change.node))
    if not config.voters:
        raise ChangeRefused("removed all voters")
    return _checked(config)


def _removed(config: Configuration, node: str) -> Configuration:
    """``config`` without ``node``, except that an outgoing voter votes until the end."""
    return replace(
        config,
        voters=tuple(n for n in config.voters if n != node),
        learners=tuple(n for n in config.learners if n != node),
        learners_next=tuple(n for n in config.learners_next if n != node),
    )


def _checked(config: Configuration) -> Configuration:
    if broken := invariants(config):
        raise ChangeRefused(broken)
    return config


class Vote(enum.Enum):
    """The state of an election."""

    WON = "won"
    LOST = "lost"
    OPEN = "open"


def majority(voters: Sized) -> int:
    """How many of ``voters`` decide."""
    return len(voters) // 2 + 1


def reached(config: Configuration, value: Callable[[str], int]) -> int:
    """The greatest number that the values of a quorum of ``config`` have reached."""
    if config.outgoing and planted("joint-counted-as-one"):
        return _reached(tuple(dict.fromkeys((*config.voters, *config.outgoing))), value)
    if config.learners and planted("learner-counted"):
        counted = sorted(map(value, (*config.voters, *config.learners)))
        return counted[-majority(config.voters)]
    least = _reached(config.voters, value)
    # Joint: a majority of each half must have it (Raft 6).
    return min(least, _reached(config.outgoing, value)) if config.outgoing else least


def tally(config: Configuration, votes: Mapping[str, bool]) -> Vote:
    """Whether the votes so far decide; votes of nodes that are no voters don't count."""
    if config.outgoing and planted("joint-counted-as-one"):
        return _tally(tuple(dict.fromkeys((*config.voters, *config.outgoing))), votes)
    halves = [_tally(half, votes) for half in (config.voters, config.outgoing) if half]
    # While joint both halves must agree, so one that is lost decides.
    if not halves or Vote.LOST in halves:
        return Vote.LOST
    return Vote.OPEN if Vote.OPEN in halves else Vote.WON


def _reached(voters: tuple[str, ...], value: Callable[[str], int]) -> int:
    # The smallest value of the best majority: so many voters have at least this.
    return sorted(map(value, voters))[-majority(voters)]


def _tally(voters: tuple[str, ...], votes: Mapping[str, bool]) -> Vote:
    granted = sum(votes.get(name) is True for name in voters)
    refused = sum(votes.get(name) is False for name in voters)
    if granted >= majority(voters):
        return Vote.WON
    # A majority is out of reach, even with every vote that is still open.
    if len(voters) - refused < majority(voters):
        return Vote.LOST
    return Vote.OPEN


class Stage(enum.StrEnum):
    """The stage of a change of members."""

    CATCHING_UP = "catching-up"
    JOINT = "joint"
    STABLE = "stable"
