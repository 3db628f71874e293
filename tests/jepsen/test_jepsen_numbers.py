"""Numbers of all kinds, at every place of an operation that takes one: what is an integer within
the bounds of its place is read as that, in EDN and JSON alike, and anything else is refused with
its line. Never is one rounded, wrapped or taken for a name.
"""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest

from checkers.engine.analyze import checkers_named, judge
from checkers.engine.source import Source
from harness.errors import MalformedHistory
from harness.exit_codes import Outcome
from harness.history.records import INT64_MAX, INT64_MIN
from harness.importers.jepsen.import_limits import LOWEST_KEY, TIME_LIMIT_NS
from harness.importers.jepsen.imported_history import ImportedHistory, read_jepsen
from harness.protocols.setting import Setting

EDN = """\
{:type :invoke, :f :txn, :process PROCESS, :time TIME, :index INDEX, :value [[:append KEY VALUE]]}
{:type :ok, :f :txn, :process PROCESS, :time 70000, :index 1001, :value [[:append KEY VALUE]]}
{:type :invoke, :f :txn, :process 1000, :time 80000, :index 1002, :value [[:r KEY nil]]}
{:type :ok, :f :txn, :process 1000, :time 90000, :index 1003, :value [[:r KEY [READ]]]}
"""
JSON = """\
{"type":"invoke","f":"txn","process":PROCESS,"time":TIME,"index":INDEX,"value":[["append",KEY,VALUE]]}
{"type":"ok","f":"txn","process":PROCESS,"time":70000,"index":1001,"value":[["append",KEY,VALUE]]}
{"type":"invoke","f":"txn","process":1000,"time":80000,"index":1002,"value":[["r",KEY,null]]}
{"type":"ok","f":"txn","process":1000,"time":90000,"index":1003,"value":[["r",KEY,[READ]]]}
"""
USUAL = {"PROCESS": "0", "TIME": "60000", "INDEX": "1000", "KEY": "5", "VALUE": "7", "READ": "7"}
BOUNDS = {
    "KEY": (LOWEST_KEY, INT64_MAX),
    "VALUE": (INT64_MIN, INT64_MAX),
    "READ": (INT64_MIN, INT64_MAX),
    "PROCESS": (INT64_MIN, INT64_MAX),
    "TIME": (-TIME_LIMIT_NS, 70_000),
    "INDEX": (0, 1000),
}
WRONG_EVERYWHERE = [
    *("1e400", "-1e400", "1e3", "1E+2", "1.0", "1.5", "-0.0", "0x10", "1_000"),
    *(str(INT64_MAX + 1), str(INT64_MIN - 1), str(1 << 64), "9" * 5_000, f"-{'9' * 5_000}"),
]
INTEGERS = {str(n): n for n in (0, 7, -1, 1000, INT64_MAX, INT64_MIN, LOWEST_KEY)} | {"-0": 0}
# What each format has besides; ``None`` is no integer.
OF_EDN = {
    **dict.fromkeys(("##NaN", "##Inf", "##-Inf", "1M", "1/2", "007", "1.0M", "##nan"), None),
    **{"1N": 1, "+7": 7, f"{'9' * 30}N": None},
}
OF_JSON = dict.fromkeys(("NaN", "Infinity", "-Infinity", "+7", "007", "1N"), None)


def read(directory: Path, form: str, template: str, place: str, number: str) -> ImportedHistory:
    text = template
    given = USUAL | {place: number} | ({"READ": number} if place == "VALUE" else {})
    for name, written in given.items():
        text = text.replace(name, written)
    path = directory / f"history.{form}"
    path.write_text(text)
    return read_jepsen(path)


def outcome_of(history: ImportedHistory) -> Outcome:
    splits = [history.micro_ops(number) for number in range(history.manifest.splits)]
    declaration = history.manifest.declaration
    return judge(
        Source.of_tables(history.transactions(), *splits),
        setting=Setting(model="strict-serializable", declaration=declaration, min_ok=1),
        checkers=checkers_named(history.manifest.checkers),
        faults=history.faults(),
        events=history.events(),
    ).verdict.outcome


def values_at(history: ImportedHistory, place: str) -> list[int]:
    splits = range(history.manifest.splits)  # a key is in one of them
    steps = pa.concat_tables([history.micro_ops(number) for number in splits])
    if place == "READ":
        return [each for read in steps["elements"].drop_null().to_pylist() for each in read]
    return steps[place.lower()].drop_null().unique().to_pylist()


@pytest.mark.parametrize("place", USUAL)
@pytest.mark.parametrize(
    ("form", "template", "numbers"), [("edn", EDN, OF_EDN), ("json", JSON, OF_JSON)]
)
def test_a_number_is_read_as_what_it_is_or_refused_with_its_line(
    form: str, template: str, numbers: dict[str, int | None], place: str, tmp_path: Path
) -> None:
    least, most = BOUNDS[place]
    for number, meant in (dict.fromkeys(WRONG_EVERYWHERE) | INTEGERS | numbers).items():
        if meant is None or not least <= meant <= most:
            with pytest.raises(MalformedHistory, match=r"history\.(edn|json) at line \d"):
                read(tmp_path, form, template, place, number)
            continue
        history = read(tmp_path, form, template, place, number)

        garbage = place == "READ" and meant != int(USUAL["VALUE"])
        assert outcome_of(history) is (Outcome.VIOLATION if garbage else Outcome.VALID), number
        if place in ("KEY", "VALUE", "READ"):  # the others are numbered anew
            assert values_at(history, place) == [meant], number
