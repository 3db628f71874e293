"""The nodes of a target, found just before its fault acts: against the roles that the store reports
at that moment. A number that the caller draws decides the random part.
"""

from __future__ import annotations

import random
from collections.abc import Mapping

import attrs

from harness.protocols.cluster import Roles
from harness.protocols.roles import Role, held_by
from harness.protocols.targets import OF_METASTORAGE, Form, Target, how_many


@attrs.frozen(kw_only=True)
class Hit:
    """The nodes of a resolved target, ascending, and the roles that these nodes hold."""

    nodes: tuple[str, ...]
    roles: tuple[Role, ...]


def resolve(target: Target, roles: Roles, nodes: tuple[str, ...], draw: int) -> Hit | None:
    """The nodes of ``target`` under ``roles``, or ``None`` where the roles don't tell.

    Equal arguments give equal answers: the order of the mappings in ``roles`` has no influence.
    """
    chosen = _choose(target, roles, nodes, random.Random(draw))
    if not chosen:
        return None
    return Hit(nodes=chosen, roles=held_by(chosen, roles))


def _choose(
    target: Target, roles: Roles, nodes: tuple[str, ...], stream: random.Random
) -> tuple[str, ...]:
    match target.form:
        case Form.NAMED:
            return target.nodes if all(name in nodes for name in target.nodes) else ()
        case Form.METASTORAGE_LEADER:
            return _known(roles.metastorage_leader, nodes)
        case Form.MANAGEMENT_LEADER:
            return _known(roles.management_leader, nodes)
        case Form.FIRST_HALF:
            return tuple(sorted(nodes[: len(nodes) // 2]))
        case (
            Form.LEADER
            | Form.PRIMARY
            | Form.FOLLOWER
            | Form.LEARNER
            | Form.VOTERS_MAJORITY
            | Form.VOTERS_MINORITY
            | Form.VOTERS_ALL
            | Form.VOTERS_BUT_ONE
        ):
            return _of_partition(target, roles, nodes, stream)
        case form if form in OF_METASTORAGE:
            voters = sorted(node for node in roles.metastorage_voters if node in nodes)
            return tuple(sorted(stream.sample(voters, how_many(form, len(voters)))))
        case _:
            count = how_many(target.form, len(nodes))
            return tuple(sorted(stream.sample(sorted(nodes), count)))


def _of_partition(
    target: Target, roles: Roles, nodes: tuple[str, ...], stream: random.Random
) -> tuple[str, ...]:
    """Nodes of the target's partition; for any partition, nodes of one that has candidates,
    drawn.
    """
    if target.partition is not None:
        candidates = _candidates(target.form, target.partition, roles, nodes)
    else:
        # Forms that are not one node's role go by the partitions of which voters are told.
        told = sorted(_holders(target.form, roles) or roles.voters)
        every = (_candidates(target.form, partition, roles, nodes) for partition in told)
        some = [found for found in every if found]
        candidates = stream.choice(some) if some else ()
    if not candidates:
        return ()
    count = how_many(target.form, len(candidates))
    return tuple(sorted(stream.sample(candidates, count)))


def _candidates(
    form: Form, partition: int, roles: Roles, nodes: tuple[str, ...]
) -> tuple[str, ...]:
    """The nodes of ``partition`` that a target of ``form`` may take, ascending.

    Without a known leader no voter is known to be a follower.
    """
    if form in (Form.LEADER, Form.PRIMARY):
        return _known(_holders(form, roles).get(partition), nodes)
    if form is Form.LEARNER:
        return tuple(sorted(n for n in roles.learners.get(partition, ()) if n in nodes))
    leader = roles.leaders.get(partition)
    voters = tuple(sorted(n for n in roles.voters.get(partition, ()) if n in nodes))
    if form is Form.FOLLOWER:
        return tuple(n for n in voters if n != leader) if leader is not None else ()
    return voters


def _holders(form: Form, roles: Roles) -> Mapping[int, str]:
    """The node that holds the role of ``form``, by partition; empty where the role is not one
    node's. For a store that does not report primaries, leaders count as primaries.
    """
    if form is Form.PRIMARY:
        return roles.leaders if roles.primaries is None else roles.primaries
    return roles.leaders if form is Form.LEADER else {}


def _known(node: str | None, nodes: tuple[str, ...]) -> tuple[str, ...]:
    return (node,) if node in nodes and node is not None else ()
