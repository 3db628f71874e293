"""What a node of release 3.1.0 writes, and what is read out of it: whole lines, as nodes wrote them
in drills, but the last five, which no drill has shown: these are the release's texts, filled in.
"""

from __future__ import annotations

from pathlib import Path

from clusters.ignite3 import logline

GOLDEN = Path(__file__).with_name("golden")
LINES = (GOLDEN / "lines-3.1.0.txt").read_text().splitlines()
EVENTS = (GOLDEN / "events-3.1.0.txt").read_text().splitlines()


def told(line: str) -> str:
    """The event of ``line``: kind, partition, term and text; a dash where it is none."""
    found = logline.parse_line(line)
    if found is None:
        return "-"
    return f"{found.kind} | {found.partition} | {found.term} | {found.text}"


def test_lines_of_real_nodes_are_the_events_that_they_were() -> None:
    assert [told(line) for line in LINES] == EVENTS


def test_every_rule_is_the_first_to_know_some_line() -> None:
    unread = {make.__name__ for *_, make in logline._RULES}

    for line in LINES:
        head = logline._HEAD.match(line)
        assert head is not None
        unread.discard(first_to_know(head[6]))

    assert unread == set()


def first_to_know(message: str) -> str:
    """The rule that reads ``message``, by what it makes of it."""
    return next(
        make.__name__
        for start, pattern, make in logline._RULES
        if message.startswith(start) and pattern.match(message)
    )
