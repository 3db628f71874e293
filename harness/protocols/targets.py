"""The target language: a plan names the nodes of a fault before their roles are known.

What a text means for certain, and at most, is known as it is parsed; which nodes it is, only just
before the fault acts (``nemesis.resolution``).
"""

from __future__ import annotations

import enum
import re
from collections.abc import Mapping

import attrs

from harness.errors import PlanError
from harness.protocols.fault_kinds import Strength, split_strength

ACCEPTED = (
    "a node's name (n1) or several (n1,n2), one, minority, half, first half, majority, all, "
    "metastorage leader, management leader, leader of partition P, leader of any partition "
    "(and so primary, follower, other voter, learner, majority, minority, all, all but one of "
    "one), all, all but one, majority, minority of metastorage; "
    "spare, spares (only where the fault is for them); "
    "where the fault has a strength, with it (n1 at 30 %, one at 100 ms)"
)
TARGET_CHARS = 4_200  # 64 nodes by their longest names, and a strength
_NAME = re.compile(r"[a-z0-9][a-z0-9-]{0,62}")
_OF_PARTITION = re.compile(
    r"(leader|primary|follower|other voter|learner|majority|minority|all|all but one)"
    r" of (?:partition (\d{1,9})|any partition)"
)
_SYNONYMS = {
    "its majority": "majority of any partition",
    "leader of metastorage": "metastorage leader",
}
_MOST = {"%": 100.0, "ms": 60_000.0}


class Form(enum.StrEnum):
    """The forms of a target."""

    NAMED = "named"
    ONE = "one"
    MINORITY = "minority"
    HALF = "half"
    FIRST_HALF = "first half"
    MAJORITY = "majority"
    ALL = "all"
    LEADER = "leader"
    PRIMARY = "primary"
    FOLLOWER = "follower"
    LEARNER = "learner"
    VOTERS_MAJORITY = "majority of voters"
    VOTERS_MINORITY = "minority of voters"
    VOTERS_ALL = "all voters"
    VOTERS_BUT_ONE = "all voters but one"
    METASTORAGE_LEADER = "metastorage leader"
    METASTORAGE_ALL = "all of metastorage"
    METASTORAGE_BUT_ONE = "all but one of metastorage"
    METASTORAGE_MAJORITY = "majority of metastorage"
    METASTORAGE_MINORITY = "minority of metastorage"
    MANAGEMENT_LEADER = "management leader"
    SPARE = "spare"
    SPARES = "spares"


OF_SPARES = (Form.SPARE, Form.SPARES)
OF_VOTERS = (
    Form.FOLLOWER,
    Form.VOTERS_MAJORITY,
    Form.VOTERS_MINORITY,
    Form.VOTERS_ALL,
    Form.VOTERS_BUT_ONE,
)
OF_METASTORAGE = (
    Form.METASTORAGE_ALL,
    Form.METASTORAGE_BUT_ONE,
    Form.METASTORAGE_MAJORITY,
    Form.METASTORAGE_MINORITY,
)
_WORDS = {
    form.value: form
    for form in (
        Form.ONE,
        Form.MINORITY,
        Form.HALF,
        Form.FIRST_HALF,
        Form.MAJORITY,
        Form.ALL,
        Form.METASTORAGE_LEADER,
        *OF_METASTORAGE,
        Form.MANAGEMENT_LEADER,
        *OF_SPARES,
    )
}
_PARTITION_FORMS = {
    "leader": Form.LEADER,
    "primary": Form.PRIMARY,
    "follower": Form.FOLLOWER,
    "other voter": Form.FOLLOWER,
    "learner": Form.LEARNER,
    "majority": Form.VOTERS_MAJORITY,
    "minority": Form.VOTERS_MINORITY,
    "all": Form.VOTERS_ALL,
    "all but one": Form.VOTERS_BUT_ONE,
}


_VOTERS_MAJORITIES = frozenset({Form.VOTERS_MAJORITY, Form.VOTERS_ALL, Form.VOTERS_BUT_ONE})
_MAJORITIES = _VOTERS_MAJORITIES | {
    *(Form.MAJORITY, Form.ALL),
    *(Form.METASTORAGE_MAJORITY, Form.METASTORAGE_ALL, Form.METASTORAGE_BUT_ONE),
}
_ANY = "`partition P`, or `any partition`: one is drawn that has such a node"
MEANINGS: Mapping[Form, tuple[str, str]] = {
    Form.NAMED: ("n1,n2", "these nodes"),
    Form.ONE: ("one", "a node, drawn from the seed"),
    Form.MINORITY: ("minority", "the largest number that is less than half, drawn"),
    Form.HALF: ("half", "half of the nodes, drawn"),
    Form.FIRST_HALF: ("first half", "half of the nodes, always the first"),
    Form.MAJORITY: ("majority", "a quorum of the nodes, drawn"),
    Form.ALL: ("all", "every node"),
    Form.LEADER: ("leader of partition P", f"the leader of its group; {_ANY}"),
    Form.PRIMARY: ("primary of partition P", "the replica that may acknowledge, under its lease"),
    Form.FOLLOWER: ("follower of partition P", "a voter that does not lead; also `other voter of`"),
    Form.LEARNER: ("learner of partition P", "a replica that does not vote"),
    Form.VOTERS_MAJORITY: ("majority of partition P", "a quorum of its voters, drawn"),
    Form.VOTERS_MINORITY: ("minority of partition P", "of its voters less than half, drawn"),
    Form.VOTERS_ALL: ("all of partition P", "every voter of it"),
    Form.VOTERS_BUT_ONE: (
        "all but one of partition P",
        "its voters without one that is drawn: the one that a highly available store goes on with",
    ),
    Form.METASTORAGE_LEADER: ("metastorage leader", "the leader of the metastorage"),
    Form.METASTORAGE_ALL: (
        "all of metastorage",
        "its voters; cut off from the rest they leave the data nodes without it, where the system "
        "keeps data off them (`system_apart`)",
    ),
    Form.METASTORAGE_BUT_ONE: ("all but one of metastorage", "its voters without one, drawn"),
    Form.METASTORAGE_MAJORITY: ("majority of metastorage", "a quorum of its voters, drawn"),
    Form.METASTORAGE_MINORITY: (
        "minority of metastorage",
        "of its voters less than half, drawn",
    ),
    Form.MANAGEMENT_LEADER: (
        "management leader",
        "the leader of the group that manages the cluster, where a store has one",
    ),
    Form.SPARE: ("spare", "a machine that is no member, drawn from the seed; for `join`"),
    Form.SPARES: ("spares", "every machine that is no member; for `join`"),
}
"""How each form is written, and its meaning; ``AT_STRENGTH`` may follow."""
AT_STRENGTH = (
    "TARGET at S",
    "with a strength, where the kind has one: `n1 at 30 %`, `one at 100 ms`",
)


def described() -> dict[str, str]:
    """Every form of a target as it is written, with its meaning."""
    # A form without a meaning is listed all the same.
    forms = (MEANINGS.get(form, (form.value, "")) for form in Form)
    return dict([*forms, AT_STRENGTH])


@attrs.frozen(kw_only=True)
class Target:
    """A parsed target: ``nodes`` for names; ``partition`` for a form that is of one, where ``None``
    means any; ``strength`` in ``unit`` where one was given.
    """

    form: Form
    nodes: tuple[str, ...] = ()
    partition: int | None = None
    strength: float | None = None
    unit: str = ""


def parse(text: str, path: str = "target") -> Target:
    """The target that ``text`` denotes. Raises ``PlanError`` at ``path`` with the accepted
    forms.
    """
    if len(text) > TARGET_CHARS:
        problem = f"expected a target of at most {TARGET_CHARS} characters (got {len(text)})"
        raise PlanError(path, problem)
    words = " ".join(text.split())
    nodes, strength, unit = split_strength(words)
    target = _parse_who(nodes)
    if target is None:
        of_nodes, at, given = words.rpartition(" at ")
        if at and _parse_who(of_nodes) is not None:
            expected = "a number of % or ms (n1 at 30 %, one at 100 ms)"
            raise PlanError(path, f"target's strength must be {expected} (got {given!r})")
        raise PlanError(path, f"target must be one of: {ACCEPTED} (got {text!r})")
    if len(set(target.nodes)) < len(target.nodes):
        raise PlanError(path, f"target must name each node once (got {text!r})")
    return attrs.evolve(target, strength=strength, unit=unit)


def _parse_who(words: str) -> Target | None:
    words = _SYNONYMS.get(words, words)
    if words in _WORDS:
        return Target(form=_WORDS[words])
    if match := _OF_PARTITION.fullmatch(words):
        number = None if match[2] is None else int(match[2])
        return Target(form=_PARTITION_FORMS[match[1]], partition=number)
    names = tuple(part.strip() for part in words.split(","))
    if all(_NAME.fullmatch(name) for name in names):
        return Target(form=Form.NAMED, nodes=tuple(sorted(names)))
    return None


def check(
    target: Target, nodes: tuple[str, ...], partitions: int | None, path: str = "target"
) -> None:
    """Refuse a target that can never be resolved in this cluster. Raises ``PlanError``."""
    for name in target.nodes:
        if name not in nodes:
            known = ", ".join(nodes)
            raise PlanError(
                path,
                f"target must name nodes of this cluster (cluster.nodes: {known}; got {name!r})",
            )
    if target.partition is not None and partitions is not None and target.partition >= partitions:
        raise PlanError(
            path, f"target partition must be below {partitions} (got {target.partition})"
        )
    if target.form is Form.MINORITY and len(nodes) < 3:
        raise PlanError(path, f"target 'minority' needs at least 3 nodes (got {len(nodes)})")


def check_strength(target: Target, has: Strength | None, path: str = "target") -> None:
    """Refuse a strength in another unit than the kind ``has``, or out of its range; any where the
    kind has none. Raises ``PlanError``.
    """
    if target.strength is None:
        return
    unit, least = (has.unit, has.least) if has else ("", 0.0)
    given = f"{target.strength:.15g} {target.unit}"
    if target.unit != unit:
        expected = f"a strength in {unit}" if unit else "no strength: the fault has none"
        raise PlanError(path, f"target expects {expected} (got {given})")
    if not 0 < target.strength <= _MOST[unit]:
        limits = f"above 0 and at most {_MOST[unit]:g} {unit}"
        raise PlanError(path, f"target's strength must be {limits} (got {given})")
    if target.strength < least:
        expected = f"at least {least:g} {unit}: less can't be told from a busy link"
        raise PlanError(path, f"target's strength must be {expected} (got {target.strength:g})")


def is_majority(target: Target, nodes: int) -> bool:
    """Whether ``target`` always takes most of so many nodes, of a partition's voters or of
    metastorage's.
    """
    always = target.form in _MAJORITIES
    # One node at least: in a cluster of one node every target takes its majority.
    return always or max(1, len(target.nodes)) > nodes // 2


def partition_lost(target: Target) -> int | None:
    """The partition that ``target`` for certain takes the majority of its voters from; ``None``
    where there is none, and where the partition is drawn as the fault acts.
    """
    return target.partition if target.form in _VOTERS_MAJORITIES else None


def by_role(target: Target) -> bool:
    """Whether the nodes of ``target`` are those of a role or group, which the store has to tell."""
    alone = (Form.LEADER, Form.PRIMARY, Form.LEARNER, Form.METASTORAGE_LEADER)
    return target.form in (*alone, Form.MANAGEMENT_LEADER, *OF_VOTERS, *OF_METASTORAGE)


def certain(target: Target, nodes: tuple[str, ...]) -> tuple[str, ...]:
    """The nodes that ``target`` takes for certain: all, or those it names; none if by role."""
    return nodes if target.form is Form.ALL else target.nodes


def most(target: Target, nodes: int, voters: int) -> int:
    """How many nodes ``target`` takes at most, of so many and of so many voters of a partition."""
    match target.form:
        case Form.NAMED:
            return len(target.nodes)
        case Form.FIRST_HALF:
            return nodes // 2
        case Form.METASTORAGE_LEADER | Form.MANAGEMENT_LEADER:
            return 1
        case Form.VOTERS_MAJORITY | Form.VOTERS_MINORITY | Form.VOTERS_ALL | Form.VOTERS_BUT_ONE:
            return how_many(target.form, voters)
        case form:
            return how_many(form, nodes)


def least_of(
    target: Target, nodes: tuple[str, ...], voters: int, metastorage: tuple[str, ...]
) -> int:
    """How many of the nodes that vote in ``metastorage`` the ``target`` takes for certain, of
    ``nodes`` and of so many voters of a partition.
    """
    match target.form:
        case Form.FIRST_HALF:
            return len(set(nodes[: len(nodes) // 2]).intersection(metastorage))
        case form if form in OF_METASTORAGE:
            return how_many(form, len(metastorage))
        case _ if certain(target, nodes):
            return len(set(certain(target, nodes)).intersection(metastorage))
        case _:
            # As many as can be are no voters of it.
            return max(0, most(target, len(nodes), voters) + len(metastorage) - len(nodes))


def strength_of(target: Target, has: Strength | None) -> float:
    """The strength that ``target`` asks for, else the usual one of a kind that ``has`` one."""
    if target.strength is not None:
        return target.strength
    return has.usual if has else 0.0


def checked(
    text: str,
    has: Strength | None,
    nodes: tuple[str, ...],
    partitions: int | None,
    path: str,
    *,
    of_spares: bool = False,
) -> Target:
    """The target that ``text`` denotes, for a kind that ``has`` a strength, or none, and that is
    for members or ``of_spares``. Raises ``PlanError`` for a text that is no target here, and for a
    strength that the fault does not have.
    """
    target = parse(text, path)
    if of_spares and target.form not in (Form.NAMED, *OF_SPARES):
        raise PlanError(path, f"target must be spare, spares or names of nodes (got {text!r})")
    if not of_spares and target.form in OF_SPARES:
        raise PlanError(path, f"target must be members of the cluster (got {text!r})")
    check(target, nodes, partitions, path)
    check_strength(target, has, path)
    return target


def how_many(form: Form, nodes: int) -> int:
    """How many of ``nodes`` a form takes; a majority is the size of a quorum."""
    # Never below 0: of no candidates ``(0 - 1) // 2`` would be -1.
    minority, majority = max(0, (nodes - 1) // 2), nodes // 2 + 1 if nodes else 0
    counts = {
        Form.ONE: min(1, nodes),
        Form.LEADER: min(1, nodes),
        Form.PRIMARY: min(1, nodes),
        Form.FOLLOWER: min(1, nodes),
        Form.LEARNER: min(1, nodes),
        Form.SPARE: min(1, nodes),
        Form.MINORITY: minority,
        Form.VOTERS_MINORITY: minority,
        Form.METASTORAGE_MINORITY: minority,
        Form.HALF: nodes // 2,
        Form.MAJORITY: majority,
        Form.VOTERS_MAJORITY: majority,
        Form.METASTORAGE_MAJORITY: majority,
        Form.VOTERS_BUT_ONE: max(0, nodes - 1),
        Form.METASTORAGE_BUT_ONE: max(0, nodes - 1),
    }
    return counts.get(form, nodes)
