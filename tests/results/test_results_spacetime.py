"""The space-time diagram: what stands where, what is left out and told, what can't break it."""

from __future__ import annotations

import re
from itertools import pairwise
from typing import Any
from xml.etree import ElementTree as ET

import pytest
from hypothesis import given
from hypothesis import strategies as st

from results.drawing import spacetime
from results.drawing.axis import laid_out, merged
from results.drawing.spacetime import (
    CHOICES,
    FaultBand,
    Happening,
    Operation,
    Story,
    draw,
    family_of,
)

US = 1_000_000  # in a second
WHOLE = [(0.0, 1.0)]
FAULT = FaultBand(start_s=0.2, end_s=0.8, nodes=("n1",), text="kill of leader")
ACCUSED = Operation(start_s=0.1, end_s=0.3, node="n1", text="T7 append 1 2: ok")
STORY = Story(
    title=("a run", "lost write"),
    controller="controller",
    faults=(FAULT,),
    operations=(ACCUSED,),
    happenings=(Happening(at_s=0.5, node="n2", text="n2 leads p0"),),
)


def message(what: str = "p0 Append", *, at: float = 0.4, did: str = "message", **more: Any) -> Any:
    row = {"from_s": at, "at_s": at + 0.01, "node": "n1", "to": "n2", "did": did, "what": what}
    return row | more


def drawn(*rows: Any, story: Story = STORY, stretches: Any = WHOLE, **more: Any) -> ET.Element:
    svg, _ = draw(rows, story, stretches, **more)
    return ET.fromstring(svg)  # noqa: S314 (drawn a moment ago)


def words(svg: ET.Element) -> list[str]:
    return [element.text or "" for element in svg.iter() if element.tag.endswith("text")]


def test_lanes_fault_operation_and_what_the_store_said_are_named() -> None:
    said = words(drawn(message()))

    for text in ("a run", "lost write", "clients", "n1", "n2", "kill of leader", ACCUSED.text):
        assert text in said
    assert "n2 leads p0" in said
    assert "p0 Append" in said


def test_a_lost_message_ends_in_a_cross_and_others_in_an_arrow() -> None:
    def arrows(*rows: Any) -> tuple[int, int]:
        svg, _ = draw(rows, STORY, WHOLE)
        body = svg.split("<g clip-path", 1)[1].split("</g>", 1)[0]
        return body.count("marker-end"), body.count("l6,6 m0,-6")

    assert arrows(message()) == (1, 0)
    assert arrows(message(did="lost")) == (0, 1)


def test_what_is_not_asked_for_is_not_drawn_and_is_told() -> None:
    rows = [message("Ping"), message("Pong"), message("client AskStatus", to="controller")]

    assert "not drawn: 1 of observer, 2 of ping" in words(drawn(*rows))
    assert not [w for w in words(drawn(*rows, show=CHOICES)) if w.startswith("not drawn")]
    assert "n2" not in words(drawn(message(), nodes=("n1",)))


@pytest.mark.parametrize(
    ("what", "family"),
    [
        ("client Commit", "client"),
        ("client NodeReport", "observer"),
        ("PeerRequest Lock", "transaction"),
        ("PeerRequest Renew", "lease"),
        ("p1 VoteReply", "vote"),
        ("p1 Append, p0 VoteRequest", "vote"),
        ("metastorage AppendReply", "raft"),
        ("Pong", "ping"),
    ],
)
def test_messages_have_families(what: str, family: str) -> None:
    assert family_of(message(what)).name == family


def test_the_diagram_is_bounded_and_says_how_much_it_lacks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(spacetime, "MAX_DRAWN", 10)
    svg, left_out = draw([message() for _ in range(25)], STORY, WHOLE)

    assert left_out == 15
    assert svg.count("p0 Append, at") == 10


def test_names_cannot_become_markup() -> None:
    evil = '<script>alert("1")</script>\x00'
    story = Story(title=(evil,), faults=(FaultBand(start_s=0, end_s=1, nodes=("n1",), text=evil),))

    svg, _ = draw([message(evil)], story, WHOLE)

    ET.fromstring(svg)  # noqa: S314 (drawn a moment ago)
    assert "<script" not in svg


def test_only_the_asked_time_is_drawn() -> None:
    svg, _ = draw([message(at=0.4), message(at=5.0)], STORY, [(0.3, 0.5)])

    assert svg.count("p0 Append, at") == 1


@given(
    st.lists(
        st.tuples(st.integers(0, 100 * US), st.integers(1000, 50 * US)).map(
            lambda p: (p[0] / US, (p[0] + p[1]) / US)
        ),
        min_size=1,
        max_size=6,
    )
)
def test_stretches_lie_side_by_side_in_order_and_within_the_width(
    stretches: list[tuple[float, float]],
) -> None:
    together = merged(stretches, 0.1)
    spans = laid_out(together, 90, 1500)

    assert all(low[1] < high[0] for low, high in pairwise(together))
    assert all(low.right < high.left for low, high in pairwise(spans))
    assert spans[-1].right <= 1591
    for span in spans:
        assert span.x(span.start) == span.left
        assert abs(span.x(span.end) - span.right) < 0.2
        ticks = list(span.ticks())
        assert all(span.start - 1e-9 <= at_s <= span.end + 1e-9 for at_s, _ in ticks)
        assert len({text for _, text in ticks}) == len(ticks)
        assert all(re.fullmatch(r"\d+(\.\d+)?", text) for _, text in ticks)
