"""The target language: who is hit, said before anybody knows who that will be.

A target is parsed when a plan is read and resolved just before acting, against the roles that the
store tells then. What is random in it is decided by a number that the caller draws.
"""

from __future__ import annotations

import enum
import random
import re

import attrs

from harness.cluster import Roles
from harness.errors import PlanError

ACCEPTED = (
    "a node's name (n1) or several (n1,n2), one, minority, half, majority, all, "
    "leader of partition P, leader of any partition, follower of partition P, metastorage leader"
)
_NAME = re.compile(r"[a-z0-9][a-z0-9-]{0,62}")
_OF_PARTITION = re.compile(r"(leader|follower) of partition (\d{1,9})")


class Form(enum.StrEnum):
    """The forms of a target."""

    NAMED = "named"
    ONE = "one"
    MINORITY = "minority"
    HALF = "half"
    MAJORITY = "majority"
    ALL = "all"
    LEADER = "leader"
    FOLLOWER = "follower"
    ANY_LEADER = "leader of any partition"
    METASTORAGE_LEADER = "metastorage leader"


_WORDS = {
    form.value: form
    for form in (
        Form.ONE,
        Form.MINORITY,
        Form.HALF,
        Form.MAJORITY,
        Form.ALL,
        Form.ANY_LEADER,
        Form.METASTORAGE_LEADER,
    )
}


@attrs.frozen(kw_only=True)
class Target:
    """A parsed target: ``nodes`` for names, ``partition`` for a leader or follower of one."""

    form: Form
    nodes: tuple[str, ...] = ()
    partition: int | None = None


@attrs.frozen(kw_only=True)
class Hit:
    """Who a target is now, ascending, and the roles that these nodes hold."""

    nodes: tuple[str, ...]
    roles: tuple[str, ...]


def parse(text: str, path: str = "target") -> Target:
    """The target that ``text`` says. Raises ``PlanError`` at ``path`` with what is accepted."""
    words = " ".join(text.split())
    if words in _WORDS:
        return Target(form=_WORDS[words])
    if match := _OF_PARTITION.fullmatch(words):
        return Target(form=Form(match[1]), partition=int(match[2]))
    names = tuple(part.strip() for part in words.split(","))
    if all(_NAME.fullmatch(name) for name in names):
        return Target(form=Form.NAMED, nodes=tuple(sorted(dict.fromkeys(names))))
    raise PlanError(path, f"target must be one of: {ACCEPTED} (got {text!r})")


def check(
    target: Target, nodes: tuple[str, ...], partitions: int | None, path: str = "target"
) -> None:
    """Refuse a target that can never be resolved in this cluster. Raises ``PlanError``."""
    for name in target.nodes:
        if name not in nodes:
            known = ", ".join(nodes)
            raise PlanError(path, f"target must name nodes of this cluster ({known}; got {name!r})")
    if target.partition is not None and partitions is not None and target.partition >= partitions:
        raise PlanError(
            path, f"target partition must be below {partitions} (got {target.partition})"
        )
    if target.form is Form.MINORITY and len(nodes) < 3:
        raise PlanError(path, f"target 'minority' needs at least 3 nodes (got {len(nodes)})")


def resolve(target: Target, roles: Roles, nodes: tuple[str, ...], draw: int) -> Hit | None:
    """Who ``target`` is now, or ``None`` where the roles don't tell.

    Equal arguments give equal answers, whatever the order of the mappings in ``roles``.
    """
    chosen = _choose(target, roles, nodes, random.Random(draw))
    if not chosen:
        return None
    return Hit(nodes=chosen, roles=_roles_of(target, chosen, roles))


def _choose(
    target: Target, roles: Roles, nodes: tuple[str, ...], stream: random.Random
) -> tuple[str, ...]:
    match target.form:
        case Form.NAMED:
            return target.nodes if all(name in nodes for name in target.nodes) else ()
        case Form.LEADER:
            return _known(roles.leaders.get(target.partition or 0), nodes)
        case Form.ANY_LEADER:
            led = sorted(p for p, leader in roles.leaders.items() if leader in nodes)
            return (roles.leaders[stream.choice(led)],) if led else ()
        case Form.FOLLOWER:
            followers = _followers(target.partition or 0, roles, nodes)
            return (stream.choice(followers),) if followers else ()
        case Form.METASTORAGE_LEADER:
            return _known(roles.metastorage_leader, nodes)
        case _:
            count = _how_many(target.form, len(nodes))
            return tuple(sorted(stream.sample(sorted(nodes), count)))


def _how_many(form: Form, nodes: int) -> int:
    """How many of ``nodes`` a form that counts takes; a majority is what a quorum needs."""
    counts = {
        Form.ONE: min(1, nodes),
        Form.MINORITY: max(0, (nodes - 1) // 2),
        Form.HALF: nodes // 2,
        Form.MAJORITY: nodes // 2 + 1 if nodes else 0,
    }
    return counts.get(form, nodes)


def _known(node: str | None, nodes: tuple[str, ...]) -> tuple[str, ...]:
    return (node,) if node in nodes and node is not None else ()


def _followers(partition: int, roles: Roles, nodes: tuple[str, ...]) -> list[str]:
    """Voters that don't lead; without a known leader nobody can be told to follow."""
    leader = roles.leaders.get(partition)
    if leader is None:
        return []
    return sorted(n for n in roles.voters.get(partition, ()) if n != leader and n in nodes)


def _roles_of(target: Target, chosen: tuple[str, ...], roles: Roles) -> tuple[str, ...]:
    """Every leadership among ``chosen``, and the followership that was asked for."""
    held = [f"leader of partition {p}" for p, n in sorted(roles.leaders.items()) if n in chosen]
    if roles.metastorage_leader in chosen:
        held.append(Form.METASTORAGE_LEADER.value)
    if target.form is Form.FOLLOWER:
        held.append(f"follower of partition {target.partition}")
    return tuple(held)
