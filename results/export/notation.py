"""Operations as text: a line each, in EDN as Jepsen prints it, or in JSON."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

_KEYWORD = re.compile(r"[A-Za-z*+!_?-][\w*+!?.-]*", re.ASCII)


class Name(str):
    """A string that is a name: a keyword in EDN, where it can be one."""

    __slots__ = ()


def edn(value: Any) -> str:  # noqa: ANN401 (what JSON holds)
    """Format a value as EDN: keys of maps are keywords, other strings strings."""
    match value:
        case None:
            return "nil"
        case bool():
            return "true" if value else "false"
        case Name() if _KEYWORD.fullmatch(value):
            return f":{value}"
        case str():
            # The escapes of JSON are EDN's, and what needs none stands as it is.
            return json.dumps(value, ensure_ascii=False)
        case Mapping():
            return f"{{{', '.join(f'{edn(Name(k))} {edn(v)}' for k, v in value.items())}}}"
        case list() | tuple():
            return f"[{' '.join(map(edn, value))}]"
        case _:
            return repr(value)


def edn_lines(operations: Iterable[Mapping[str, Any]]) -> Iterator[bytes]:
    """Yield a line an operation."""
    return (_encoded(edn(op)) for op in operations)


def json_lines(operations: Iterable[Mapping[str, Any]]) -> Iterator[bytes]:
    """Yield a line an operation."""
    return (
        _encoded(json.dumps(op, ensure_ascii=False, separators=(",", ":"))) for op in operations
    )


def _encoded(line: str) -> bytes:
    # A node's text may hold a lone surrogate, which UTF-8 can't encode; its escape is one of both
    # notations.
    return line.encode("utf-8", "backslashreplace") + b"\n"
