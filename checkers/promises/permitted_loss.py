"""The envelope of a forced reset, as values: which lost write it may have cost, and which one may
have been given up with an outcome that it took. What an envelope is says ``envelope``.
"""

from __future__ import annotations

import bisect
import enum
import functools
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import accumulate

import attrs
import numpy as np
import pyarrow as pa

from checkers.engine.arrays import Bools, Ints
from checkers.promises.told_states import ToldStates
from harness.protocols.generations import ANSWERED_WITHIN_NS, GenerationTree, Reset

NEVER_NS = -(1 << 63)
LOOKED_AT_ONCE = 512  # resets, for the first that may have cost a write: mostly one of the next few
# Resets beyond these are told and not judged: a table of a few bytes may tell of any number.
RESETS_JUDGED = 10_000
WORK_MAX = 60_000_000  # states before, for all resets together
LEAST_JUDGED = 100


def judged_resets(trees: Mapping[int, GenerationTree], states: ToldStates) -> Mapping[int, int]:
    """Return how many resets of each partition are judged by the states before them: as many, of
    all partitions in their order, as can be in a bounded time.
    """
    every = [(partition, reset) for partition, tree in trees.items() for reset in tree.resets]
    work = accumulate(states.rows_before(reset) + 1 for _, reset in every)
    within = bisect.bisect_right(list(work), WORK_MAX)
    count = max(LEAST_JUDGED, min(RESETS_JUDGED, within))
    return Counter(partition for partition, _ in every[:count])


class Held(enum.StrEnum):
    """Whether a survivor of a reset held a write that the reset lost."""

    BY_NONE = "by no survivor, as far as it was sampled"
    UNJUDGED = "not judged: the store does not tell the states of its replicas"
    TOO_MANY = "not judged: there are more resets, or states before them, than can be"


@attrs.frozen(kw_only=True)
class Loss:
    """An acknowledged write that is lost: a read from ``read_ns`` to ``read_end_ns`` is the first
    that misses it. The last read that shows it shows what was there at ``seen_ns``. An append that
    began after the acknowledgement, to the same key, was acknowledged at ``followed_ns``, and is in
    the last read.
    """

    partition: int | None
    key: int
    value: int
    writer: int
    invoke_ns: int
    ack_ns: int
    read_ns: int
    read_end_ns: int
    seen_ns: int | None
    followed_ns: int | None = None


def losses_of(lost: pa.Table, transactions: pa.Table) -> list[Loss]:
    """Return the rows of ``lost`` (``checkers.lists.lost_writes.LOST``) as values."""
    invoked, completed = (transactions[name] for name in ("invoke_ns", "complete_ns"))
    return [
        Loss(
            partition=row["partition"],
            key=row["key"],
            value=row["value"],
            writer=row["writer"],
            invoke_ns=invoked[row["writer"]].as_py(),
            ack_ns=row["ack_ns"],
            read_ns=invoked[row["gone"]].as_py(),
            read_end_ns=completed[row["gone"]].as_py(),
            seen_ns=row["seen_ns"],
            followed_ns=row["followed_ns"],
        )
        for row in lost.to_pylist()
    ]


@attrs.frozen(kw_only=True)
class Envelope:
    """What the reset that began the generation ``place`` may cost."""

    tree: GenerationTree
    place: int
    states: ToldStates

    @property
    def reset(self) -> Reset:
        """The reset itself."""
        return self.tree.resets[self.place - 1]

    def survived_until(self) -> int | None:
        """Return the moment up to which what was acknowledged had been applied by a survivor before
        the reset, ``NEVER_NS`` where nothing had, as far as replicas were sampled; ``None`` where
        their states are not told.

        A primary that acts after the acknowledgement has the write in its log; a survivor that has
        applied as much as that log was long has applied the write.
        """
        before = self.states.before(self.reset)
        if not len(before) or self.reset.survivors is None:
            return None
        applied = max((index for _, index in self.applied_by_survivors().values()), default=0)
        at_ns = before.last_ended_within(applied)
        return NEVER_NS if at_ns is None else at_ns

    def applied_by_survivors(self) -> dict[str, tuple[int, int]]:
        """Return term and index of the last entry that each survivor is known to have applied
        before the reset.
        """
        survivors = self.reset.survivors or ()
        # The last sample counts: a node that was wiped since has less.
        return {
            row["node"]: (row["applied_term"], row["applied_index"])
            for row in self.states.before(self.reset).last_by_node
            if row["node"] in survivors
        }


@attrs.frozen(kw_only=True)
class Permission:
    """The envelope inside which a loss lies, and what is known of its survivors. ``through`` is the
    transaction's loss in the partition that was reset, where the loss itself is in another.
    """

    envelope: Envelope
    held: Held
    through: Loss | None = None


@attrs.frozen(kw_only=True)
class Envelopes:
    """The envelopes of one partition: ``places`` are those of its resets that may cost writes."""

    tree: GenerationTree
    states: ToldStates
    places: tuple[int, ...]
    judged: int

    @classmethod
    def of(
        cls,
        tree: GenerationTree,
        states: ToldStates,
        permits: Callable[[Reset], bool],
        judged: int,
    ) -> Envelopes:
        """Those of the resets that ``permits`` losses; survivors are asked for the first ``judged``
        generations alone.
        """
        resets = enumerate(tree.resets, 1)
        places = tuple(place for place, r in resets if permits(r) and not r.restores)
        return cls(tree=tree, states=states, places=places, judged=judged)

    def permission(self, loss: Loss) -> Permission | None:
        """Return the first reset that may have cost ``loss``; ``None`` where none may.

        Only a reset on the way from the generation of the write to that of the read that misses it:
        a branch that was left without telling of it permits nothing. The write was acknowledged
        before it, and shown by no read since.
        """
        until_ns = max(loss.invoke_ns, loss.ack_ns - ANSWERED_WITHIN_NS)
        if loss.seen_ns is not None:
            until_ns = max(until_ns, loss.seen_ns)
        for begin, end in self._ways(loss, until_ns):
            for start in range(begin, end, LOOKED_AT_ONCE):
                some = slice(start, min(start + LOOKED_AT_ONCE, end))
                # What survived this reset, a later one may have cost.
                lost = self._survived.until_ns[some] < loss.ack_ns
                found = lost & (self._survived.latest_ns[some] >= until_ns)
                if found.any():
                    return self._permission(start + int(np.argmax(found)))
        return None

    def _permission(self, number: int) -> Permission:
        place = self.places[number]
        held = Held.BY_NONE if self._survived.told[number] else Held.UNJUDGED
        return Permission(
            envelope=Envelope(tree=self.tree, place=place, states=self.states),
            held=Held.TOO_MANY if place > self.judged else held,
        )

    def _ways(self, loss: Loss, latest_ns: int) -> Iterator[tuple[int, int]]:
        """Yield which of ``places`` are on the way from the write to the read, without resets that
        took place before ``latest_ns``.
        """
        since, until = self.tree.span(loss.invoke_ns, loss.ack_ns)
        first, last = self.tree.span(loss.read_ns, loss.read_end_ns)
        # The end of a generation is the latest moment of all resets so far.
        least = bisect.bisect_left(self.tree.ends, latest_ns) + 1
        for way in self.tree.ways(since, until, first, last):
            begin = bisect.bisect_left(self.places, max(way.start, least))
            yield begin, bisect.bisect_left(self.places, way.stop)

    @functools.cached_property
    def _survived(self) -> _Survived:
        envelopes = [
            Envelope(tree=self.tree, place=place, states=self.states) for place in self.places
        ]
        until = [
            envelope.survived_until() if envelope.place <= self.judged else None
            for envelope in envelopes
        ]
        return _Survived(
            latest_ns=np.asarray([each.reset.latest_ns for each in envelopes], np.int64),
            until_ns=np.asarray([NEVER_NS if at is None else at for at in until], np.int64),
            told=np.asarray([at is not None for at in until], np.bool_),
        )


@attrs.frozen(kw_only=True, eq=False)
class _Survived:
    """Of each reset its latest moment, and ``Envelope.survived_until``, where it is ``told``."""

    latest_ns: Ints
    until_ns: Ints
    told: Bools


def given_up(loss: Loss, others: Iterable[tuple[Loss, Permission]]) -> Permission | None:
    """Return the permission of ``loss`` by one of the ``others`` of its transaction, each with its
    own: the reset that took its write to another partition may have taken its outcome, too.

    A partition that has shown the write, or had let another transaction follow it before the reset,
    knew the outcome by then.
    """
    for other, why in others:
        reset = why.envelope.reset
        apart = None not in (loss.partition, other.partition) and loss.partition != other.partition
        unknown = loss.seen_ns is None and (
            loss.followed_ns is None or loss.followed_ns >= reset.earliest_ns
        )
        if apart and unknown and why.through is None and loss.read_end_ns >= reset.earliest_ns:
            return attrs.evolve(why, through=other)
    return None
