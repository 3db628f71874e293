"""What the code refuses of a key's value by itself the schema refuses, too, and nothing else."""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping
from typing import Any

import attrs
import pytest
import tomli_w
from jsonschema import Draft7Validator

from cli.wiring import resolve
from harness.errors import UsageError
from harness.plan.editor_schema import schema
from harness.plan.installed_plugins import installed
from harness.plan.plan import loads

MADE = schema(installed(own=True))
VALIDATOR = Draft7Validator(MADE)
LARGEST = (1 << 63) - 1
NUMBERS = (-LARGEST - 1, -1000, -1, 0, 1, 2, 1000, 1 << 32, LARGEST)
WORDS = ("", "no-such-thing", "x" * 5000)
WEEK_S = 7 * 86_400.0

# What a value is refused for that no schema of one key can know.
BY_OTHERS = {
    "a role of the cluster": ("target", "by"),
    "a class that the store reads, with an operation": ("messages",),
    "the kinds of the chosen system": ("workload.read_kinds[0]", "workload.once_kinds[0]"),
    "SQL": ("system.ddl[0]", "options.statements[0]", "options.back[0]"),
    "a release that set-up has prepared": ("system.release",),
    "nodes by name": ("nemesis.among[0]", "options.order"),
}
# Whose bounds other keys narrow further: nodes and replicas, the length of the drive.
NARROWED = (
    *("system.gateway_nodes", "system.quorum"),
    *("nemesis.first_s", "nemesis.hold_s", "nemesis.quiet_s"),
)
CROSS = frozenset(name for names in BY_OTHERS.values() for name in names)


@attrs.frozen(kw_only=True)
class Place:
    """A key of a plan that is otherwise ``plan``: its path in tables, and what the schema says."""

    plan: dict[str, Any]
    path: tuple[str | int, ...]
    body: dict[str, Any]

    @property
    def text(self) -> str:
        text = ""
        for step in self.path:
            text += f"[{step}]" if isinstance(step, int) else f".{step}" if text else step
        return text

    def having(self, value: object) -> dict[str, Any]:
        plan = copy.deepcopy(self.plan)
        table: Any = plan
        for step, following in zip(self.path, self.path[1:], strict=False):
            if isinstance(step, str):
                table = table.setdefault(step, [] if isinstance(following, int) else {})
            else:
                table = table[step]
        if isinstance(self.path[-1], int):
            table[:] = [value]
        else:
            table[self.path[-1]] = value
        return plan


def followed(body: Mapping[str, Any]) -> dict[str, Any]:
    if "$ref" in body:
        named = MADE["definitions"][body["$ref"].rpartition("/")[2]]
        return {**named, **{key: value for key, value in body.items() if key != "$ref"}}
    return dict(body)


def places(
    plan: dict[str, Any], table: Mapping[str, Any], path: tuple[str | int, ...]
) -> Iterator[Place]:
    """Every value below ``table`` that is no table itself, with lists by their first item."""
    for name, raw in table.get("properties", {}).items():
        body, here = followed(raw), (*path, name)
        if body.get("properties"):
            yield from places(plan, body, here)
        elif body.get("type") == "array" and "properties" not in followed(body.get("items", {})):
            yield Place(plan=plan, path=(*here, 0), body=followed(body.get("items", {})))
        else:
            yield Place(plan=plan, path=here, body=body)


def whole(**tables: Any) -> dict[str, Any]:
    """A plan in which most bounds of one key by another are as wide as they can be."""
    base: dict[str, Any] = {
        "seed": 1,
        "cluster": {"provider": "process", "nodes": 64},
        "system": {"name": "reference"},
        "workload": {"name": "list-append"},
        "drive": {"duration_s": WEEK_S, "concurrency": 10_000},
        "nemesis": {"mix": []},
    }
    for name, table in tables.items():
        base[name] = {**base.get(name, {}), **table} if isinstance(table, dict) else table
    return base


def every() -> Iterator[Place]:
    tables = MADE["properties"]
    plain = {name: body for name, body in tables.items() if "type" in body}
    yield from places(whole(), {"properties": plain}, ())
    for name in ("drive", "check", "limits"):
        yield from places(whole(), followed(tables[name]), (name,))
    for name in ("system", "workload"):
        for branch in tables[name]["oneOf"]:
            own = {**branch, "properties": {**branch["properties"]}}
            own["properties"].pop("name")
            lists = {"min_length": 1, "max_length": 100} if branch["title"] == "list-append" else {}
            yield from places(whole(**{name: {"name": branch["title"], **lists}}), own, (name,))
    for branch in followed(tables["cluster"])["oneOf"]:
        provider = branch["title"]
        if provider == "auto":
            continue
        nodes = 1 if provider == "process" else 64
        plan = whole(cluster={"provider": provider, "nodes": nodes})
        options = followed(branch["properties"]["options"])
        yield from places(plan, options, ("cluster", "options"))
    spared = whole(cluster={"nodes": 1}, system={"attributes": {}})
    cluster = followed(tables["cluster"])["oneOf"][0]["properties"]
    for name in ("nodes", "spares"):
        yield from places(spared, {"properties": {name: cluster[name]}}, ("cluster",))
    nemesis = followed(tables["nemesis"])
    short = whole(nemesis={"mix": ["kill"]}, drive={"duration_s": 600.0})
    mixed = {name: body for name, body in nemesis["properties"].items() if name != "schedule"}
    yield from places(short, {"properties": mixed}, ("nemesis",))
    row = followed(nemesis["properties"]["schedule"]["items"])
    for name in row["properties"]:
        if name in ("options", "aimed"):
            continue
        moment = {"on": "leader-elected"} if name in ("by", "after_s", "nth") else {}
        planned = [{"kind": "kill", "target": "n1", "at_s": 0.0, "hold_s": 1.0, **moment}]
        plan = whole(nemesis={"schedule": planned})
        path = ("nemesis", "schedule", 0)
        yield from places(plan, {"properties": {name: row["properties"][name]}}, path)


PLACES = [place for place in every() if set(place.body) & {"type", "enum"} or "anyOf" in place.body]


def values(body: Mapping[str, Any]) -> list[object]:
    """Values of the key's type around its bounds and far outside, and words where it has some."""
    kinds = {followed(each).get("type") for each in body.get("anyOf", (body,))}
    found: list[object] = []
    if kinds & {"integer", "number"}:
        bounds = [body[name] for name in BOUNDS if name in body]
        near = [bound + step for bound in bounds for step in (-1, 0, 1)]
        found += [value for value in (*NUMBERS, *near) if abs(value) <= LARGEST]
        if "number" in kinds:
            found = [float(value) for value in found] + [0.5, 1.5]
    if "string" in kinds or "enum" in body:
        found += WORDS
    return list(dict.fromkeys(found))


BOUNDS = ("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum")


def refused(place: Place, value: object) -> str:
    """What the code says of the key in a plan that has this value for it, empty where nothing."""
    try:
        resolve(loads(tomli_w.dumps(place.having(value))))
    except UsageError as error:
        path = getattr(error, "path", "")
        return str(error) if path and place.text.startswith(path) else ""
    return ""


@pytest.mark.parametrize("place", PLACES, ids=lambda place: f"{len(str(place.plan))}-{place.text}")
def test_the_schema_refuses_of_each_key_what_the_code_refuses_and_nothing_else(
    place: Place,
) -> None:
    if any(place.text.endswith(name) for name in CROSS):
        return
    for value in values(place.body):
        said = refused(place, value)
        errors = [error.message for error in VALIDATOR.iter_errors(place.having(value))]
        told = (place.text, value, said, errors[:1])
        if place.text in NARROWED:
            assert said or not errors, told
            assert errors or value not in (*NUMBERS[:2], LARGEST), told
        else:
            assert bool(errors) == bool(said), told


def test_keys_are_found_wherever_a_plan_has_any() -> None:
    found = {place.text for place in PLACES}

    assert {
        "seed", "drive.rate_per_s", "system.partitions", "system.bugs[0]",
        "system.tuning.max_history",
        "cluster.options.first_port", "cluster.options.memory_mib", "cluster.spares",
        "nemesis.overlap", "nemesis.schedule[0].hold_s", "nemesis.schedule[0].nth",
        "workload.read_fraction", "check.search_limit",
    } <= found  # fmt: skip
    assert sum(bool(values(place.body)) for place in PLACES) > 90


@pytest.mark.parametrize(
    "nemesis",
    [
        {"mix": ["kill"], "schedule": [{"at_s": 1.0, "kind": "kill", "target": "n1"}]},
        {"schedule": [{"at_s": 1.0, "kind": "kill", "target": "n1", "nth": 2}]},
        {"schedule": [{"at_s": 1.0, "kind": "kill", "target": "n1", "after_s": 2.0}]},
        {"schedule": [{"at_s": 1.0, "kind": "kill", "target": "n1", "by": "n2"}]},
    ],
    ids=str,
)
def test_keys_that_exclude_or_need_each_other_do_so_in_the_schema(nemesis: dict[str, Any]) -> None:
    table = whole(nemesis=nemesis)
    if "mix" not in nemesis:
        del table["nemesis"]["mix"]

    assert list(VALIDATOR.iter_errors(table))
    with pytest.raises(UsageError):
        resolve(loads(tomli_w.dumps(table)))
