"""The final reads of a run: the workload's own, and of snapshots where those are refused for good.

A transaction whose coordinator is gone may leave locks behind that a store keeps for minutes, so
that a read which takes locks is refused again and again. A snapshot takes none. Begun once its
staleness has passed since the last write it shows all that was acknowledged, which makes it
evidence of a lost write (``checkers.lists.lost_writes``).
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

import attrs
from msgspec.structs import replace

from harness import plugins
from harness.clock import NS_PER_S
from harness.errors import BrokenPlugin
from harness.generators import Answer, Context, Generator, Operation
from harness.history.records import Complete, Invoke, MicroOp, OpType
from harness.protocols.client import READ_WRITE
from harness.protocols.promise import Declaration
from harness.protocols.workload import Workload

REFUSED_TIMES = 2
"""So often in turn a read is refused before a snapshot is tried, and again after each of those: a
read that waits for no lock tells more."""

_Ops = tuple[MicroOp, ...]


def final_reads(workload: Workload, keys: tuple[int, ...], declaration: Declaration) -> Generator:
    """Return reads of every key in ``keys`` (ascending), each repeated until one is ok; of the
    first kind that ``declaration`` promises as a snapshot, where the workload's own are refused.
    Raises ``BrokenPlugin``.
    """
    with plugins.naming("workloads", workload.name):
        inner = workload.final(keys)
    if not (hasattr(inner, "op") and hasattr(inner, "update")):
        what = "final: expected a Generator, with 'op' and 'update'"
        raise BrokenPlugin(f"workload {workload.name!r}: {what} (got {type(inner).__name__})")
    for promise in declaration.promises:
        if promise.staleness_s is not None:
            stale_ns = round(promise.staleness_s * NS_PER_S)
            return OrSnapshots(inner=inner, kind=promise.kind, staleness_ns=stale_ns)
    return inner


@attrs.frozen(kw_only=True)
class OrSnapshots:
    """The operations of ``inner``; one that only reads and keeps failing becomes one of ``kind``,
    from ``staleness_ns`` after the first on.
    """

    inner: Generator
    kind: str
    staleness_ns: int
    from_ns: int | None = None
    open: Mapping[int, _Ops] = MappingProxyType({})
    refused: Mapping[_Ops, int] = MappingProxyType({})

    def op(self, context: Context) -> Answer:
        """See ``Generator``."""
        from_ns = self.from_ns
        if from_ns is None:
            # No write is open any more; one that was uncertain owes nothing.
            from_ns = context.now_ns + self.staleness_ns
        answer, inner = self.inner.op(context)
        if not isinstance(answer, Operation):
            return answer, attrs.evolve(self, inner=inner, from_ns=from_ns)
        times = self.refused.get(answer.ops, 0)
        turn = times % (REFUSED_TIMES + 1) == REFUSED_TIMES
        # Strictly behind: a write of the last moment is in what was promised then.
        if turn and max(answer.at_ns, context.now_ns) > from_ns and _reads(answer):
            answer = replace(answer, kind=self.kind)
        opened = {**self.open, answer.process: answer.ops}
        return answer, attrs.evolve(self, inner=inner, from_ns=from_ns, open=opened)

    def update(self, context: Context, event: Invoke | Complete) -> Generator:
        """See ``Generator``."""
        inner = self.inner.update(context, event)
        if isinstance(event, Invoke) or event.process not in self.open:
            return self if inner is self.inner else attrs.evolve(self, inner=inner)
        ops = self.open[event.process]
        still = {process: of for process, of in self.open.items() if process != event.process}
        refused = {each: times for each, times in self.refused.items() if each != ops}
        if event.type is not OpType.OK:
            refused[ops] = self.refused.get(ops, 0) + 1
        return attrs.evolve(self, inner=inner, open=still, refused=refused)


def _reads(operation: Operation) -> bool:
    return operation.kind == READ_WRITE and all(op.f == "r" for op in operation.ops)
