"""The page of all keys of a plan, made from its schema: ``docs/plan.md``."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import attrs

from harness.plan.editor_schema import AUTO, Plugin, Schema

INTRODUCTION = """\
# The keys of a plan

A plan is a TOML file. Every key has a default but a fault's own, and `seed` is drawn where it is
not given. Flags of `run` and `--set KEY=VALUE` override keys by their dotted path. A key that is
not known, a value that is not allowed, and a plan that can't be carried out are refused by name
before anything starts. `firedrill plan FILE` shows what a plan comes to on this machine: every key,
the schedule that its seed draws, and what is missing.

This page is made by `make plan-reference` from the code that reads plans, as is
[plan.schema.json](plan.schema.json), by which editors check and complete a plan:

```toml
#:schema docs/plan.schema.json
seed = 7
[drive]
duration_s = 60
[nemesis]
mix = ["kill", "partition"]
```

`firedrill plan --schema` prints the schema with the plug-ins that are installed beside firedrill's
own.
"""

# By the end of a key's name, the longest first.
UNITS = (
    ("_per_s", "1/s"),
    ("_bytes", "bytes"),
    ("_mib", "MiB"),
    ("_ticks", "ticks"),
    ("_ms", "ms"),
    ("_share", "0 to 1"),
    ("_fraction", "0 to 1"),
    ("_s", "s"),
)


ENUM_MAX = 40  # longer lists are for editors, by the schema


@attrs.frozen(kw_only=True)
class Key:
    """One key: its dotted path within its table, default, unit, allowed values and meaning."""

    path: str
    default: str
    unit: str
    values: str
    meaning: str


def keys(table: Schema, definitions: Mapping[str, Schema], within: str = "") -> Iterator[Key]:
    """The keys of ``table``, those of the tables in it after their path."""
    required = table.get("required", ())
    for name, raw in table.get("properties", {}).items():
        body = _followed(raw, definitions)
        path = f"{within}{name}"
        if body.get("properties"):
            yield from keys(body, definitions, f"{path}.")
            continue
        yield Key(
            path=path,
            default=_default(body, required=name in required),
            unit=unit(name),
            values=_values(body, definitions),
            meaning=body.get("description", ""),
        )


def unit(name: str) -> str:
    """The unit that the name of a key ends with; empty without one."""
    return next((text for end, text in UNITS if name.endswith(end)), "")


def page(schema: Schema, faults: Sequence[Plugin], targets: Mapping[str, str]) -> str:
    """The page for ``schema``, with the kinds of ``faults`` and the ``targets`` in words."""
    return "\n".join([INTRODUCTION, *_sections(schema, faults, targets)]).rstrip() + "\n"


def _sections(
    schema: Schema, faults: Sequence[Plugin], targets: Mapping[str, str]
) -> Iterator[str]:
    definitions, tables = schema["definitions"], schema["properties"]
    plain = {name: body for name, body in tables.items() if not _is_table(body, definitions)}
    yield from _section("The plan itself", "", {"properties": plain}, definitions)
    for name, body in tables.items():
        if name in plain:
            continue
        table = _followed(body, definitions)
        if name == "cluster":
            yield from _cluster(table, definitions)
        elif name == "promise":
            yield from _promise(table, definitions, faults)
        elif "oneOf" in table:
            for branch in table["oneOf"]:
                title = f'`[{name}]` with `name = "{branch["title"]}"`'
                yield from _section(title, branch["description"], branch, definitions)
        else:
            yield from _section(f"`[{name}]`", table.get("description", ""), table, definitions)
        if name == "nemesis":
            yield from _schedule(table, definitions, faults, targets)


def _cluster(table: Schema, definitions: Mapping[str, Schema]) -> Iterator[str]:
    usual, *others = table["oneOf"]
    providers = [AUTO, *(branch["title"] for branch in others)]
    properties = dict(usual["properties"])
    # Of one branch it is a constant: of all of them, one of these.
    properties["provider"] = {**properties["provider"], "enum": providers}
    properties["provider"].pop("const", None)
    del properties["options"]
    about = usual.get("description", "")
    yield from _section("`[cluster]`", about, {**usual, "properties": properties}, definitions)
    for branch in others:
        own = _followed(branch["properties"]["options"], definitions)
        title = f'`[cluster.options]` with `provider = "{branch["title"]}"`'
        yield from _section(title, "", own, definitions)


def _promise(
    table: Schema, definitions: Mapping[str, Schema], faults: Sequence[Plugin]
) -> Iterator[str]:
    """The limits once: those of each kind are the same."""
    kinds = {fault.name for fault in faults}
    own = {name: body for name, body in table["properties"].items() if name not in kinds}
    about = table["description"]
    yield from _section("`[promise]`", about, {**table, "properties": own}, definitions)


def _schedule(
    nemesis: Schema,
    definitions: Mapping[str, Schema],
    faults: Sequence[Plugin],
    targets: Mapping[str, str],
) -> Iterator[str]:
    row = _followed(nemesis["properties"]["schedule"]["items"], definitions)
    yield from _section("`[[nemesis.schedule]]`", "", row, definitions)
    for branch in row["oneOf"]:
        options = branch["properties"]["options"]
        if not isinstance(options, bool):
            title = f'`options` of a fault of `kind = "{branch["title"]}"`'
            yield from _section(title, "", _followed(options, definitions), definitions)
    yield from _table("Kinds of faults", ("kind", "does"), ((f.name, f.text) for f in faults))
    yield from _table("Targets", ("target", "is"), targets.items())


def _section(
    title: str, about: str, table: Schema, definitions: Mapping[str, Schema]
) -> Iterator[str]:
    rows = tuple(keys(table, definitions))
    yield f"## {title}\n"
    if about:
        yield f"{_plain(about)}\n"
    if not rows:
        yield "No keys.\n"
        return
    yield "| key | default | unit | values | meaning |"
    yield "|---|---|---|---|---|"
    for key in rows:
        cells = (f"`{key.path}`", key.default, key.unit, key.values, key.meaning)
        yield f"| {' | '.join(map(_cell, cells))} |"
    yield ""


def _table(title: str, heads: tuple[str, str], rows: Iterable[tuple[str, str]]) -> Iterator[str]:
    yield f"## {title}\n"
    yield f"| {heads[0]} | {heads[1]} |"
    yield "|---|---|"
    for name, text in rows:
        yield f"| `{name}` | {_cell(text)} |"
    yield ""


def _followed(body: Any, definitions: Mapping[str, Schema]) -> Schema:  # noqa: ANN401
    """``body`` with the definition that it refers to in place of the reference."""
    if isinstance(body, dict) and "$ref" in body:
        named = definitions[body["$ref"].rpartition("/")[2]]
        return {**named, **{key: value for key, value in body.items() if key != "$ref"}}
    return body if isinstance(body, dict) else {}


def _is_table(body: Schema, definitions: Mapping[str, Schema]) -> bool:
    found = _followed(body, definitions)
    return "oneOf" in found or "properties" in found


def _default(body: Schema, *, required: bool) -> str:
    if required:
        return "required"
    # Absent is not the same as empty: the meaning says what then holds.
    return f"`{_toml(body['default'])}`" if "default" in body else ""


def _toml(value: Any) -> str:  # noqa: ANN401 (what JSON holds)
    if isinstance(value, float) and value.is_integer():
        return f"{value:g}" if abs(value) < 1e6 else f"{int(value)}"
    return json.dumps(value)


def _values(body: Schema, definitions: Mapping[str, Schema]) -> str:
    """The allowed values in words: ``integer, 1 to 64``."""
    body = _followed(body, definitions)
    if "const" in body:
        return f"`{json.dumps(body['const'])}`"
    if len(body.get("enum", ())) > ENUM_MAX:
        return f"one of {len(body['enum'])} names"
    if "enum" in body:
        return ", ".join(f"`{each}`" for each in body["enum"])
    if "anyOf" in body:
        # Types that this page does not tell apart, such as lists of a pattern, count as one.
        return " or ".join(dict.fromkeys(_values(each, definitions) for each in body["anyOf"]))
    kind = body.get("type", "any")
    if kind == "array":
        items = _followed(body.get("items", {}), definitions)
        inner = "tables" if "properties" in items else _values(items, definitions)
        return f"array of {inner}" + _bounds(body, "minItems", "maxItems")
    if kind == "object":
        return "table"
    words = {"boolean": "`true` or `false`", "string": "text"}.get(kind, str(kind))
    pattern = f" like `{body['pattern']}`" if "pattern" in body else ""
    return words + _bounds(body, "minimum", "maximum") + pattern


def _bounds(body: Schema, low: str, high: str) -> str:
    least, most = body.get(low), body.get(high)
    above, below = body.get("exclusiveMinimum"), body.get("exclusiveMaximum")
    bounds = [
        f"above {_toml(above)}" if above is not None else "",
        f"at least {_toml(least)}" if least is not None and most is None else "",
        f"at most {_toml(most)}" if most is not None and least is None else "",
        f"{_toml(least)} to {_toml(most)}" if least is not None and most is not None else "",
        f"below {_toml(below)}" if below is not None else "",
    ]
    found = ", ".join(filter(None, bounds))
    return f", {found}" if found else ""


def _plain(text: str) -> str:
    """A docstring's text in Markdown."""
    return " ".join(text.split()).replace("``", "`")


def _cell(text: str) -> str:
    return _plain(text).replace("|", "\\|")
