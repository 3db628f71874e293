"""Events of nodes on the run's axis: asked for, or read from a log; each once."""

from __future__ import annotations

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from clusters.reference.event_feed import Answer, EventFeed
from clusters.reference.node.events import line_of, parse_line
from clusters.reference.node.wire.reports import AskEvents, EventBatch, NodeEvent, ResetReport
from harness.history.records import EventKind, StartDecision

HEAD = "2026-01-02T03:04:05.678 INFO node.events: "


def event(seq: int, wall_ns: int = 1_000_000_500, boot: str = "b", text: str = "why") -> NodeEvent:
    return NodeEvent(seq, "leader-elected", wall_ns, boot, 3, 7, text)


def answer(*events: NodeEvent, boot: str = "b", wall_ns: int = 1_000_001_000) -> Answer:
    cursor = events[-1].seq if events else 0
    batch = EventBatch(boot=boot, wall_ns=wall_ns, cursor=cursor, events=events)
    return Answer(batch, asked_ns=200, answered_ns=300)


def line(told: NodeEvent) -> str:
    return HEAD + line_of(told)


def test_events_are_mapped_from_the_round_trip() -> None:
    [mapped] = EventFeed().take("n1", answer(event(1)))

    assert mapped.kind is EventKind.LEADER_ELECTED
    assert mapped.at_ns == 250 - 500
    assert mapped.uncertainty_ns == 50
    assert (mapped.partition, mapped.term, mapped.node) == (3, 7, "n1")


def test_what_was_decided_and_about_whom_is_mapped() -> None:
    told = msgspec.structs.replace(event(1), decision="erases", about="n4")

    [mapped] = EventFeed().take("n1", answer(told))

    assert (mapped.decision, mapped.about) == (StartDecision.ERASES, "n4")
    later = msgspec.structs.replace(told, seq=2, decision="moves")
    assert [each.decision for each in EventFeed().take("n1", answer(later))] == [None]


@given(
    partition=st.none() | st.integers(-1, 1023),
    term=st.none() | st.integers(0, 2**59),
    seq=st.integers(1, 2**59),
    wall_ns=st.integers(0, 2**62),
    text=st.text(),
    generation=st.none() | st.integers(1, 2**59),
    reset=st.none() | st.just(ResetReport(2, 1, 70, 3, ("n1", "n4"))),
    decision=st.none() | st.sampled_from(StartDecision).map(str),
    about=st.none() | st.just("n4"),
)
def test_a_line_of_the_log_is_the_whole_event(
    partition: int | None,
    term: int | None,
    seq: int,
    wall_ns: int,
    text: str,
    generation: int | None,
    reset: ResetReport | None,
    decision: str | None,
    about: str | None,
) -> None:
    told = NodeEvent(
        *(seq, "torn-tail", wall_ns, "b-1", partition, term, text, generation, reset),
        decision=decision,
        about=about,
    )

    [logged] = line(told).splitlines()

    one_line = msgspec.structs.replace(told, text=" ".join(text.split()))
    assert parse_line(logged) == one_line


def test_what_is_no_line_of_an_event_tells_of_none() -> None:
    whole = line(event(1))

    assert parse_line(whole) == event(1)
    for other in ("", "2026 INFO node: started", line_of(event(1)), f"2026 INFO node: {whole}"):
        assert parse_line(other) is None
    strange = line(msgspec.structs.replace(event(1), decision="era"))
    assert parse_line(strange) is None
    torn = [parse_line(whole[:length]) for length in range(len(whole))]
    assert set(torn) == {None}


def test_a_log_tells_only_what_nobody_was_told_yet() -> None:
    feed = EventFeed()
    feed.take("n1", answer(event(1), event(2)))
    log = [line(event(n)) for n in (1, 2, 3)] + [line(event(1, boot="next"))]

    assert feed.question("n1") == AskEvents("b", 2)
    assert [(e.boot, e.at_ns) for e in feed.read("n1", log)] == [("b", -250), ("next", -250)]
    assert feed.read("n1", log) == []


def test_an_event_of_a_log_is_mapped_by_the_nearest_answer() -> None:
    feed = EventFeed()
    second_ns = 1_000_000_000
    feed.take("n1", answer(boot="b", wall_ns=0))
    feed.take("n1", answer(boot="c", wall_ns=60 * second_ns))

    [early, late] = feed.read(
        "n1", [line(event(1, wall_ns=second_ns)), line(event(2, wall_ns=59 * second_ns))]
    )

    assert (early.at_ns, late.at_ns) == (second_ns + 250, 250 - second_ns)
    assert early.uncertainty_ns == late.uncertainty_ns == 50 + second_ns // 10_000


def test_where_a_node_never_answered_nobody_knows_its_clock() -> None:
    feed = EventFeed()
    feed.take("n2", answer(event(1)))

    assert feed.read("n1", [line(event(1))]) == []


def test_a_kind_that_the_harness_does_not_know_is_left_in_the_log() -> None:
    feed = EventFeed()
    feed.take("n1", answer())
    odd = NodeEvent(4, "no-such-kind", 1, "b", None, None, "")

    assert feed.read("n1", [line(odd)]) == []
