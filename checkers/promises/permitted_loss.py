"""The envelope of a forced reset, as values: which lost write it may have cost, and which one may
have been given up with an outcome that it took. What an envelope is says ``envelope``.
"""

from __future__ import annotations

import bisect
import enum
from collections.abc import Callable, Iterable, Iterator

import attrs
import pyarrow as pa

from checkers.promises.told_states import ToldStates
from harness.protocols.generations import ANSWERED_WITHIN_NS, GenerationTree, Reset


class Held(enum.StrEnum):
    """Whether a survivor of a reset held a write that the reset lost."""

    BY_NONE = "by no survivor, as far as it was sampled"
    BY_SURVIVOR = "by a survivor"
    UNJUDGED = "not judged: the store does not tell the states of its replicas"


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
    """Return the rows of ``lost`` (``checkers.lists.lost.LOST``) as values."""
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

    def reaches(self, loss: Loss) -> bool:
        """Tell whether ``loss`` was acknowledged before the reset, and shown by no read since."""
        latest_ns = self.reset.latest_ns
        before = loss.invoke_ns <= latest_ns and loss.ack_ns <= latest_ns + ANSWERED_WITHIN_NS
        return before and (loss.seen_ns is None or loss.seen_ns <= latest_ns)

    def held(self, loss: Loss) -> Held:
        """Tell whether a survivor had applied the lost write before the reset.

        A primary that acts after the acknowledgement has the write in its log; a survivor that has
        applied as much as that log was long has applied the write.
        """
        before = self.states.before(self.reset)
        if not len(before) or self.reset.survivors is None:
            return Held.UNJUDGED
        ends = before.log_end_since(loss.ack_ns)
        if ends is None:
            return Held.BY_NONE
        applied = max((index for _, index in self.applied_by_survivors().values()), default=0)
        return Held.BY_SURVIVOR if applied >= ends else Held.BY_NONE

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

    @classmethod
    def of(
        cls, tree: GenerationTree, states: ToldStates, permits: Callable[[Reset], bool]
    ) -> Envelopes:
        """Those of the resets that ``permits`` losses."""
        resets = enumerate(tree.resets, 1)
        places = tuple(place for place, r in resets if permits(r) and not r.restores)
        return cls(tree=tree, states=states, places=places)

    def permission(self, loss: Loss) -> Permission | None:
        """Return the first reset that may have cost ``loss``; ``None`` where none may.

        Only a reset on the way from the generation of the write to that of the read that misses it:
        a branch that was left without telling of it permits nothing.
        """
        for place in self._ways(loss):
            envelope = Envelope(tree=self.tree, place=place, states=self.states)
            if envelope.reaches(loss):
                held = envelope.held(loss)
                # What survived this reset, a later one may have cost.
                if held is not Held.BY_SURVIVOR:
                    return Permission(envelope=envelope, held=held)
        return None

    def _ways(self, loss: Loss) -> Iterator[int]:
        """Yield the places on the way from the write to the read, without resets too early to reach
        the loss.
        """
        since, until = self.tree.span(loss.invoke_ns, loss.ack_ns)
        first, last = self.tree.span(loss.read_ns, loss.read_end_ns)
        latest_ns = max(loss.invoke_ns, loss.ack_ns - ANSWERED_WITHIN_NS)
        if loss.seen_ns is not None:
            latest_ns = max(latest_ns, loss.seen_ns)
        # The end of a generation is the latest moment of all resets so far.
        least = bisect.bisect_left(self.tree.ends, latest_ns) + 1
        for way in self.tree.ways(since, until, first, last):
            begin = bisect.bisect_left(self.places, max(way.start, least))
            end = bisect.bisect_left(self.places, way.stop)
            yield from self.places[begin:end]


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
