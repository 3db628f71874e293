"""Filters in JSONPath, over a node's attributes, its ``name`` among them, as one JSON object.

A node passes if the path finds anything. As in Jayway's JSONPath, ``$[?...]`` and ``$..`` apply to
the object itself, and ``$.[`` is ``$[``; comparisons are those of RFC 9535, so an attribute that is
missing passes ``!=``. What goes wrong on a node's attributes is no match.

Cost is bounded by counting: attributes count each access, and patterns (``match``, ``search``,
``=~``) are automata that count their steps. So a filter costs at most ``MAX_STEPS`` on a node, and
one that would cost more is no match, on every node alike.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import lru_cache
from typing import Any

import jsonpath
from jsonpath.filter import BaseExpression, RegexLiteral
from jsonpath.function_extensions import ExpressionType, FilterFunction
from jsonpath.parse import Parser
from jsonpath.stream import TokenStream
from jsonpath.token import TOKEN_RE_FLAGS

from clusters.reference.node.catalog.nodes import Node
from clusters.reference.node.catalog.patterns import (
    Pattern,
    PatternError,
    Steps,
    TooManySteps,
    compiled,
)

EVERYTHING = "$..*"  # the filter of a zone that says none
MAX_NESTING = 64  # brackets and signs: the parser is recursive
# An access makes the library do some 8 us of work, a step of a pattern is 0.3 us: with this
# weight either kind of filter that spends all its steps takes less than 0.1 s.
ACCESS_STEPS = 16
NAME = "name"  # the node's name among its attributes


class JsonPathError(ValueError):
    """A text that is no JSONPath, or one that is not accepted."""


class _Attributes(Mapping[str, object]):
    """A node's attributes, each access to which takes steps."""

    def __init__(self, values: Mapping[str, object], steps: Steps) -> None:
        self._values, self._steps = values, steps

    def __getitem__(self, key: str) -> object:
        self._steps.spend(ACCESS_STEPS)
        return self._values[key]

    def __iter__(self) -> Iterator[str]:
        for key in self._values:
            self._steps.spend(ACCESS_STEPS)
            yield key

    def __len__(self) -> int:
        return len(self._values)


class _Environment(jsonpath.JSONPathEnvironment):
    """JSONPath whose patterns are ours. It serves one decision at a time: nothing here awaits."""

    def __init__(self) -> None:
        self.parser_class = _Parser
        self.steps = Steps()
        super().__init__(filter_caching=False)  # its cache would hide what a filter costs

    def setup_function_extensions(self) -> None:
        super().setup_function_extensions()
        self.function_extensions["match"] = _Match(self, whole=True)
        self.function_extensions["search"] = _Match(self, whole=False)

    def compare(self, left: object, operator: str, right: object) -> bool:
        self.steps.spend()
        if operator == "=~":
            if not isinstance(right, Pattern) or not isinstance(left, str):
                return False
            return right.fullmatch(left, self.steps)
        return super().compare(left, operator, right)


class _Match(FilterFunction):
    """The functions ``match`` and ``search`` of RFC 9535."""

    arg_types = (ExpressionType.VALUE, ExpressionType.VALUE)  # type: ignore[assignment]
    return_type = ExpressionType.LOGICAL

    def __init__(self, environment: _Environment, *, whole: bool) -> None:
        self._environment, self._whole = environment, whole

    def __call__(self, value: object, pattern: object) -> bool:
        if not isinstance(value, str) or not isinstance(pattern, str):
            return False
        try:
            found = compiled(pattern)
        except PatternError:  # by RFC 9535 no match; a pattern may also be an attribute's value
            return False
        steps = self._environment.steps
        return found.fullmatch(value, steps) if self._whole else found.search(value, steps)


class _Parser(Parser):
    def parse_regex(self, stream: TokenStream) -> BaseExpression:
        pattern: Any = compiled(stream.next().value)
        if stream.current().kind == TOKEN_RE_FLAGS and stream.next().value:
            raise PatternError("flags of a pattern are not supported")
        return RegexLiteral(value=pattern)


@lru_cache(maxsize=256)
def parse(text: str) -> tuple[Any, _Environment]:
    """The path in ``text`` and what it is evaluated in. Raises ``JsonPathError``."""
    if sum(text.count(sign) for sign in "([!") > MAX_NESTING:
        raise JsonPathError(f"over {MAX_NESTING} brackets and negations")
    environment = _Environment()
    plain = "$" + text[2:] if text.startswith("$.[") else text
    try:
        return environment.compile(plain), environment
    except (jsonpath.JSONPathError, ArithmeticError, ValueError, RecursionError) as error:
        raise JsonPathError(str(error).splitlines()[0] if str(error) else "too deep") from error


def passes(text: str, node: Node) -> bool:
    """Whether ``node`` passes. Raises ``JsonPathError`` only where ``text`` is no JSONPath."""
    path, environment = parse(text)
    environment.steps = Steps()
    attributes = _Attributes({**node.attributes, NAME: node.name}, environment.steps)
    itself = text.startswith(("$[?", "$.[?", "$.."))
    try:
        return any(True for _ in path.finditer([attributes] if itself else attributes))
    except (jsonpath.JSONPathError, TooManySteps, RecursionError, ArithmeticError, ValueError):
        return False
    except (TypeError, AttributeError):  # raised by the library's functions on other types
        return False
