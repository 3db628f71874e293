"""Operations as text: a line each, in EDN as Jepsen prints it, or in JSON."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from harness.text import inactive

_KEYWORD = re.compile(r"[A-Za-z*+!_?-][\w*+!?.-]*", re.ASCII)


class Name(str):
    """A string that is a name: a keyword in EDN, where it can be one."""

    __slots__ = ()


class IntKey(str):
    """An integer as the key of a map: a text in JSON, which has no other keys, a number in EDN."""

    __slots__ = ()


def edn(value: Any) -> str:  # noqa: ANN401 (what JSON holds)
    """Format a value as EDN: keys of maps are keywords or integers, other strings strings."""
    match value:
        case None:
            return "nil"
        case bool():
            return "true" if value else "false"
        case IntKey():
            return value
        case Name() if _KEYWORD.fullmatch(value):
            return f":{value}"
        case str():
            return quoted(value)
        case Mapping():
            return f"{{{', '.join(f'{_key(k)} {edn(v)}' for k, v in value.items())}}}"
        case list() | tuple():
            return f"[{' '.join(map(edn, value))}]"
        case float() if not math.isfinite(value):
            return "##NaN" if math.isnan(value) else "##Inf" if value > 0 else "##-Inf"
        case _:
            return repr(value)


def _key(key: str) -> str:
    return edn(key if isinstance(key, IntKey) else Name(key))


def edn_lines(operations: Iterable[Mapping[str, Any]]) -> Iterator[bytes]:
    """Yield a line an operation."""
    return (_encoded(edn(op)) for op in operations)


def json_lines(operations: Iterable[Mapping[str, Any]]) -> Iterator[bytes]:
    """Yield a line an operation."""
    return (
        _encoded(inactive(json.dumps(op, ensure_ascii=False, separators=(",", ":"))))
        for op in operations
    )


def quoted(text: str) -> str:
    """Format a text as a string of JSON; its escapes are EDN's, and what needs none stands as it
    is.
    """
    return inactive(json.dumps(text, ensure_ascii=False))


def _encoded(line: str) -> bytes:
    return line.encode() + b"\n"
