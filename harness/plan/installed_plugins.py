"""The installed plug-ins as plans name them, with the keys of their own and what they are."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec

from harness import plugins
from harness.errors import FiredrillError
from harness.plan.editor_schema import InstalledPlugins, NoStruct, Plugin
from harness.plan.plan import options_type
from harness.protocols.faults import HasOptions
from harness.protocols.workload import WorkloadSetting

LINE_CHARS = 200  # of a description; the longest of firedrill's own has half
_NODES = ("n1", "n2", "n3")


def plugin(group: str, name: str) -> Plugin:
    """The plug-in ``name`` of ``group``; one that can't be loaded says so in its line."""
    try:
        factory = plugins.load(group, name)
        with plugins.naming(group, name):
            options = _options(group, factory)
    except FiredrillError as error:
        return Plugin(name=name, text=str(error))
    return Plugin(name=name, text=_line(group, factory), options=options)


def every(group: str, *, own: bool = False) -> tuple[Plugin, ...]:
    """All plug-ins of ``group`` by name, or those alone that are firedrill's ``own``."""
    others = {(group_, name) for group_, name, _ in plugins.foreign()} if own else set()
    return tuple(
        plugin(group, name) for name in plugins.names(group) if (group, name) not in others
    )


def installed(*, own: bool = False) -> InstalledPlugins:
    """Everything that a plan may name, or what of it is firedrill's ``own``."""
    return InstalledPlugins(
        systems=every("systems", own=own),
        workloads=every("workloads", own=own),
        providers=every("providers", own=own),
        faults=every("faults", own=own),
    )


def _options(group: str, factory: Any) -> type[msgspec.Struct] | NoStruct:  # noqa: ANN401
    """The struct of the plug-in's keys, found by letting its code come to them."""
    setting = WorkloadSetting(
        seed=0,
        concurrency=1,
        transaction_scope="cluster",
        partitions=None,
        partition_of=lambda key: None,
    )
    convert: dict[str, Callable[[], object]] = {
        "systems": lambda: factory({}, _NODES, 0),
        "workloads": lambda: factory({}, setting),
        "providers": lambda: factory("", {}, Path()),
    }
    if group == "faults":
        return _of_fault(factory)
    found = options_type(convert[group]) if group in convert else None
    return NoStruct.UNTOLD if found is None else found


def _of_fault(factory: Callable[[], Any]) -> type[msgspec.Struct] | NoStruct:
    fault = factory()
    if not isinstance(fault, HasOptions):
        return NoStruct.KEYLESS
    found = options_type(lambda: fault.with_options({}, None, "options"))
    return NoStruct.UNTOLD if found is None else found


def _line(group: str, factory: Any) -> str:  # noqa: ANN401
    """The first sentence of what documents the plug-in: a kind of fault its factory, since a module
    has several; everything else its module.
    """
    module = sys.modules.get(getattr(factory, "__module__", None) or type(factory).__module__)
    # The docstring of a checker's class tells what it computes, that of a module what it judges.
    of_module = inspect.getdoc(module) if module else None
    text = inspect.getdoc(factory) if group == "faults" else of_module or inspect.getdoc(factory)
    return first_sentence(text or "")


def first_sentence(text: str) -> str:
    """The first sentence of a docstring, in one line."""
    paragraph = " ".join(text.split("\n\n", 1)[0].split())
    sentence = paragraph.split(". ", 1)[0].rstrip(".")
    return sentence if len(sentence) <= LINE_CHARS else sentence[: LINE_CHARS - 1] + "…"
