"""Affinity functions: which of a table's data nodes hold a partition.

An affinity function is named by its zone (AFFINITY_FUNCTION). ``FUNCTIONS`` are those that every
node has; what drives zones may be handed others beside them, the same on all nodes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Protocol

from clusters.reference.node.placement.rendezvous import holders


class Affinity(Protocol):
    """A pure function of its arguments, the same on every node."""

    def __call__(self, partition: int, members: Sequence[str], replicas: int) -> tuple[str, ...]:
        """The ``replicas`` members that hold ``partition`` (all if there are fewer), each once."""


FUNCTIONS: Mapping[str, Affinity] = MappingProxyType({"rendezvous": holders})


class UnknownAffinity(Exception):
    """A zone names a function that this node does not have."""


def assigned(
    *,
    function: str,
    partitions: int,
    replicas: int,
    nodes: Sequence[str],
    functions: Mapping[str, Affinity] = FUNCTIONS,
) -> tuple[tuple[str, ...], ...]:
    """The nodes of each partition, sorted by name: the target of a rebalance. Empty sets where
    there are no ``nodes``. Raises ``UnknownAffinity``.
    """
    if function not in functions:
        known = ", ".join(sorted(functions))
        raise UnknownAffinity(f"there is no affinity function {function!r}; expected {known}")
    chosen = functions[function]
    return tuple(tuple(sorted(chosen(p, nodes, replicas))) for p in range(partitions))
