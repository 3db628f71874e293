"""What a store told of its replicas, by generation: what was known of one before a reset."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Mapping
from typing import Any

import attrs
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from checkers.engine.arrays import Ints
from checkers.engine.spans import Spans
from harness.protocols.generations import Reset

RESETS_KEPT = 16
"""How many resets' states are kept: losses that follow each other mostly ask for the same few."""

_OF_NODE = ("node", "asked_ns", "voter", "voters", "applied_term", "applied_index")
_OF_GENERATION = (
    *_OF_NODE,
    *("partition", "generation", "answered_ns", "boot"),
    *("acting", "last_index", "commit_index"),
)


@attrs.frozen(kw_only=True, eq=False)
class ToldBefore:
    """The states (rows of ``STATES``, by the time at which they were asked for) of a generation
    that a store had certainly told before a reset.
    """

    states: pa.Table

    def __len__(self) -> int:
        return int(self.states.num_rows)

    @functools.cached_property
    def last_by_node(self) -> tuple[Mapping[str, Any], ...]:
        """The last of them of each node, by the node's name: what ``_OF_NODE`` names."""
        nodes = self.states["node"].combine_chunks().dictionary_encode()
        # Of equal values numpy's unique gives the first place: read from the end it is the last.
        _, places = np.unique(nodes.indices.to_numpy()[::-1], return_index=True)
        last = self.states.select(_OF_NODE).take(pa.array(len(self) - 1 - places, pa.int64()))
        rows: list[dict[str, Any]] = last.to_pylist()
        return tuple(sorted(rows, key=lambda row: row["node"]))

    def last_ended_within(self, index: int) -> int | None:
        """Return the last moment at which an acting primary was asked such that the log of one that
        was asked then or later ended at ``index`` or before; ``None`` where there is none.
        """
        asked, least = self._acting
        place = int(np.searchsorted(least, index, side="right"))
        return int(asked[place - 1]) if place else None

    @functools.cached_property
    def _acting(self) -> tuple[Ints, Ints]:
        """When each acting primary was asked, ascending, and the least end of a log from there."""
        acting = self.states.filter(self.states["acting"])
        ends = pc.max_element_wise(acting["last_index"], acting["commit_index"]).to_numpy()
        return acting["asked_ns"].to_numpy(), np.minimum.accumulate(ends[::-1])[::-1]


class ToldStates:
    """All states that a store told of its replicas."""

    def __init__(self, states: pa.Table) -> None:
        """Order ``states`` (rows of ``STATES``) by generation and time."""
        keys = ["partition", "generation", "asked_ns"]
        self._states = states.select(_OF_GENERATION).sort_by([(key, "ascending") for key in keys])
        self._places = _places(self._states)
        # Of one object: a cache on the class would keep every run's states.
        self._before = functools.lru_cache(RESETS_KEPT)(self._before_of)

    def before(self, reset: Reset) -> ToldBefore:
        """Return those of the generation before ``reset`` that were certainly told before it."""
        return self._before(reset.partition, reset.previous, reset.earliest_ns)

    def rows_before(self, reset: Reset) -> int:
        """How many states there are of the generation before ``reset``."""
        start, end = self._places.get((reset.partition, reset.previous), (0, 0))
        return end - start

    def boots(self, node: str) -> Spans:
        """Return from when to when each start of ``node`` is known to have lasted: from its first
        answer to the last question that it answered.
        """
        return self._boots.get(node, Spans())

    def _before_of(self, partition: int, generation: int, earliest_ns: int) -> ToldBefore:
        start, end = self._places.get((partition, generation), (0, 0))
        own = self._states.slice(start, end - start)
        return ToldBefore(states=own.filter(pc.less_equal(own["answered_ns"], earliest_ns)))

    @functools.cached_property
    def _boots(self) -> dict[str, Spans]:
        lives = self._states.group_by(["node", "boot"]).aggregate(
            [("answered_ns", "min"), ("asked_ns", "max")]
        )
        spans: dict[str, list[tuple[int, int | None]]] = {}
        for row in lives.to_pylist():
            span = row["answered_ns_min"], row["asked_ns_max"]
            spans.setdefault(row["node"], []).append(span)
        return {node: Spans.of(own) for node, own in spans.items()}


def _places(states: pa.Table) -> dict[tuple[int, int], tuple[int, int]]:
    """Return by partition and generation where its rows begin and end in ``states``, so sorted."""
    partition = pc.fill_null(states["partition"], -1).to_numpy()
    generation = states["generation"].to_numpy()
    if not len(partition):
        return {}
    changes = (np.diff(partition) != 0) | (np.diff(generation) != 0)
    starts = np.concatenate(([0], np.flatnonzero(changes) + 1, [len(partition)]))
    return {
        (int(partition[start]), int(generation[start])): (int(start), int(end))
        for start, end in itertools.pairwise(starts)
    }
