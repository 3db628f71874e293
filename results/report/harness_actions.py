"""The harness's own actions and troubles beside its faults, from the notes of the history.

A restart by firedrill is none by the store, and the death of a client process is no failure of the
store: a reader has to see both beside the errors and events that they caused.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

import attrs
import pyarrow as pa
import pyarrow.compute as pc

from results.report.finding_cards import seconds
from results.report.run_data import RunData

OWN_MAX = 40  # rows of what the harness noted itself
MET_MAX = 12  # rows of what its clients noted: notes alike make one
NOTES_MAX = 100_000  # of clients, looked at: a store that is down for an hour makes a million
ALIKE_CHARS = 160  # of a note, its numbers left out, that make it like another
HARNESS = "firedrill"
_NUMBERS = re.compile(r"\b[0-9a-f]{8,}\b|\d+(?:\.\d+)?")


@attrs.frozen(kw_only=True)
class HarnessAction:
    """A note, or ``times`` similar notes of which ``text`` is the first."""

    first: str
    last: str
    times: str
    who: str
    text: str


@attrs.frozen(kw_only=True)
class HarnessActions:
    """Rows for the page, and how many more notes of the harness and kinds of notes there are."""

    rows: tuple[HarnessAction, ...] = ()
    more: int = 0


def harness_actions(run_data: RunData) -> HarnessActions:
    """Return the harness's own notes in the order of time, then those of its clients, the rarest
    first: a lost connection says less than a single event. Nothing of an imported history.
    """
    if run_data.origin is not None:
        return HarnessActions()
    notes = run_data.history.notes()
    own = [_own(row) for row in notes.filter(pc.is_null(notes["process"])).to_pylist()]
    met = list(_met(notes.filter(pc.is_valid(notes["process"])).slice(0, NOTES_MAX)))
    rows = (*own[:OWN_MAX], *met[:MET_MAX])
    return HarnessActions(rows=rows, more=len(own) + len(met) - len(rows))


def of_faults(run_data: RunData) -> dict[int, str]:
    """Return by a fault's number the harness's actions about it, with the time."""
    if run_data.origin is not None:
        return {}
    notes = run_data.history.notes()
    told: dict[int, list[str]] = {}
    for row in notes.filter(pc.is_valid(notes["fault"])).to_pylist():
        text = f"{row['text']} (at {seconds(row['at_ns'])} s)"
        told.setdefault(row["fault"], []).append(text)
    return {number: "; ".join(texts) for number, texts in told.items()}


def _own(row: Mapping[str, Any]) -> HarnessAction:
    at = seconds(row["at_ns"])
    about = "" if row["fault"] is None else f"fault {row['fault']}: "
    return HarnessAction(first=at, last=at, times="1", who=HARNESS, text=about + row["text"])


def _met(notes: pa.Table) -> Iterator[HarnessAction]:
    alike: dict[str, list[Mapping[str, Any]]] = {}
    for row in notes.to_pylist():
        alike.setdefault(_NUMBERS.sub("#", row["text"])[:ALIKE_CHARS], []).append(row)
    for rows in sorted(alike.values(), key=len):  # stable: of equally many the earlier first
        processes = {row["process"] for row in rows}
        yield HarnessAction(
            first=seconds(rows[0]["at_ns"]),
            last=seconds(rows[-1]["at_ns"]),
            times=f"{len(rows):,}",
            who=f"client {processes.pop()}" if len(processes) == 1 else f"{len(processes)} clients",
            text=rows[0]["text"],
        )
