"""What a checker of one's own may give: anything else is that checker's trouble, by name, and the
findings of all others stand.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import attrs
import numpy as np
import pyarrow as pa
import pytest
from checker_histories import a, ok, r, write_run

from checkers.engine import analyze as analysis
from checkers.engine.chains import chains
from checkers.engine.plugin_contract import complete
from checkers.promises.lost_write import CHECKER as LOST_WRITE
from checkers.promises.replicas import CHECKER as REPLICAS
from harness import plugins
from harness.history.run_directory import RunDirectory
from harness.protocols.checker import Exchange, Kernel, Part
from harness.protocols.consistency_models import OBSERVED
from harness.protocols.verdict import Anomaly, Verdict

ANYTHING: Any = object()
LIST_APPEND: Any = plugins.load("checkers", "list-append")
LOSS = [ok(a(1, 1)), ok(a(1, 2)), ok(r(1, 1))]
TABLE = pa.table({"n": [1]})


def finding(**fields: Any) -> dict[str, Any]:
    return {"text": "wrong: it is", "txns": (0,), "keys": (1,)} | fields


def found(**fields: Any) -> Part:
    return Part(anomalies={"wrong": Anomaly(count=1, examples=(finding(**fields),))})


def counted(count: Any) -> Part:
    return Part(anomalies={"wrong": Anomaly(count=count, examples=(finding(),))})


def named(name: Any) -> Part:
    return Part(anomalies={name: Anomaly(count=1, examples=(finding(),))})


def leave(*_: object) -> Any:
    sys.exit(0)


@attrs.frozen
class Own:
    """A checker that gives what it is told to give."""

    part: Any = attrs.field(factory=Part)
    kernels: Any = ()
    name: str = "own"

    def judge(self, *_: object) -> Any:
        return self.part() if callable(self.part) else self.part


class Propertied:
    name = "own"

    @property
    def kernels(self) -> Any:
        raise ValueError("no kernels today")

    def judge(self, *_: object) -> Part:
        return Part()


class Leaving(Propertied):
    @property
    def kernels(self) -> Any:
        sys.exit(3)


def kernel(run: Any, exchange: Any = Exchange.KEY, **more: Any) -> Own:
    return Own(kernels=(Kernel(name="own.rows", exchange=exchange, run=run, **more),))


def gives(given: Any) -> Own:
    return kernel(lambda tables, setting: given)


@pytest.fixture
def judged(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[Any], Verdict]:
    """Judges a lost write beside a checker of one's own."""
    run: RunDirectory = write_run(tmp_path / "run", LOSS)
    theirs = analysis.checkers_named

    def verdict(own: Any) -> Verdict:
        monkeypatch.setattr(analysis, "checkers_named", lambda names: (*theirs(names), own))
        return analysis.analyze(run, executor="local")

    return verdict


BROKEN = {
    "nothing": (Own(None), "judge: expected a Part (got NoneType)"),
    "a generator": (Own(lambda: (part for part in (Part(),))), "judge: expected a Part"),
    "the end": (Own(leave), "SystemExit: 0"),
    "an outcome of its own": (Own(Part(outcome="great")), "Part.outcome: Invalid enum value"),
    "no outcome": (Own(Part(outcome=ANYTHING)), "Part.outcome: Encoding objects of type object"),
    "a regression": (Own(Part(outcome="regression")), "Part.outcome: expected one of valid"),
    "no reason": (Own(Part(outcome="violation")), "an anomaly or a reason beside a violation"),
    "letters": (Own(Part(reasons="why")), "Part.reasons: Expected `array`, got `str`"),
    "number of reasons": (Own(Part(reasons=(1,))), "Part.reasons: Expected `str`, got `int`"),
    "limits": (Own(Part(limits=3)), "Part.limits: Expected `array`, got `int`"),
    "list of anomalies": (Own(Part(anomalies=[])), "Part.anomalies: expected a mapping by name"),
    "no name": (Own(named("")), "Part.anomalies: expected texts for names (got '')"),
    "number for a name": (Own(named(7)), "Part.anomalies: expected texts for names (got 7)"),
    "half a character": (Own(named("a\udc80")), "Part.anomalies: expected texts for names"),
    "count of none": (Own(counted(0)), "anomaly 'wrong': count: expected an integer"),
    "negative count": (Own(counted(-3)), "anomaly 'wrong': count: expected an integer"),
    "count of numpy": (Own(counted(np.int64(1))), "anomaly 'wrong': count: expected an integer"),
    "half a count": (Own(counted(1.5)), "(got 1.5)"),
    "examples": (Own(Part(anomalies={"wrong": Anomaly(count=1, examples=("x",))})), "a Finding"),
    "number of an anomaly": (Own(Part(anomalies={"wrong": 3})), "expected an Anomaly (got int)"),
    "text of none": (Own(found(text="")), "anomaly 'wrong': expected an example with a text"),
    "half a text": (Own(found(text="a\ud800")), "anomaly 'wrong': example: 'utf-8'"),
    "huge key": (Own(found(keys=(2**70,))), "expected numbers of 64 bits (got 1.180592e+21)"),
    "details": (Own(found(what=ANYTHING)), "details: Encoding objects of type object"),
    "no meanings": (Own(attrs.evolve(found(), meanings=None)), "Part.meanings: expected a mapping"),
    "meaning": (
        Own(attrs.evolve(found(), meanings={"wrong": "OBSERVED"})),
        "Part.meanings: 'wrong': expected OBSERVED or breaking(...) (got str)",
    ),
    "statistics": (Own(Part(statistics={"own": ANYTHING})), "Part.statistics: Encoding objects"),
    "numbers": (Own(Part(statistics={"own": {1: 2}})), "Part.statistics: Only dicts with str keys"),
    "a path": (Own(Part(tables={"../own": TABLE})), "Part.tables: expected a pyarrow.Table under"),
    "two dots": (Own(Part(tables={"..": TABLE})), "(got Table '..')"),
    "no table": (Own(Part(tables={"own": 3})), "(got int 'own')"),
    "kernels": (Own(kernels=3), "kernels: expected a tuple (got int)"),
    "a kernel": (Own(kernels=(3,)), "kernels: expected a Kernel (got int)"),
    "a property": (Propertied(), "ValueError: no kernels today"),
    "a property's end": (Leaving(), "SystemExit: 3"),
    "exchange": (kernel(lambda *_: {}, "key?"), "kernel 'own.rows': exchange: expected Exchange"),
    "rows of nothing": (gives(None), "kernel 'own.rows': expected tables by name (got NoneType)"),
    "rows": (gives({"own": [1]}), "table 'own': expected a pyarrow.Table (got list)"),
    "the history": (gives({"micro_ops": TABLE}), "table 'micro_ops': there is one of this name"),
    "kernel's end": (kernel(leave), "SystemExit: 0"),
    "need": (
        kernel(lambda *_: {}, Exchange.EARLY, needed=lambda piece: 1 // 0),
        "ZeroDivisionError: integer division or modulo by zero",
    ),
}


@pytest.mark.parametrize("what", BROKEN)
def test_a_checker_that_breaks_its_protocol_gives_up_alone(
    what: str, judged: Callable[[Any], Verdict]
) -> None:
    own, why = BROKEN[what]

    verdict = judged(own)

    assert verdict.outcome == "violation"
    assert "lost-write" in verdict.anomalies
    (reason,) = [reason for reason in verdict.reasons if "own gave up" in reason]
    assert reason.startswith("checker own gave up: ")
    assert why in reason


LISTS = next(k for k in LIST_APPEND.kernels if k.exchange is Exchange.KEY)
TAKEN = {
    "a kernel": Own(kernels=(attrs.evolve(LISTS, run=lambda tables, setting: {}),)),
    "a kernel as a checker": Own(kernels=(attrs.evolve(LISTS, name="lost-write"),)),
    "a checker": Own(name="list-append"),
    "a checker as a kernel": Own(name=LISTS.name),
    "a checker without an entry point": Own(name=REPLICAS.name),
    "its own kernel": Own(
        kernels=tuple(
            Kernel(name="own.rows", exchange=Exchange.KEY, run=lambda *_, n=n: {}) for n in range(2)
        )
    ),
}


@pytest.mark.parametrize("what", TAKEN)
@pytest.mark.parametrize("first", [False, True])
def test_a_name_that_another_bears_breaks_the_plugin_alone(what: str, first: bool) -> None:
    own, rest = TAKEN[what], (LIST_APPEND, LOST_WRITE, REPLICAS)
    alone = chains(rest, (REPLICAS,))

    together = chains((own, *rest) if first else (*rest, own), (REPLICAS,))

    refused = together[0 if first else -1]
    assert (refused.checker, refused.kernels) == (own, ())
    assert "already" in (refused.refused or "")
    assert [chain for chain in together if chain is not refused] == list(alone)


def test_a_kernel_of_firedrills_is_shared() -> None:
    (_, shared) = chains((LIST_APPEND, Own(kernels=(attrs.evolve(LISTS),))), ())

    assert (shared.kernels, shared.refused) == ((LISTS,), None)


def test_a_checker_that_replaces_a_kernel_hides_no_violation(
    judged: Callable[[Any], Verdict],
) -> None:
    names = {k.name: k for k in (*LIST_APPEND.kernels, *LOST_WRITE.kernels)}
    empty = tuple(attrs.evolve(k, run=lambda tables, setting: {}) for k in names.values())

    verdict = judged(Own(kernels=empty))

    assert verdict.outcome == "violation"
    assert "lost-write" in verdict.anomalies
    (reason,) = [reason for reason in verdict.reasons if "gave up" in reason]
    assert reason.startswith("checker own gave up: kernel ")


def test_the_kernels_of_all_checkers_of_firedrill_have_one_name_each() -> None:
    every = [*map(partial(plugins.load, "checkers"), plugins.names("checkers")), *analysis.OWN]
    kernels: dict[str, Kernel] = {}
    for each in (kernel for checker in every for kernel in checker.kernels):
        assert kernels.setdefault(each.name, each) == each


@pytest.mark.parametrize("part", [Part(), found(), counted(2), Part(statistics={"own": {"n": 1}})])
def test_a_part_that_fits_is_kept(part: Part, judged: Callable[[Any], Verdict]) -> None:
    verdict = judged(Own(part))

    assert [reason for reason in verdict.reasons if "gave up" in reason] == []
    assert ("wrong" in verdict.anomalies) is bool(part.anomalies)


def test_a_name_is_a_text_and_its_meaning_stays() -> None:
    part = attrs.evolve(named("плохо: x"), meanings={"плохо: x": OBSERVED})

    assert complete("own", part).meanings == {"плохо: x": OBSERVED}
