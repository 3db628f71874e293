"""Selection of the parts of a traced run to draw: the operations that prove its failure, the fault
that explains it, the store's events between; and the times of all of these.
"""

from __future__ import annotations

import textwrap
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import attrs
import msgspec

from cli.environment import TRACE
from harness.campaigns.cell import CRASHES
from harness.clock import NS_PER_S
from harness.history.durable_files import write_atomically
from harness.history.records import EventKind, MicroOp
from harness.history.regular_files import open_regular
from harness.history.run_directory import RunDirectory
from harness.protocols.consistency_models import LOST_WRITE
from harness.protocols.fault_spans import fault_spans
from harness.protocols.finding import Finding
from harness.protocols.verdict import Anomaly, read_verdict

if TYPE_CHECKING:
    from harness.history.load import History
    from results.drawing.spacetime import Story

CONTROLLER = "controller"  # what a trace calls the clients
AROUND_S = 0.25  # drawn before and after the first fault, where nothing better is known
MARGIN_S, MOMENT_S = 0.012, 0.03  # around an operation, and around what happened at a moment
OPERATION_MOST_S = 0.4  # of one operation; of a longer one its end is drawn
APART_S = 0.08  # stretches that are closer are one
STRETCHES_MAX = 6
NOTHING = Finding(text="", txns=(), keys=())
TITLE_CHARS = 170
OPERATIONS_MAX = 4
ELEMENTS_SHOWN = 6
# What tells most of a failure comes first.
TELLING = (
    EventKind.LOG_TRUNCATED.value,
    EventKind.TORN_TAIL.value,
    EventKind.RESET.value,
    EventKind.PARTITION_RESET.value,
    EventKind.NODE_EXITED.value,
    EventKind.LEADER_ELECTED.value,
    EventKind.LEASE_GRANTED.value,
    EventKind.NODE_STARTED.value,
)
Stretches = list[tuple[float, float]]


@attrs.frozen(kw_only=True)
class View:
    """The user's choices; without any, all lanes and the proof of the failure."""

    windows: tuple[tuple[float, float], ...] = ()
    nodes: tuple[str, ...] = ()
    show: tuple[str, ...] = ()


def draw_figure(run: RunDirectory, view: View) -> tuple[Path, Stretches, int]:
    """Write the diagram beside the trace of ``run``; return its path, the stretches of time in it,
    and how many messages had no room.
    """
    from harness.history.load import load
    from results.drawing.axis import merged
    from results.drawing.spacetime import USUAL, draw

    history = load(run)
    finding = _proof(run)
    story = _story(run, history, finding)
    stretches = list(view.windows) or stretches_of(story, _partitions(history, finding))
    # Windows that the user gave are joined only where they overlap.
    stretches = merged(stretches, 0.0 if view.windows else APART_S)
    decoder = msgspec.json.Decoder()
    with open_regular(run.root / TRACE) as lines:
        svg, left_out = draw(
            map(decoder.decode, lines),
            story,
            stretches,
            nodes=view.nodes,
            show=view.show or USUAL,
        )
    path = run.diagram
    write_atomically(path, svg.encode())
    return path, stretches, left_out


def _proof(run: RunDirectory) -> Finding:
    """Return the first finding of the anomaly with the shortest proof, the fewest operations; an
    empty one where nothing was found.
    """
    verdict = read_verdict(run)

    def rank(item: tuple[str, Anomaly]) -> tuple[bool, bool, int, bool, str]:
        name, anomaly = item
        operations = anomaly.examples[0].operations
        return name in CRASHES, not operations, len(operations), name != LOST_WRITE, name

    found = verdict.anomalies if verdict else {}
    shown = [item for item in found.items() if item[1].examples]
    return min(shown, key=rank)[1].examples[0] if shown else NOTHING


def _story(run: RunDirectory, history: History, finding: Finding) -> Story:
    from results.drawing.spacetime import FaultBand, Happening, Operation, Story

    keys = set(finding.keys)
    last_ns = max((at_ns for _, at_ns in history.manifest.phases), default=0)
    explained = finding.explained_by.text if finding.explained_by else ""
    return Story(
        title=(run.root.name, *textwrap.wrap(finding.text, TITLE_CHARS)[:1], explained),
        controller=CONTROLLER,
        faults=tuple(
            FaultBand(
                start_s=span.begin_ns / NS_PER_S,
                end_s=span.end_ns(last_ns) / NS_PER_S,
                nodes=span.nodes,
                text=f"{span.kind} of {span.target}",
                unsure=tuple((a / NS_PER_S, b / NS_PER_S) for a, b in span.unsure(last_ns)),
            )
            for span in fault_spans(history.faults().to_pylist())
        ),
        operations=tuple(
            Operation(
                start_s=operation.invoke_ns / NS_PER_S,
                end_s=operation.complete_ns / NS_PER_S,
                node=operation.node or "",
                text=f"T{operation.txn} {said(operation.ops, keys)}: {operation.type}",
            )
            for operation in finding.operations[:OPERATIONS_MAX]
        ),
        happenings=tuple(
            Happening(
                at_s=row["at_ns"] / NS_PER_S,
                node=row["node"],
                text=row["text"],
                rank=TELLING.index(row["kind"]),
            )
            for row in history.events().to_pylist()
            if row["kind"] in TELLING
        ),
    )


def said(ops: Sequence[MicroOp], keys: set[int]) -> str:
    """Format the steps on ``keys`` (on all, where none are named)."""
    words = []
    for op in [op for op in ops if op.key in keys] or ops:
        if isinstance(op.value, tuple):
            shown = " ".join(map(str, op.value[-ELEMENTS_SHOWN:]))
            dots = "… " if len(op.value) > ELEMENTS_SHOWN else ""
            words.append(f"{op.f} {op.key} = [{dots}{shown}]")
        else:
            words.append(f"{op.f} {op.key} {'' if op.value is None else op.value}".rstrip())
    return ", ".join(words)


def _partitions(history: History, finding: Finding) -> tuple[str, ...]:
    """Return the partitions of the finding's keys, as the store's events name them at their end or
    in their text: ``p3``, ``partition 3``.
    """
    keys = set(finding.keys)
    ops = history.micro_ops().select(["key", "partition"]).to_pylist() if keys else []
    found = {row["partition"] for row in ops if row["key"] in keys} - {None}
    return tuple(name for p in sorted(found) for name in (f"p{p}", f"partition {p}"))


def stretches_of(story: Story, partitions: tuple[str, ...]) -> Stretches:
    """Return the stretches around the operations, the beginning of the fault before them, and, from
    first to last, the moments of the store's events on their partition; the most relevant ones, if
    they are too many.

    Where the anomaly is of replicas and has no operation, the moments of the nodes that it names.
    """
    if not story.operations:
        return _moments_of_nodes(story)
    proofs = [_around(op.start_s, op.end_s) for op in story.operations]
    first_s = min(op.start_s for op in story.operations)
    last_s = max(op.end_s for op in story.operations)
    begun = [fault.start_s for fault in story.faults if fault.start_s <= first_s]
    ends = [fault.end_s for fault in story.faults if first_s < fault.end_s < last_s]
    told = sorted(
        (happening.rank, happening.at_s)
        for happening in story.happenings
        if first_s < happening.at_s < last_s
        and any(f" {name} " in f" {_words(happening.text)}" for name in partitions)
    )
    wanted = [*proofs, *(_around(at_s, at_s, MOMENT_S) for at_s in begun[-1:])]
    return _with_room_for(wanted, [*(at_s for _, at_s in told), *ends])


def _moments_of_nodes(story: Story) -> Stretches:
    begun = [fault.start_s for fault in story.faults]
    first_s = min(begun, default=AROUND_S)
    words = _words(" ".join(story.title[1:])).split()
    told = sorted((h.rank, h.at_s) for h in story.happenings if h.node in words)
    ends = [fault.end_s for fault in story.faults]
    moments = [*(at_s for _, at_s in told), *ends, *begun]
    return _with_room_for([(max(0.0, first_s - AROUND_S), first_s + MOMENT_S)], moments)


def _with_room_for(wanted: Stretches, moments: Iterable[float]) -> Stretches:
    """Return ``wanted``, and stretches around as many of ``moments`` as there is room for, in their
    order.
    """
    from results.drawing.axis import merged

    for at_s in moments:
        more = merged([*wanted, _around(at_s, at_s, MOMENT_S)], APART_S)
        if len(more) <= STRETCHES_MAX:
            wanted = list(more)
    return wanted


def _words(text: str) -> str:
    """Return a pattern of ``text`` that matches a name only as a whole word."""
    return text.replace(",", " ").replace(":", " ") + " "


def _around(start_s: float, end_s: float, margin_s: float = MARGIN_S) -> tuple[float, float]:
    start_s = max(start_s, end_s - OPERATION_MOST_S)
    return max(0.0, start_s - margin_s), end_s + margin_s
