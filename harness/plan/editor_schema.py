"""The JSON schema of plans, made from the structs that read them, plug-ins included.

Editors check and complete a plan with it; ``key_reference`` makes the page of all keys from it.
"""

from __future__ import annotations

import enum
from collections.abc import Iterable, Mapping
from typing import Any

import attrs
import msgspec

from harness.plan.overrides import PLUGINS
from harness.plan.plan import ClusterPlan, NemesisPlan, Plan, PluginPlan, PromisePlan
from harness.protocols.faults import PlannedFault

DRAFT = "http://json-schema.org/draft-07/schema#"  # the one that editors of TOML know
AUTO = "auto"
OF_A_MOMENT = ("by", "after_s", "nth")  # keys of a fault that mean nothing without ``on``
_REF = "#/definitions/{name}"

Schema = dict[str, Any]


class NoStruct(enum.Enum):
    """Why there is no struct of a plug-in's keys."""

    KEYLESS = "keyless"  # it takes no options
    UNTOLD = "untold"  # it converts them without ``options``, or can't be loaded: any may be right


@attrs.frozen(kw_only=True)
class Plugin:
    """An installed plug-in as plans name it: ``options`` is the struct of its keys, ``text`` is
    what it is, in a line.
    """

    name: str
    text: str = ""
    options: type[msgspec.Struct] | NoStruct = NoStruct.UNTOLD


@attrs.frozen(kw_only=True)
class InstalledPlugins:
    """The plug-ins that a schema is made for."""

    systems: tuple[Plugin, ...]
    workloads: tuple[Plugin, ...]
    providers: tuple[Plugin, ...]
    faults: tuple[Plugin, ...]


def _of_ecma(body: Any) -> Any:  # noqa: ANN401 (what JSON holds)
    """Return ``body`` with its patterns as JSON Schema has them: ``\\Z``, which in Python alone is
    the end of a text, is ``$`` there.
    """
    if isinstance(body, dict):
        found = {key: _of_ecma(value) for key, value in body.items()}
        if isinstance(pattern := found.get("pattern"), str):
            found["pattern"] = pattern.replace(r"\Z", "$")
        return found
    return [_of_ecma(each) for each in body] if isinstance(body, list) else body


def schema(installed: InstalledPlugins) -> Schema:
    """The schema of a plan file in which ``installed`` may be named."""
    every = (installed.systems, installed.workloads, installed.providers, installed.faults)
    types = dict.fromkeys(
        p.options for group in every for p in group if not isinstance(p.options, NoStruct)
    )
    structs: list[type[msgspec.Struct]] = [Plan, PlannedFault, *types]
    refs, definitions = msgspec.json.schema_components(structs, ref_template=_REF)
    of = {cls: ref["$ref"] for cls, ref in zip(structs, refs, strict=True)}
    named = {name: _of_ecma(_without_null(body)) for name, body in definitions.items()}
    kinds = sorted(plugin.name for plugin in installed.faults)
    plan = named[Plan.__name__]
    # The command draws the seed where a file gives none.
    plan["required"] = []
    for table, usual, group in (
        ("system", PLUGINS["system"], installed.systems),
        ("workload", PLUGINS["workload"], installed.workloads),
    ):
        branches = [_inline(plugin, plugin.name == usual, of, named) for plugin in group]
        plan["properties"][table] = {"oneOf": branches}
    named[ClusterPlan.__name__] = _by_provider(named[ClusterPlan.__name__], installed.providers, of)
    nemesis = named[NemesisPlan.__name__]
    nemesis["properties"]["mix"]["items"]["enum"] = kinds
    nemesis["not"] = _all_of_some("mix", "schedule")
    named[PlannedFault.__name__] = _by_kind(named[PlannedFault.__name__], installed.faults, of)
    named.pop(PluginPlan.__name__)
    limits = named[PromisePlan.__name__]["properties"]
    during = limits.pop("during")["additionalProperties"]
    limits.update(dict.fromkeys(kinds, during))
    return {
        "$schema": DRAFT,
        "title": "A plan of firedrill",
        **plan,
        "definitions": {
            name: body for name, body in sorted(named.items()) if name != Plan.__name__
        },
    }


def _inline(plugin: Plugin, usual: bool, of: Mapping[type, str], named: Schema) -> Schema:
    """The table of a plug-in, in which ``name`` stands beside its own keys."""
    struct = plugin.options
    own = {} if isinstance(struct, NoStruct) else named[_name_of(of[struct])]
    name = {"const": plugin.name, **({"default": plugin.name} if usual else {})}
    return {
        "title": plugin.name,
        "description": plugin.text,
        "type": "object",
        "properties": {"name": name, **own.get("properties", {})},
        "required": [*([] if usual else ["name"]), *own.get("required", [])],
        "additionalProperties": plugin.options is NoStruct.UNTOLD,
    }


def _by_provider(table: Schema, providers: Iterable[Plugin], of: Mapping[type, str]) -> Schema:
    """``[cluster]`` with the options of the provider that it names."""

    def branch(plugin: Plugin, options: Schema) -> Schema:
        return {
            **table,
            "title": plugin.name,
            "properties": {
                **table["properties"],
                "provider": {**table["properties"]["provider"], "const": plugin.name},
                "options": {**table["properties"]["options"], **options},
            },
            "required": [] if plugin.name == AUTO else ["provider"],
        }

    branches = [branch(Plugin(name=AUTO), {})]
    for plugin in providers:
        # A reference takes the place of what stands beside it.
        made = branch(plugin, {})
        if not isinstance(plugin.options, NoStruct):
            made["properties"]["options"] = _options(plugin, of)
        branches.append(made)
    return {"oneOf": branches}


def _by_kind(row: Schema, faults: Iterable[Plugin], of: Mapping[type, str]) -> Schema:
    """A row of the schedule with the options of its kind."""
    row["properties"]["kind"]["enum"] = sorted(plugin.name for plugin in faults)
    row["required"] = ["kind", "target"]
    plain = [plugin.name for plugin in faults if plugin.options is NoStruct.KEYLESS]
    branches: list[Schema] = [
        {
            "title": plugin.name,
            "properties": {
                "kind": {"const": plugin.name},
                "options": _options(plugin, of),
            },
        }
        for plugin in faults
        if plugin.options is not NoStruct.KEYLESS
    ]
    none = {"properties": {"kind": {"enum": sorted(plain)}, "options": False}}
    return {
        **row,
        "dependencies": {name: ["on"] for name in OF_A_MOMENT},
        # One that waits for a moment may come from the begin of the drive on.
        "anyOf": [{"required": ["at_s"]}, {"required": ["on"]}],
        "oneOf": [*branches, *([none] if plain else [])],
    }


def _options(plugin: Plugin, of: Mapping[type, str]) -> Schema | bool:
    """The schema of the plug-in's table of options."""
    match plugin.options:
        case NoStruct.KEYLESS:
            return False
        case NoStruct.UNTOLD:
            return True
        case struct:
            return {"$ref": of[struct]}


def _all_of_some(*lists: str) -> Schema:
    """The tables in which none of ``lists`` is empty."""
    return {"required": list(lists), "properties": {key: {"minItems": 1} for key in lists}}


def _name_of(ref: str) -> str:
    return ref.rpartition("/")[2]


def _without_null(value: Any) -> Any:  # noqa: ANN401 (what JSON holds)
    """``value`` without ``null``, which TOML lacks: a key that may be absent has no such default,
    and one choice of types less.
    """
    if isinstance(value, list):
        return [_without_null(each) for each in value]
    if not isinstance(value, dict):
        return value
    found = {
        key: _without_null(each)
        for key, each in value.items()
        if not (key == "default" and each is None)
    }
    if "enum" in found:
        found["enum"] = [each for each in found["enum"] if each is not None]
    if "anyOf" in found:
        kinds = [each for each in found["anyOf"] if each != {"type": "null"}]
        if len(kinds) == 1:
            del found["anyOf"]
            return {**kinds[0], **found}
        found["anyOf"] = kinds
    # Within tables that are the default of a table.
    if isinstance(found.get("default"), dict):
        found["default"] = {k: v for k, v in found["default"].items() if v is not None}
    return found
