"""A verdict is never larger than its readers take, whatever its checkers have to say."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest

from harness.errors import MalformedHistory
from harness.exit_codes import Outcome
from harness.history.run_directory import RunDirectory
from harness.protocols.finding import Finding, finding_of, stored
from harness.protocols.verdict import (
    MAX_BRACKETS,
    MAX_VERDICT_BYTES,
    Anomaly,
    Availability,
    FaultWindow,
    Verdict,
    encode,
    fitted,
    read_verdict,
)
from harness.text import brackets

LOST = Finding(text="lost write: 7", txns=(3, 1, 2), keys=(7,))
WINDOW = FaultWindow(
    fault=1,
    kind="kill",
    target="n1",
    nodes=("n1",),
    roles=(),
    start_ns=1,
    end_ns=None,
    ok=0,
    longest_gap_ns=2,
    longest_gap_at_ns=3,
    first_ok_after_inject_ns=None,
    first_ok_after_heal_ns=None,
)
WHOLE = Verdict(
    outcome=Outcome.VIOLATION,
    model="strict-serializable",
    anomalies={"lost-write": Anomaly(count=70_000, examples=(LOST,))},
    not_=("read-committed",),
    reasons=("lost-write (70000) breaks it",),
    statistics={"error": {"TIMEOUT": {"info": 3}}},
)


def deep(levels: int) -> object:
    found: object = 1
    for _ in range(levels):
        found = {"more": [found]}
    return found


def with_example(**fields: object) -> Verdict:
    lost = Anomaly(count=70_000, examples=(finding_of(stored(LOST) | fields),) * 5)
    return msgspec.structs.replace(WHOLE, anomalies={"lost-write": lost})


def with_fields(**fields: object) -> Verdict:
    return msgspec.structs.replace(WHOLE, **fields)


TOO_LARGE: dict[str, Callable[[], Verdict]] = {
    "a cycle of a million": lambda: with_example(txns=list(range(1_000_000))),
    "lists in lists": lambda: with_example(path=[["y" * 900] * 400] * 50),
    "lists five deep": lambda: with_example(path=_bushy(4)),
    "a text of ten million": lambda: with_example(text="\0" * 10_000_000),
    "nested 100,000 deep": lambda: with_example(more=deep(100_000)),
    "nested 20 deep and a megabyte wide": lambda: with_example(more=deep(20), x="x" * 9_000_000),
    "an error for each of 200,000 operations": lambda: with_fields(
        statistics={"error": {f"timeout at {n}": {"ok": n, "info": 0} for n in range(200_000)}}
    ),
    "a name of ten million": lambda: with_fields(statistics={"error": {"e" * 10_000_000: 1}}),
    "100,000 windows": lambda: with_fields(availability=Availability(windows=(WINDOW,) * 200_000)),
    "reasons without end": lambda: with_fields(reasons=("z" * 900,) * 100_000),
    "anomalies without end": lambda: with_fields(
        observed={f"a{n}": Anomaly(count=1, examples=(LOST,)) for n in range(60_000)}
    ),
    "a model of ten million": lambda: with_fields(model="m" * 10_000_000),
}


def _bushy(levels: int) -> list[object]:
    return [_bushy(levels - 1) if levels else 0] * 10


@pytest.mark.parametrize("name", TOO_LARGE)
def test_a_verdict_that_is_too_large_is_cut_says_so_and_can_be_read(
    name: str, tmp_path: Path
) -> None:
    run = RunDirectory(tmp_path)
    run.analysis.mkdir()

    cut = fitted(TOO_LARGE[name]())

    run.verdict.write_bytes(encode(cut))
    assert run.verdict.stat().st_size <= MAX_VERDICT_BYTES
    assert read_verdict(run) == cut
    assert cut.outcome is Outcome.VIOLATION
    assert "too large to be kept" in cut.reasons[0]
    assert encode(fitted(cut)) == encode(cut)
    if "all but its outcome" not in cut.reasons[0]:
        assert cut.anomalies["lost-write"].count == 70_000
        assert cut.not_ == ("read-committed",)


def test_a_verdict_of_too_many_lists_is_cut_and_one_that_was_sent_is_refused(
    tmp_path: Path,
) -> None:
    verdict = msgspec.structs.replace(WHOLE, statistics={"x": [[]] * (MAX_BRACKETS + 1)})
    assert len(encode(verdict)) <= MAX_VERDICT_BYTES
    cut = fitted(verdict)
    assert brackets(encode(cut)) <= MAX_BRACKETS
    assert cut.reasons[0].startswith("the verdict is too large to be kept whole")

    run = RunDirectory(tmp_path)
    run.analysis.mkdir()
    run.verdict.write_bytes(encode(verdict))
    with pytest.raises(MalformedHistory, match="expected at most 500000 lists and objects, found"):
        read_verdict(run)


def test_what_fits_is_kept_as_it_is() -> None:
    assert fitted(WHOLE) is WHOLE


def test_no_more_is_cut_than_must_be() -> None:
    cut = fitted(with_example(txns=list(range(1_000_000))))

    example = cut.anomalies["lost-write"].examples[0]
    assert example.txns == tuple(range(20_000))
    assert example.text == LOST.text
    assert cut.statistics == WHOLE.statistics


def test_equal_verdicts_are_cut_to_equal_bytes() -> None:
    errors = {f"timeout at {n}": n for n in range(400_000)}
    turned = dict(reversed(errors.items()))

    one, other = (fitted(with_fields(statistics={"error": e})) for e in (errors, turned))

    assert encode(one) == encode(other)


def test_one_byte_more_than_the_limit_is_refused_and_the_limit_is_not(tmp_path: Path) -> None:
    run = RunDirectory(tmp_path)
    run.analysis.mkdir()
    content = encode(WHOLE)
    run.verdict.write_bytes(content + b" " * (MAX_VERDICT_BYTES - len(content)))
    assert read_verdict(run) == WHOLE

    with run.verdict.open("ab") as file:
        file.write(b" ")
    with pytest.raises(MalformedHistory, match="expected at most"):
        read_verdict(run)
