"""Plans of strangers: whatever a file of a megabyte holds, reading it takes time and memory in
proportion.
"""

from __future__ import annotations

import tomllib
import tracemalloc
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.errors import PlanError
from harness.plan import planfile
from harness.plan.planfile import MAX_KEY_PARTS, MAX_PLAN_BYTES, parse

LONG = ".".join(["a"] * (MAX_KEY_PARTS + 1))
TOO_LONG = f"a key of more than {MAX_KEY_PARTS} parts"


@pytest.mark.parametrize(
    "line",
    [
        "{key} = 1",
        "[{key}]",
        "[[{key}]]",
        "x = {{ y = 1, {key} = 2 }}",
        "x = [ '''a'''', {{ {key} = 2 }} ]",
        'x = [ """a"""", {{ {key} = 2 }} ]',
        'x = [ """\\\\""", {{ {key} = 2 }} ]',
        "x = 'a#' # no key: a.b\n{key} = 1",
    ],
)
def test_a_key_of_too_many_parts_is_refused_before_a_toml_reader_sees_it(line: str) -> None:
    # A reader of TOML takes this for what it is: the refusal is not one of its own.
    tomllib.loads(line.format(key=LONG))

    with pytest.raises(PlanError, match=f"p.toml: line [12]: {TOO_LONG}"):
        parse(line.format(key=LONG), "p.toml")


@pytest.mark.parametrize("dot", [".", " . ", "\t.", '."b".', ".'b\"'."])
def test_as_many_parts_as_fill_a_plan_are_refused_as_well(dot: str) -> None:
    count = (MAX_PLAN_BYTES - 10) // (1 + len(dot))

    with pytest.raises(PlanError, match=TOO_LONG):
        parse(f"{dot.join(['a'] * count)} = 1", "p.toml")


@pytest.mark.parametrize(
    "text",
    [
        f"{LONG.removesuffix('.a')} = 1",
        f'x = "{LONG}"',
        f"x = '{LONG}'",
        f'x = """\n{LONG} = 1\n\\""" {LONG}"""',
        f"x = '''\n{LONG} = 1\n'''",
        f"# {LONG} = 1",
        f"x = [{'1.5, ' * 100}]",
        f"'{LONG}' = 1",
    ],
)
def test_dots_that_join_no_parts_of_a_key_are_no_matter(text: str) -> None:
    # The depth of what is read has a limit of its own, which the first of these meets exactly.
    assert parse(text, "p.toml") == tomllib.loads(text)


@given(texts=st.lists(st.text("a.\"'\\ #=\n", max_size=12), min_size=1, max_size=4))
def test_no_text_hides_a_key_that_a_toml_reader_finds(texts: list[str]) -> None:
    text = f"x = [ {', '.join(texts)}, {{ {LONG} = 'found' }} ]"
    try:
        read = tomllib.loads(text)
    except tomllib.TOMLDecodeError:
        return
    if not _holds(read, "found"):  # it is in a comment or in a string there
        return

    with pytest.raises(PlanError, match=TOO_LONG):
        parse(text, "p.toml")


@given(value=st.text("a.\"'\\ #=\n", max_size=20), quote=st.sampled_from(['"""', "'''"]))
def test_no_string_hides_a_key_behind_it(value: str, quote: str) -> None:
    text = f"x = [ {quote}{value}{quote}, {{ {LONG} = 'found' }} ]"
    try:
        read = tomllib.loads(text)
    except tomllib.TOMLDecodeError:
        return
    if not _holds(read, "found"):
        return

    with pytest.raises(PlanError, match=TOO_LONG):
        parse(text, "p.toml")


def test_many_keys_below_a_long_one_are_read_within_their_size() -> None:
    text = f"[{'a' * 20_000}]\n" + "".join(f"k{number} = 1\n" for number in range(5_000))
    tracemalloc.start()
    try:
        table = parse(text, "p.toml")
        _, most_bytes = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()

    assert len(table["a" * 20_000]) == 5_000
    # A path for each of them would take a hundred megabytes.
    assert most_bytes < 20 << 20


def test_what_is_too_deep_or_too_large_is_named_with_its_path() -> None:
    deep: Any = 1
    for _ in range(planfile.MAX_DEPTH):
        deep = [deep]

    with pytest.raises(PlanError, match=r"x\[0\]\[0\]") as refused:
        planfile.require_shape({"x": deep}, "")
    assert "nested too deeply" in str(refused.value)
    with pytest.raises(PlanError, match=r"top\.x\[1\]\.y"):
        planfile.require_shape({"x": [0, {"y": 1 << 64}]}, "top")


def _holds(table: object, wanted: str) -> bool:
    if isinstance(table, dict):
        return any(_holds(inner, wanted) for inner in table.values())
    if isinstance(table, list):
        return any(_holds(inner, wanted) for inner in table)
    return table == wanted
