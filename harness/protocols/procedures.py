"""Procedures: faults that take their nodes one after the other, in recorded steps.

The options of the built-in ones stand here, since the nemesis acts by them and a checker judges by
their limits. Each step of a node is told by events of its own:

::

    step-begun        step-down         step-up           step-over
    it is ended       no program runs   it runs again,    what the next step waits
                      there             and answers       for has come
"""

from __future__ import annotations

import bisect
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, Any, Literal

import attrs
import msgspec
from msgspec import Meta

from harness.history.records import EventKind
from harness.protocols.fault_kinds import PROCEDURES

if TYPE_CHECKING:
    import pyarrow as pa

    from harness.protocols.fault_spans import FaultSpan

STEPS = (EventKind.STEP_BEGUN, EventKind.STEP_DOWN, EventKind.STEP_UP, EventKind.STEP_OVER)
MAX_NAMES = 64
MAX_S = 3_600.0

Order = Literal["random", "leader-last", "by-name"]
Name = Annotated[str, Meta(min_length=1, max_length=63)]
Names = Annotated[list[Name], Meta(min_length=1, max_length=MAX_NAMES)]
Seconds = Annotated[float, Meta(ge=0, le=MAX_S)]
Limit = Annotated[float, Meta(gt=0, le=MAX_S)]
Share = Annotated[float, Meta(ge=0, le=1)]


class ProcedureOptions(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What every procedure may be told: in which order, and how nodes end."""

    order: Annotated[
        Order | Names,
        Meta(
            description="The order of the nodes: drawn; with those that lead last, as they lead "
            "when it is their turn; ascending; or these names, all of the target."
        ),
    ] = "random"
    by: Annotated[
        Literal["stop", "kill"],
        Meta(description="How a node ends: in order, by SIGTERM, or by SIGKILL."),
    ] = "stop"
    pause_s: Annotated[
        Seconds,
        Meta(description="How long before the next node, once what it waits for has come."),
    ] = 0.0


class FullRestartOptions(ProcedureOptions, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The options of a full restart: ``order`` is that of the starts."""

    down_s: Annotated[
        Seconds, Meta(description="How long all nodes are down before the first start.")
    ] = 0.0


class RollingRestartOptions(
    ProcedureOptions, frozen=True, kw_only=True, forbid_unknown_fields=True
):
    """The options of a rolling restart, and the limits within which it counts as seamless."""

    down_s: Annotated[Seconds, Meta(description="How long each node stays down.")] = 0.0
    wait: Annotated[
        Literal["whole", "rebalance", "time"],
        Meta(
            description="What comes before the next node: every replica has everything again; no "
            "data is on its way between nodes either; or only `pause_s`."
        ),
    ] = "whole"
    silence_s: Annotated[
        Limit | None,
        Meta(
            description="The longest time in which clients asked a partition and nothing was "
            "acknowledged; 0.3 with `stop` and 2 with `kill` where it is not given."
        ),
    ] = None
    p99_times: Annotated[
        Annotated[float, Meta(ge=1, le=10_000)] | None,
        Meta(
            description="99 % of what was acknowledged meanwhile took at most so many times as "
            "long as 99 % did before; 3 with `stop` and no limit with `kill` where it is not given."
        ),
    ] = None
    failed_share: Annotated[
        Share | None,
        Meta(
            description="At most this share of the transactions failed or has an unknown outcome, "
            "those that gave way to another left out; 0.005 with `stop`, no limit with `kill`."
        ),
    ] = None
    slow_share: Annotated[
        Share | None,
        Meta(
            description="At most this share failed, has an unknown outcome or took longer than "
            "0.5 s; 0.15 with `kill`, no limit with `stop`."
        ),
    ] = None


SLOW_S = 0.5
_USUAL: Mapping[str, Mapping[str, float]] = {
    "stop": {"silence_s": 0.3, "p99_times": 3.0, "failed_share": 0.005},
    "kill": {"silence_s": 2.0, "slow_share": 0.15},
}


def limits(options: RollingRestartOptions) -> dict[str, float]:
    """Return the limits of a rolling restart by key: those given, else the usual ones."""
    given = {
        key: value
        for key in ("silence_s", "p99_times", "failed_share", "slow_share")
        if (value := getattr(options, key)) is not None
    }
    return {**_USUAL[options.by], **given}


@attrs.frozen(kw_only=True)
class NodeStep:
    """One node's step of a procedure, as its events tell it; a time is ``None`` where that stage
    was not reached.
    """

    node: str
    begun_ns: int
    down_ns: int | None = None
    up_ns: int | None = None
    over_ns: int | None = None


@attrs.frozen(kw_only=True)
class StepEvents:
    """The events that tell steps, by node, in order of time."""

    by_node: Mapping[str, Sequence[tuple[int, int, str]]]
    """When, the place among all of them, and of which kind."""

    @classmethod
    def in_table(cls, events: pa.Table) -> StepEvents:
        """Those in the table ``events``."""
        # Here: the command line names procedures, and starts without pyarrow.
        from harness.history.store_events import rows_of

        return cls.of(rows_of(events, STEPS, ("node", "at_ns")))

    @classmethod
    def of(cls, events: Iterable[Mapping[str, Any]]) -> StepEvents:
        """Those among ``events``."""
        found: dict[str, list[tuple[int, int, str]]] = {}
        for place, row in enumerate(events):
            if row["kind"] in _STAGE:
                told = int(row["at_ns"]), place, row["kind"]
                found.setdefault(str(row["node"]), []).append(told)
        return cls(by_node={node: sorted(its) for node, its in found.items()})

    def by_procedure(
        self, spans: Iterable[FaultSpan], last_ns: int
    ) -> Mapping[int, tuple[NodeStep, ...]]:
        """Return the steps of each procedure among ``spans``, in the order of their begin, by the
        number of its fault; a procedure that was never healed lasts until ``last_ns``.

        Of two that overlap none shares a node with the other: an event is of the procedure that
        took its node last, so that each is looked at once, also where a forged run has thousands.
        """
        procedures = [span for span in spans if span.kind in PROCEDURES]
        taken: dict[str, list[tuple[int, int, int]]] = {}  # by node: begin, end, fault
        for span in procedures:
            for node in frozenset(span.nodes) & self.by_node.keys():
                turn = span.begin_ns, span.end_ns(last_ns), span.fault
                taken.setdefault(node, []).append(turn)
        told: dict[int, list[tuple[int, int, str, str]]] = {}
        for node, turns in taken.items():
            for (start_ns, end_ns, fault), follower in zip(turns, [*turns[1:], None], strict=True):
                until_ns = end_ns if follower is None else min(end_ns, follower[0] - 1)
                its = self._between(node, start_ns, until_ns)
                told.setdefault(fault, []).extend((*each, node) for each in its)
        return {fault: _steps_of(sorted(its)) for fault, its in told.items() if its}

    def _between(self, node: str, start_ns: int, end_ns: int) -> Sequence[tuple[int, int, str]]:
        its = self.by_node[node]
        low = bisect.bisect_left(its, start_ns, key=_at_ns)
        return its[low : max(low, bisect.bisect_right(its, end_ns, key=_at_ns))]


def _at_ns(told: tuple[int, int, str]) -> int:
    return told[0]


def _steps_of(told: Iterable[tuple[int, int, str, str]]) -> tuple[NodeStep, ...]:
    found = list[dict[str, Any]]()
    last: dict[str, dict[str, Any]] = {}  # by node its newest step
    for at_ns, _, kind, node in told:
        if kind == EventKind.STEP_BEGUN:
            last[node] = {"node": node}
            found.append(last[node])
        if node in last:
            last[node][_STAGE[kind]] = at_ns
    return tuple(NodeStep(**step) for step in found)


_STAGE: Mapping[str, str] = {
    EventKind.STEP_BEGUN: "begun_ns",
    EventKind.STEP_DOWN: "down_ns",
    EventKind.STEP_UP: "up_ns",
    EventKind.STEP_OVER: "over_ns",
}
