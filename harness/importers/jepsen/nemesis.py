"""The acts of the nemesis of an imported history, as rows of faults.

Jepsen records each act of a nemesis twice, when it began and when it was done, both as ``info``. By
its convention one act undoes another: ``stop-partition`` undoes ``start-partition``, ``start``
undoes ``kill``. Two such acts make one fault, in force from the beginning of the first to the end
of the second. An act without a counterpart is a mark: a fault that was over when it was done. The
file proves neither the effect nor the healing of any fault; the rows say so by their state, and
decide nothing.
"""

from __future__ import annotations

import re
from collections import defaultdict

import attrs
import numpy as np
import numpy.typing as npt
import pyarrow as pa

from harness.history import schema
from harness.history.records import FaultState
from harness.importers.jepsen.operation_forms import Remark
from harness.text import inert

# The limit of one history; later acts are only in the notes.
FAULTS_MAX = 1000
TARGET_CHARS = 60
PROOF_CHARS = 300
UNNAMED_TARGET = "the cluster"

# Both ways round, since a nemesis of partitions starts and stops the fault, one of processes stops
# and starts the node.
_UNDONE_BY = (
    ("start", "stop"),
    ("begin", "end"),
    ("kill", "start"),
    ("kill", "restart"),
    ("stop", "start"),
    ("stop", "restart"),
    ("pause", "resume"),
    ("partition", "heal"),
    ("isolate", "heal"),
    ("slow", "fast"),
    ("bump", "reset"),
    ("strobe", "reset"),
    ("skew", "reset"),
)
_OPENING = frozenset(opener for opener, _ in _UNDONE_BY)
_UNDOES = {closer: [o for o, c in _UNDONE_BY if c == closer] for _, closer in _UNDONE_BY}
_NAME = re.compile(r"([a-z]+)(?:[-_!]*(.*))", re.DOTALL)

Ints = npt.NDArray[np.int64]


@attrs.define
class _Act:
    """One act: its name, its begin and end, its arguments and its result."""

    f: str
    begun: int
    done: int
    asked: str
    came: str
    undone: _Act | None = None

    def parted(self) -> tuple[str, str]:
        """Return the verb and what it is about: ``start`` and ``partition`` of
        ``start-partition``.
        """
        match = _NAME.match(self.f)
        return (match.group(1), match.group(2) or "") if match else ("", "")


def faults(remarks: list[tuple[int, Remark]], at_ns: Ints) -> pa.Table:
    """One row a fault (``schema.FAULTS``), in the order of their beginnings."""
    rows = []
    for number, act in enumerate(_paired(_acts(remarks))[:FAULTS_MAX]):
        last = act.undone or act
        rows.append(
            {
                "fault": number,
                "kind": inert(act.f, TARGET_CHARS),
                "target": inert(act.asked or act.came, TARGET_CHARS) or UNNAMED_TARGET,
                "nodes": [],
                "roles": [],
                "injecting_ns": int(at_ns[act.begun]),
                "injected_ns": int(at_ns[act.done]),
                "healing_ns": int(at_ns[last.begun]) if act.undone else None,
                "healed_ns": int(at_ns[last.done]),
                "state": FaultState.RECORDED.value,
                "proof": inert(act.came, PROOF_CHARS) or None,
                "heal_proof": _told(act.undone) if act.undone else None,
                "reason": None if act.undone else "the history does not say when it ended",
            }
        )
    return pa.Table.from_pylist(rows, schema=schema.FAULTS)


def _told(act: _Act) -> str:
    return inert(f"{act.f} {act.came}".rstrip(), PROOF_CHARS)


def _acts(remarks: list[tuple[int, Remark]]) -> list[_Act]:
    """Every act of every process that is no client, with its two records joined."""
    found: list[_Act] = []
    begun: dict[tuple[str, str], _Act] = {}
    for place, remark in remarks:
        # Also at an ``invoke``: an act without a recorded end makes way for the next of its name.
        act = begun.pop((remark.process, remark.f), None)
        if act is not None and remark.type != "invoke":
            act.done, act.came = place, remark.text
            continue
        act = _Act(f=remark.f, begun=place, done=place, asked=remark.text, came="")
        begun[remark.process, remark.f] = act
        found.append(act)
    return found


def _paired(acts: list[_Act]) -> list[_Act]:
    """The acts that began or marked a fault, each with the act that undid it."""
    found: list[_Act] = []
    begun: defaultdict[str, dict[str, list[_Act]]] = defaultdict(dict)  # by verb, then by what
    for act in acts:
        verb, what = act.parted()
        ended: list[_Act] = []
        for opener in _UNDOES.get(verb, ()):
            about = begun[opener]
            # A verb alone undoes all acts of its kind, and is undone by each of them.
            for named in [what, ""] if what else list(about):
                ended += about.pop(named, [])
        for other in ended:
            other.undone = act
        if ended:
            continue
        found.append(act)
        if verb in _OPENING:
            begun[verb].setdefault(what, []).append(act)
    return found
