"""The page of all keys and the schema for editors are those of the code that reads plans."""

from __future__ import annotations

import json
import re
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any

import msgspec
import pytest
from jsonschema import Draft7Validator
from msgspec import Meta

from harness.errors import UsageError
from harness.plan.editor_schema import InstalledPlugins, NoStruct, Plugin, schema
from harness.plan.installed_plugins import first_sentence, installed
from harness.plan.key_reference import keys, page, unit
from harness.plan.plan import converted_options, load, options, options_type
from harness.protocols.targets import MEANINGS, Form, described

ROOT = Path(__file__).parents[2]
SCENARIOS = sorted((ROOT / "scenarios").glob("*/*.toml"))
AGAIN = "run 'make plan-reference' and commit what it writes"


@pytest.fixture(scope="module")
def own() -> InstalledPlugins:
    return installed(own=True)


@pytest.fixture(scope="module")
def made(own: InstalledPlugins) -> dict[str, Any]:
    return schema(own)


def test_the_page_and_the_schema_in_docs_are_those_of_the_code(
    own: InstalledPlugins, made: dict[str, Any]
) -> None:
    written = page(made, own.faults, described())
    kept = json.loads((ROOT / "docs" / "plan.schema.json").read_text())

    assert (ROOT / "docs" / "plan.md").read_text() == written, AGAIN
    assert kept == json.loads(json.dumps(made)), AGAIN


def test_every_key_and_every_plug_in_says_what_it_is(
    own: InstalledPlugins, made: dict[str, Any]
) -> None:
    silent = [
        path
        for title, table in tables(made)
        for path, meaning in ((key.path, key.meaning) for key in keys(table, made["definitions"]))
        if not meaning and path not in ("name", "kind")
    ]
    unnamed = [each.name for group in vars_of(own) for each in group if not each.text]

    assert (silent, unnamed) == ([], [])
    assert set(MEANINGS) == set(Form)


@pytest.mark.parametrize("path", SCENARIOS, ids=lambda path: f"{path.parent.name}/{path.stem}")
def test_every_key_of_every_scenario_is_in_the_schema_and_on_the_page(
    path: Path, made: dict[str, Any]
) -> None:
    plan = tomllib.loads(path.read_text())
    text = (ROOT / "docs" / "plan.md").read_text()

    assert [error.message for error in Draft7Validator(made).iter_errors(plan)] == []
    for key in dotted(plan):
        steps = key.split(".")
        names = (".".join(steps[at:]) for at in range(len(steps)))
        assert any(f"`{name}`" in text or f"`[{name}]`" in text for name in names), key


@pytest.mark.parametrize(
    "wrong",
    [
        {"drive": {"duration": 5}},
        {"drive": {"concurrency": 0}},
        {"workload": {"name": "bank", "key_count": 5}},
        {"workload": {"name": "banc"}},
        {"cluster": {"provider": "sim", "options": {"image": "x"}}},
        {"nemesis": {"mix": ["kil"]}},
        {"nemesis": {"schedule": [{"kind": "kill", "target": "n1"}]}},
        {"nemesis": {"schedule": [{"at_s": 1, "kind": "kill", "target": "n1", "options": {}}]}},
        {
            "nemesis": {
                "schedule": [{"at_s": 1, "kind": "crash", "target": "n1", "options": {"on": 1}}]
            }
        },
    ],
    ids=str,
)
def test_the_schema_refuses_what_the_command_refuses(
    wrong: dict[str, Any], made: dict[str, Any]
) -> None:
    assert list(Draft7Validator(made).iter_errors(wrong))


def test_a_plug_in_of_another_package_is_in_the_schema_with_its_own_keys() -> None:
    class Options(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
        counters: Annotated[int, Meta(ge=1, description="How many.")] = 8

    none = InstalledPlugins(
        systems=(),
        workloads=(Plugin(name="tally", options=Options), Plugin(name="silent")),
        providers=(),
        faults=(
            Plugin(name="kill", options=NoStruct.KEYLESS),
            Plugin(name="crashloop", options=Options),
            Plugin(name="broken"),
        ),
    )
    validator = Draft7Validator(schema(none))

    assert not list(validator.iter_errors({"workload": {"name": "tally", "counters": 3}}))
    assert list(validator.iter_errors({"workload": {"name": "tally", "counters": 0}}))
    # One that does not tell its keys may have any.
    assert not list(validator.iter_errors({"workload": {"name": "silent", "counters": 0}}))

    def accepts(kind: str, counters: int) -> bool:
        row = {"kind": kind, "target": "n1", "at_s": 1, "options": {"counters": counters}}
        return not list(validator.iter_errors({"nemesis": {"schedule": [row]}}))

    assert [accepts(kind, 3) for kind in ("kill", "crashloop", "broken")] == [False, True, True]
    assert [accepts(kind, 0) for kind in ("kill", "crashloop", "broken")] == [False, False, True]


def test_the_struct_of_a_plug_ins_keys_is_found_by_letting_its_code_come_to_it() -> None:
    class Options(msgspec.Struct, forbid_unknown_fields=True):
        number: int

    def build(table: dict[str, object]) -> object:
        return options(Options, table, "workload")

    def broken(table: dict[str, object]) -> object:
        raise KeyError("a bug of the plug-in")

    assert options_type(lambda: build({})) is Options
    assert options_type(lambda: broken({})) is None
    assert options_type(lambda: None) is None
    with converted_options() as found:
        build({"number": 7})
    assert found == {"workload": Options(number=7)}


def test_units_follow_from_names_and_lines_from_docstrings() -> None:
    assert [unit(name) for name in ("hold_s", "rate_per_s", "tick_ms", "disk_mib", "nodes")] == [
        *("s", "1/s", "ms", "MiB", ""),
    ]
    assert first_sentence("Kill it. Then start it.\n\nMore.") == "Kill it"
    assert first_sentence("") == ""


def tables(made: dict[str, Any]) -> Iterator[tuple[str, dict[str, Any]]]:
    """Every table of a plan that has keys of its own, by a name for messages."""
    yield "", {"properties": {k: v for k, v in made["properties"].items() if "type" in v}}
    for name in ("system", "workload"):
        for branch in made["properties"][name]["oneOf"]:
            yield name, branch
    for name, body in made["definitions"].items():
        yield name, body
        for branch in body.get("oneOf", ()):
            yield name, branch if "type" in branch else {}


def vars_of(own: InstalledPlugins) -> tuple[tuple[Plugin, ...], ...]:
    return own.systems, own.workloads, own.providers, own.faults


def dotted(table: dict[str, Any], within: str = "") -> Iterator[str]:
    """The dotted path of every value that a plan's file gives, schedules by their rows."""
    for name, value in table.items():
        path = f"{within}{name}"
        if isinstance(value, list) and value and isinstance(value[0], dict):
            for row in value:
                yield from dotted(row, f"{path}.")
        # Below these stand names of nodes, which are nobody's keys.
        elif isinstance(value, dict) and path not in ("system.attributes", "system.profiles"):
            yield from dotted(value, f"{path}.")
        else:
            yield path


def test_patterns_of_the_schema_are_those_of_editors_and_end_where_the_code_ends_them() -> None:
    # A regular expression of ECMAScript knows no other escape for an end.
    text = (ROOT / "docs" / "plan.schema.json").read_text()
    patterns = re.findall(r'"pattern": (".*")', text)
    assert len(patterns) > 2
    assert not [each for each in patterns if re.search(r"\\\\[AZz]", each)]
    with pytest.raises(UsageError, match="name"):
        load(None, {"name": "a\n"})
