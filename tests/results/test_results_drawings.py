"""Drawings of anomalies: what is there, where it stands, and that nothing in it is active."""

from __future__ import annotations

import re
from typing import Any
from xml.etree import ElementTree as ET

import attrs
import numpy as np
import pytest
from markupsafe import Markup

from harness.history.records import OpType
from harness.protocols.finding import Dependency, Finding
from harness.text import duration
from results.drawing import axis, cycle, lanes, plots
from results.drawing.axis import PLACES, SECONDS, scale_of
from results.drawing.lanes import Stage, Tick, Window
from results.drawing.operation_texts import MicroOpFormat, parting
from results.drawing.series import NO_OUTCOMES, Outcomes, from_foot
from results.drawing.svg import tag, text, width_px
from results.report import plot_data
from results.report.finding_cards import _places

HOSTILE = '"><script>alert(1)</script>\x1b\u202e&'
MS = 1_000_000


def op(txn: int, *steps: tuple[str, int, Any], type_: str = "ok", **more: Any) -> dict[str, Any]:
    """A transaction as ``Material`` gives it, a millisecond long and 10 ms after the one before."""
    row = {
        "txn": txn,
        "process": txn % 5,
        "node": "n1",
        "type": type_,
        "invoke_ns": txn * 10 * MS,
        "complete_ns": (txn * 10 + 1) * MS,
        "invoke_index": 2 * txn,
        "complete_index": 2 * txn + 1,
        "ops": [
            {
                "f": f,
                "key": key,
                "value": None if isinstance(value, list) else value,
                "elements": value if isinstance(value, list) else None,
            }
            for f, key, value in steps
        ],
    }
    return row | more


def ring(count: int) -> tuple[Dependency, ...]:
    """A cycle of ``count`` transactions."""
    return tuple(
        Dependency(kind="rw", source=n, target=(n + 1) % count, key=n, element=100 + n)
        for n in range(count)
    )


def parsed(drawing: Markup) -> ET.Element:
    """The drawing as elements; nothing in it is styled inline, active or from elsewhere."""
    root = ET.fromstring(str(drawing))  # noqa: S314 (our own, made a moment ago)
    for element in root.iter():
        assert element.tag in {"svg", "g", "rect", "text", "polyline", "polygon", "path"}
        assert not {"style", "href", "onload"} & set(element.attrib)
    return root


def words(drawing: Markup) -> list[str]:
    return [element.text or "" for element in parsed(drawing).iter("text")]


def boxes(drawing: Markup) -> list[tuple[float, float, float, float]]:
    return [
        tuple(float(element.attrib[name]) for name in ("x", "y", "width", "height"))
        for element in parsed(drawing).iter("rect")
        if element.attrib["class"] in {"g-box", "g-rest"}
    ]


@pytest.mark.parametrize("count", range(2, 13))
def test_a_cycle_shows_every_transaction_inside_the_picture_and_none_on_another(count) -> None:
    operations = {n: op(n, ("append", n, 100 + n)) for n in range(count)}

    drawing = cycle.draw(ring(count), operations, MicroOpFormat())

    found = boxes(drawing)
    assert len(found) == count
    _, _, width, height = map(float, parsed(drawing).attrib["viewBox"].split())
    for n, (x, y, w, h) in enumerate(found):
        assert x >= 0
        assert y >= 0
        assert x + w <= width
        assert y + h <= height
        for a, b, c, d in found[n + 1 :]:
            assert x + w < a or a + c < x or y + h < b or b + d < y
    said = words(drawing)
    assert [f"T{n}" for n in range(count)] == [word for word in said if re.fullmatch(r"T\d+", word)]
    emphasised = [e for e in parsed(drawing).iter("polyline") if "g-yet" in e.attrib["class"]]
    assert len(emphasised) == 1, "the contradiction, and nothing else"


def test_a_long_cycle_is_cut_and_says_how_much_is_left_out() -> None:
    drawing = cycle.draw(ring(20), {}, MicroOpFormat())

    assert len(boxes(drawing)) == 12
    assert "9 more" in words(drawing)


def test_edges_are_told_with_key_and_value_and_keys_by_their_names() -> None:
    edges = (
        Dependency(kind="wr", source=1, target=2, key=7, element=31),
        Dependency(kind="process", source=2, target=3),
        Dependency(kind="rw", source=3, target=1, key=8, element=5),
    )
    operations = {n: op(n, ("r", 7, [31])) for n in (1, 2, 3)}

    said = words(cycle.draw(edges, operations, MicroOpFormat(names={8: ":x"})))

    for told in ("wr", "key 7", "31 seen", "2 ran it first", "key :x, 5 not seen"):
        assert told in said


@pytest.mark.parametrize("pairs", [[], [(1, 2)], [(1, 1)], [(1, 2), (3, 1)], [(1, 2), (2, 3)]])
def test_what_is_no_closed_cycle_is_not_drawn(pairs: list[tuple[int, int]]) -> None:
    assert not cycle.closed([Dependency(kind="ww", source=a, target=b) for a, b in pairs])
    assert cycle.closed(ring(2))


def stage(*rows: dict[str, Any], **more: Any) -> Stage:
    values = {"faults": (), "ticks": (), "telling": MicroOpFormat(), "scale": SECONDS} | more
    return Stage(operations=rows, **values)


def test_each_process_has_a_lane_and_each_outcome_a_shape_of_its_own() -> None:
    rows = [
        op(1, ("append", 7, 31)),
        op(2, ("append", 7, 32), type_="fail"),
        op(3, ("append", 7, 33), type_="info"),
        op(6, ("r", 7, [31]), process=1),
    ]

    drawing = lanes.draw(stage(*rows))

    said = words(drawing)
    assert [word for word in said if word.startswith("process")] == [
        "process 1", "process 2", "process 3",
    ]  # fmt: skip
    assert "T1  append 7 31" in said
    assert "T6  r 7 [31]" in said
    bars = {e.attrib["class"]: e for e in parsed(drawing).iter("rect")}
    assert {"g-bar-ok", "g-bar-fail", "g-open"} <= set(bars)
    unknown = bars["g-open"].attrib
    assert float(unknown["x"]) + float(unknown["width"]) == lanes.RIGHT, "open to the right"


def test_where_no_outcome_is_known_the_axis_reaches_to_the_moment_at_which_the_client_gave_up() -> (
    None
):
    row = op(1, ("append", 7, 31), type_="info", complete_ns=(10 + 600) * MS)
    pause = Window(number=1, label="pause n1", start=100 * MS, end=5000 * MS)

    drawing = lanes.draw(stage(row, faults=(pause,)))

    said = words(drawing)
    assert any(re.fullmatch(r"\+\d00 ms", word) for word in said), said
    assert not any(word.endswith(" ns") for word in said)
    assert "1 pause n1" in said, "it was in force meanwhile"


def test_long_numbers_of_processes_stay_inside_the_picture() -> None:
    said = words(lanes.draw(stage(op(1, ("r", 7, []), process=130_000_009))))

    assert "130000009" in said
    assert "process 1" in words(lanes.draw(stage(op(1, ("r", 7, [])))))


def test_long_lists_are_shown_where_the_element_in_question_stands() -> None:
    rows = [op(1, ("r", 7, list(range(100, 200))))]

    assert _places(Finding(text="", txns=(), keys=(), element=120), (7,), rows) == {7: 20}
    assert _places(Finding(text="", txns=(), keys=(), element=5), (7,), rows) == {}
    assert _places(Finding(text="", txns=(), keys=()), (7,), rows) == {}


def test_faults_in_force_are_shaded_and_named_and_others_left_out() -> None:
    near = Window(number=0, label="kill n1", start=5 * MS, end=12 * MS)
    far = Window(number=1, label="partition n2", start=900_000 * MS, end=900_001 * MS)
    row = op(1, ("append", 7, 31))

    drawing = lanes.draw(stage(row, faults=(near, far)))
    explained = lanes.draw(stage(row, faults=(near, far), explained_by=1))

    assert "0 kill n1" in words(drawing)
    assert "1 partition n2" not in words(drawing)
    assert "1 partition n2" in words(explained), "what explains it is always on the axis"


def test_the_name_of_a_fault_stands_on_none_of_its_hatching() -> None:
    """Where its effect or its healing was not proven yet no word can be read."""
    unsure = ((2 * MS, 9 * MS), (21 * MS, 22 * MS))
    hatched = Window(number=0, label="kill n1", start=2 * MS, end=22 * MS, unsure=unsure)
    plain = attrs.evolve(hatched, unsure=())
    rows = [op(n, ("append", 7, n)) for n in range(3)]

    beside, first = (
        next(e for e in parsed(lanes.draw(stage(*rows, faults=(f,)))).iter("text")
             if e.text == "0 kill n1")
        for f in (hatched, plain)
    )  # fmt: skip
    drawing = parsed(lanes.draw(stage(*rows, faults=(hatched,))))
    lines = [e.attrib["d"] for e in drawing.iter("path") if e.attrib["class"] == "g-hatch"]
    xs = [[float(x) for x in re.findall(r"[ML]([\d.]+),", d)] for d in lines]

    assert len(xs) == 2
    assert float(beside.attrib["x"]) > max(xs[0])
    assert float(beside.attrib["x"]) + width_px("0 kill n1") < min(xs[1])
    assert float(first.attrib["x"]) < float(beside.attrib["x"]), "without hatching at its begin"


def test_the_name_of_a_fault_that_is_hatched_all_over_stands_on_a_plate_and_beside_no_drawing() -> (
    None
):
    whole = Window(number=1, label="partition n5", start=0, end=90 * MS, unsure=((0, 90 * MS),))
    rows = [op(n, ("append", 7, n)) for n in range(1, 9)]

    drawing = parsed(lanes.draw(stage(*rows, faults=(whole,))))

    (name,) = [e for e in drawing.iter("text") if e.text == "1 partition n5"]
    plate = [e for e in drawing.iter("rect") if e.attrib["class"] == "g-fault"][-1].attrib
    left, width = float(plate["x"]), float(plate["width"])
    assert lanes.LEFT <= left <= float(name.attrib["x"])
    assert float(name.attrib["x"]) + width_px("1 partition n5") <= left + width < lanes.RIGHT
    assert name.attrib["class"] == "g-fault-text"


def test_events_are_ticks_numbered_as_their_table() -> None:
    ticks = [Tick(at=10 * MS, number=1), Tick(at=10 * MS + 9, number=2), Tick(at=11 * MS, number=3)]

    said = words(lanes.draw(stage(op(1, ("append", 7, 31)), ticks=ticks)))

    assert "1-2" in said
    assert "3" in said
    assert "store" in said
    assert "store" not in words(lanes.draw(stage(op(1, ("append", 7, 31)))))


def test_idle_time_is_cut_and_told_and_busy_time_is_not() -> None:
    early, late = op(1, ("append", 7, 31)), op(4000, ("r", 7, []))

    apart = words(lanes.draw(stage(early, late)))
    together = words(lanes.draw(stage(early, op(2, ("r", 7, []), invoke_ns=11 * MS))))

    assert "40 s" in apart
    assert "40 s" not in together


def test_a_history_without_times_is_drawn_by_index() -> None:
    said = words(lanes.draw(stage(op(1, ("append", 7, 31)), op(2, ("r", 7, [])), scale=PLACES)))

    assert not [word for word in said if word.endswith("s") and word[0] in "+0123456789"]
    assert any(word.startswith("+") for word in said)


def test_equal_anomalies_draw_equal_bytes_and_hostile_text_stays_text() -> None:
    rows = [op(n, ("append", 7, n), node=HOSTILE) for n in range(4)]
    fault = Window(number=0, label=HOSTILE, start=0, end=50 * MS)
    told = MicroOpFormat(names={7: HOSTILE})

    first = lanes.draw(stage(*rows, faults=(fault,), telling=told))

    assert first == lanes.draw(stage(*rows, faults=(fault,), telling=told))
    assert "<script" not in first
    parsed(first)
    ringed = cycle.draw(ring(4), dict(enumerate(rows)), told)
    assert "<script" not in ringed
    parsed(ringed)


def test_markup_is_made_of_escaped_attributes_and_inert_text() -> None:
    assert tag("rect", x=1.26, class_='a"b') == '<rect x="1.3" class="a&#34;b"/>'
    assert text("<b>\x1b", 1, 2) == '<text x="1" y="2">&lt;b&gt;\\x1b</text>'


def test_an_axis_ascends_and_keeps_what_is_outside_at_its_edges() -> None:
    found = axis.axis_of([(0, 10), (1_000, 1_010), (5_000, 5_003)], 100.0, 900.0)

    xs = [found.x(at) for at in range(-50, 5_100, 7)]
    assert xs == sorted(xs)
    assert xs[0] == 100.0
    assert xs[-1] == 900.0
    assert [segment.cut for segment in found.segments] == [False, True, False, True, False]
    single = axis.axis_of([(7, 7)], 0.0, 10.0)
    assert 0.0 < single.x(7) < 10.0


@pytest.mark.parametrize(
    ("length_ns", "told", "unit"),
    [
        (13, "13 ns", "ns"),
        (1_500, "1.5 µs", "ns"),
        (45_500_000, "45.5 ms", "ms"),
        (44_900_000_000, "44.9 s", "s"),
        (500_000_000_000, "500 s", "s"),
    ],
)
def test_times_are_told_in_the_unit_of_their_span(length_ns, told, unit) -> None:
    assert duration(length_ns) == told
    assert scale_of(length_ns).unit == unit


def test_lists_in_drawings_are_short_and_in_tables_say_what_is_left_out() -> None:
    row = op(1, ("r", 7, list(range(40))), ("cas", 8, [1, 2]))

    assert MicroOpFormat().brief(row["ops"][0], 3) == "r 7 [… 37 38 39]"
    assert MicroOpFormat().step(row["ops"][0]).startswith("r 7 [… 26 before, 26 27")
    assert MicroOpFormat().step(row["ops"][1]) == "cas 8 1 → 2"
    assert parting([row]) == {}


def test_operations_that_took_no_time_leave_the_others_their_room() -> None:
    at = np.arange(3, dtype=np.float64)
    served = Outcomes(invoke_s=at, complete_s=at, latency_s=np.array([0.004, 0.02, 1.0]))
    refused = Outcomes(invoke_s=at, complete_s=at, latency_s=np.array([1e-9, 1e-9, 0.5]))

    drawn = from_foot([served, refused, NO_OUTCOMES])

    assert drawn[0].latency_s.tolist() == [0.004, 0.02, 1.0]
    assert drawn[1].latency_s.tolist() == [0.002, 0.002, 0.5]
    assert from_foot([NO_OUTCOMES])[0].latency_s.size == 0


def outcomes(*at_s: float) -> Outcomes:
    at = np.array(at_s)
    return Outcomes(invoke_s=at, complete_s=at + 0.1, latency_s=np.full(len(at), 0.1))


def scene(**more: Any) -> plots.Scene:
    served = dict.fromkeys(OpType, NO_OUTCOMES) | {OpType.OK: outcomes(1.0, 5.0)}
    return plots.Scene(**{"operations": served, "faults": (), "phases": (), **more})


def test_a_livelock_at_the_end_is_in_the_picture() -> None:
    """From 5 s on all transactions give way to each other."""
    conflicts = outcomes(*np.arange(4.0, 30.0, 0.5))

    start_s, end_s = scene(conflicts=conflicts).span_s()
    drawn = plots.draw(scene(conflicts=conflicts))

    assert (start_s, end_s) == (1.0, pytest.approx(29.6))
    assert drawn.start_s < 1.0 < 29.6 < drawn.end_s
    assert scene().span_s() == (1.0, pytest.approx(5.1))


def test_conflicts_of_which_not_all_are_drawn_are_noted_as_other_operations_are(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(plots, "POINTS_MAX", 10)

    many = plots.draw(scene(conflicts=outcomes(*np.arange(1.0, 4.0, 0.1)))).notes
    few = plots.draw(scene(conflicts=outcomes(2.0, 3.0))).notes

    assert many == ("Of the conflict operations one in 3 is drawn; the lines count all.",)
    assert few == ()


def test_faults_that_are_drawn_and_not_told_under_the_pointer_are_counted() -> None:
    def faults(count: int) -> tuple[plots.FaultWindow, ...]:
        return tuple(
            plots.FaultWindow(number=n, kind="kill", label="kill", start_s=n, end_s=n + 0.5)
            for n in range(count)
        )

    told = plot_data.notes(scene(faults=faults(302)))

    assert told == ("Under the pointer are the first 300 faults; 2 more are drawn alone.",)
    assert plot_data.notes(scene(faults=faults(300))) == ()
