"""Which paths lead through a window, in as few steps as tell of all of them.

*Enters* are the vertices to which something leads from outside, *leaves* those from which something
leads out. A path from one to the other goes by the timeline, or it does not. By time a vertex
``reaches`` a first point of the timeline and is ``reached`` from a last one, and an enter leads to
each leave that is reached from a point at or behind the one that the enter reaches. Paths that this
does not tell pass only vertices which are open side by side with their ends; these are kept as they
are. So what is left of a window are the surroundings of its borders, and a few points of time.
"""

from __future__ import annotations

from collections.abc import Callable

import attrs
import numpy as np

from checkers.cycles.graph import Edges
from checkers.engine.arrays import Bools, Ints, distinct, spread

_NO_POINT = np.iinfo(np.int64).max
# Of some changes sorting is faster than marking all vertices.
_FEW = 1_000


@attrs.frozen(kw_only=True, eq=False)
class Timeline:
    """Points in time, of which each leads to the next. ``vertex`` of each point; ``ended`` are
    vertices that lead to the points ``by``; ``begun`` those to which the points ``after`` lead.
    """

    vertex: Ints
    ended: Ints
    by: Ints
    begun: Ints
    after: Ints


def contracted(
    steps: Edges, timeline: Timeline, label: Ints, enters: Ints, leaves: Ints
) -> tuple[Ints, Ints]:
    """Return steps between components (``label``) and points of time (numbered from the number of
    vertices on) that lead from each of ``enters`` to the same ``leaves`` as the graph does.

    ``steps`` are those that are not in time; ``label`` are the components of steps and time.
    """
    vertices = len(label)
    source, target = label[steps.source], label[steps.target]
    apart = source != target
    source, target = source[apart], target[apart]
    onward, back = _Fan.of(source, target, vertices), _Fan.of(target, source, vertices)
    reaches, reached = _by_time(timeline, label)
    _spread(reaches, back, np.minimum)
    _spread(reached, onward, np.maximum)
    enters, leaves = (distinct(label[ends], vertices) for ends in (enters, leaves))
    # The latest point that an enter which leads here reaches; the first by which a leave behind is
    # reached. What time tells of is not followed.
    latest, first = np.full(vertices, -1), np.full(vertices, _NO_POINT)
    latest[enters], first[leaves] = reaches[enters], reached[leaves]
    _spread(latest, onward, np.maximum, lambda at: latest[at] > reached[at])
    _spread(first, back, np.minimum, lambda at: reaches[at] > first[at])
    kept = (latest > reached) & (reaches > first) & (latest > first)
    inside = kept[source] & kept[target]
    up = enters[reaches[enters] != _NO_POINT]
    down = leaves[reached[leaves] >= 0]
    points = np.unique(np.concatenate([reaches[up], reached[down]]))
    return (
        np.concatenate(
            [source[inside], up, vertices + reached[down], vertices + points[:-1]],
        ),
        np.concatenate(
            [target[inside], vertices + reaches[up], down, vertices + points[1:]],
        ),
    )


def _by_time(timeline: Timeline, label: Ints) -> tuple[Ints, Ints]:
    """Return by component the first point that its own transactions lead to, and the last one that
    leads to them. Points of one component count as its first and as its last.
    """
    of_point = label[timeline.vertex]
    number = np.arange(len(of_point))
    reaches, reached = np.full(len(label), _NO_POINT), np.full(len(label), -1)
    reaches[of_point[::-1]] = number[::-1]
    reached[of_point] = number
    lowest, highest = reaches[of_point], reached[of_point]
    np.minimum.at(reaches, label[timeline.ended], lowest[timeline.by])
    np.maximum.at(reached, label[timeline.begun], highest[timeline.after])
    return reaches, reached


@attrs.frozen(kw_only=True, eq=False)
class _Fan:
    """Takers sorted by their givers: those of giver i begin at ``begin[i]``."""

    taker: Ints
    begin: Ints

    @classmethod
    def of(cls, giver: Ints, taker: Ints, vertices: int) -> _Fan:
        order = np.argsort(giver, kind="stable")
        counts = np.bincount(giver, minlength=vertices)
        return cls(taker=taker[order], begin=np.append(0, np.cumsum(counts)))


def _spread(
    values: Ints, fan: _Fan, better: np.ufunc, gives: Callable[[Ints], Bools] | None = None
) -> None:
    """Give each taker the ``better`` of its value and its giver's, until nothing changes; only from
    those that ``gives`` allows.
    """
    changed = np.flatnonzero(np.diff(fan.begin))
    while len(changed):
        if gives is not None:
            changed = changed[gives(changed)]
        begin = fan.begin[changed]
        row, place = spread(fan.begin[changed + 1] - begin)
        given, to = values[changed][row], fan.taker[begin[row] + place]
        news = better(given, values[to]) != values[to]
        better.at(values, to[news], given[news])
        to = to[news]
        changed = np.unique(to) if len(to) < _FEW else distinct(to, len(values))
