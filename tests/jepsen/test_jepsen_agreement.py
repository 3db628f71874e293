"""Where the quick reader and the exact one both read a text, they read the same."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import msgspec
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from jepsen_files import edn_lines, generated, json_lines, small

from harness.importers.jepsen import quick_parser
from harness.importers.jepsen.edn import Notation
from harness.importers.jepsen.exact_parser import EdnForms, Forms, Found, JsonForms
from harness.importers.jepsen.operation_forms import Names, Refused, normalize

INTS = st.integers(-3, 12) | st.sampled_from([2**63 - 1, -(2**63), 2**63, 10**30])
NAMES = st.sampled_from(
    ["append", "r", "w", "txn", "type", "f", "value", "nil", "nil-x", "null", "a-nil", "ok", "x"]
)
SCALARS = INTS | st.none() | NAMES | st.booleans()
STEPS = st.tuples(
    st.sampled_from(["append", "r", "w"]) | NAMES,
    INTS | NAMES,
    INTS | st.none() | st.lists(INTS, max_size=3),
).map(list)
OPERATIONS = st.fixed_dictionaries(
    {
        "type": st.sampled_from(["invoke", "ok", "fail", "info"]) | NAMES,
        "f": st.just("txn") | NAMES,
        "value": st.lists(STEPS, max_size=3) | SCALARS,
        "process": st.integers(0, 3) | SCALARS,
    },
    optional={
        "index": st.integers(0, 9) | SCALARS,
        "time": st.integers(0, 9) | SCALARS,
        "error": SCALARS,
        "node": SCALARS,
    },
)
BLANKS = st.sampled_from([" ", ", ", ",", "  ", " , ", "\t", "\r\n"])
EDN_WORDS = """
{ } [ ] [[ ]] ][ nil null true a-b :type :ok :f :txn :value :process :index :time :error :append :r
:nil :a:b ::a :a/b : 0 1 -1 -0 +1 007 5N 1.5 1/2 2e3 \\c "s" #_ #x ; - :-
"""
EDN_PARTS = [
    " ",
    ",",
    "\n",
    "}\n{",
    "{:type :ok",
    ":f :txn",
    ":value [[:append 1 1]]",
    ":process 0",
]
EDN_TOKENS = st.sampled_from([*EDN_WORDS.split(), *EDN_PARTS])
JSON_WORDS = """
{ } [ ] : , " "a" null true NaN 0 1 -1 -0 007 1.5 2e3 "type":"ok" "f":"txn" "process":0 "index":3
"value":[["append",1,1]] "error":"a:b" "error":":x" "type":"fail"
"""
JSON_PARTS = [
    " ",
    "\n",
    "}\n{",
    '{"type":"ok",',
    '"f":"txn",',
    '"f":"txn","value":null,"process":0}',
]
JSON_TOKENS = st.sampled_from([*JSON_WORDS.split(), *JSON_PARTS])


def plain(operations: Any) -> Any:
    return json.loads(msgspec.json.encode(operations))


def exactly(text: str, forms: Forms) -> Any:
    """What the exact reader makes of the whole text, or the reason why it refuses."""
    found: Found = []
    try:
        forms.take(text, found, final=True)
        return plain([normalize(form, Names()) for form, _ in found])
    except (Notation, Refused) as error:
        return error


def require_agreement(
    text: str, read: Callable[[bytes], Any], forms: Forms, *, must_read: bool = False
) -> None:
    found = read(text.encode())
    if found is None:
        assert not must_read
        return
    assert plain(found) == exactly(text, forms)


def rendered(value: Any, blank: str) -> str:
    """As ``jepsen_files.edn``, with any blank between forms and odd names as keywords too."""
    match value:
        case str():
            return f":{value}"
        case list():
            return f"[{blank.join(rendered(part, blank) for part in value)}]"
        case None:
            return "nil"
        case bool():
            return "true" if value else "false"
        case _:
            return str(value)


@settings(max_examples=400, deadline=None)
@given(operations=st.lists(OPERATIONS, min_size=1, max_size=3), blank=BLANKS, data=st.data())
def test_operations_in_edn(
    operations: list[dict[str, Any]], blank: str, data: st.DataObject
) -> None:
    lines = []
    for operation in operations:
        fields = data.draw(st.permutations(sorted(operation)))
        parts = [part for f in fields for part in (f":{f}", rendered(operation[f], blank))]
        lines.append("{" + blank.join(parts) + "}")

    require_agreement("\n".join(lines) + "\n", quick_parser.edn_lines, EdnForms())


@settings(max_examples=400, deadline=None)
@given(operations=st.lists(OPERATIONS, min_size=1, max_size=3))
def test_operations_in_json(operations: list[dict[str, Any]]) -> None:
    text = "".join(json.dumps(operation) + "\n" for operation in operations)

    require_agreement(text, quick_parser.json_lines, JsonForms())


@settings(max_examples=1000, deadline=None)
@given(tokens=st.lists(EDN_TOKENS, max_size=20), whole=st.booleans())
@example(tokens=["{:type :ok", " ", ":f :txn", ":process 0", ":value null"], whole=True)
@example(tokens=["{:type :ok", " ", ":f :f", ":process 0 :value [[:f 1 1]]"], whole=True)
@example(tokens=["{:type :ok :f :txn", ":process 0 :value {:append 1 1}"], whole=True)
@example(tokens=["{:type :ok :f :txn", ":process 0 :value [{:append 1}]"], whole=True)
@example(tokens=["{:type :ok :f :txn", ":process 0 :value nil :error :nil-x"], whole=True)
@example(tokens=["{:type :ok :f :txn", ":process 0 :value nil :type :fail"], whole=True)
def test_any_tokens_of_edn(tokens: list[str], whole: bool) -> None:
    text = " ".join(tokens)

    require_agreement(text + "}\n" if whole else text, quick_parser.edn_lines, EdnForms())


@settings(max_examples=1000, deadline=None)
@given(tokens=st.lists(JSON_TOKENS, max_size=20))
@example(tokens=['{"type":"ok","f":"txn","value":null,"process":0,"process":0}'])
@example(tokens=['{"type":"ok","f":"txn","value":null,"process":0,"index":1,"index":1}'])
@example(tokens=['{"type":"ok","f":"txn","value":null,"process":0,"error":"a:b","type":"ok"}'])
@example(tokens=['{"type":"ok","f":"txn","value":null,"process":0,"error":"\\u0007\\u202e"}'])
def test_any_tokens_of_json(tokens: list[str]) -> None:
    require_agreement("".join(tokens), quick_parser.json_lines, JsonForms())


@pytest.mark.parametrize("operations", [small(), generated(100)])
def test_the_usual_layouts_are_read_quickly(operations: list[dict[str, Any]]) -> None:
    require_agreement(edn_lines(operations), quick_parser.edn_lines, EdnForms(), must_read=True)
    require_agreement(json_lines(operations), quick_parser.json_lines, JsonForms(), must_read=True)
