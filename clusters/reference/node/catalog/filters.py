"""Node filters: which nodes may be among a zone's data nodes.

The seed leaves the syntax open between patterns and simple predicates (IEP-101, "DATA_NODES_FILTER
rule"). Here a filter is either

* an expression over the words of a node (its name, attributes without a value, values of the
  others): ``"US"`` is one of them, ``"US", "EU"`` any of a list, ``contains("S")`` a part of one,
  ``/S+D/`` a pattern found in one; with ``!``, ``&&``, ``||`` and groups, which bind in this order,
  a list before all of them; or
* a JSONPath, where the text begins with ``$``.

Both are pure functions of the filter and the node and cost a bounded number of steps, so that all
nodes decide alike: ``patterns.py`` says how.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import lru_cache
from typing import Any

import lark
import msgspec

from clusters.reference.node.catalog import jsonpath_filter
from clusters.reference.node.catalog.nodes import Node
from clusters.reference.node.catalog.parsing import (
    Place,
    report,
    signs,
    unquoted,
)
from clusters.reference.node.catalog.patterns import (
    PatternError,
    Steps,
    TooManySteps,
    compiled,
)
from clusters.reference.node.catalog.sql_errors import FilterError

EVERYTHING = jsonpath_filter.EVERYTHING
MAX_FILTER = 512  # characters
_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(Node).decode

GRAMMAR = r"""
?start: either
?either: both ("||" both)*
?both: single ("&&" single)*
?single: "!" single -> negated
       | list
       | "(" either ")"
?list: item ("," item)*
?item: WORD -> word
     | "contains"i "(" WORD ")" -> part
     | PATTERN -> pattern
WORD: /"(?:[^"\\]|\\.)*"/ | /“(?:[^”\\]|\\.)*”/
PATTERN: /\/(?:[^\/\\]|\\.)+\//
%ignore /\s+/
"""


class Word(msgspec.Struct, frozen=True):
    """One of the node's words is ``text``."""

    text: str


class Part(msgspec.Struct, frozen=True):
    """``text`` is a part of one of the node's words."""

    text: str


class Regex(msgspec.Struct, frozen=True):
    """The pattern is found in one of the node's words."""

    pattern: str


class AnyOf(msgspec.Struct, frozen=True):
    """``||`` and lists."""

    expressions: tuple[Expression, ...]


class AllOf(msgspec.Struct, frozen=True):
    """``&&``."""

    expressions: tuple[Expression, ...]


class Not(msgspec.Struct, frozen=True):
    """``!``."""

    expression: Expression


class JsonPath(msgspec.Struct, frozen=True):
    """A JSONPath over the node's attributes."""

    text: str


Expression = Word | Part | Regex | AnyOf | AllOf | Not | JsonPath


@lark.v_args(inline=True)
class _Builder(lark.Transformer[lark.Token, Any]):
    def word(self, token: lark.Token) -> Word:
        return Word(unquoted(token))

    def part(self, token: lark.Token) -> Part:
        return Part(unquoted(token))

    def pattern(self, token: lark.Token) -> Regex:
        pattern = str(token)[1:-1].replace(r"\/", "/")
        try:
            compiled(pattern)
        except PatternError as error:
            raise _Rejected(error, token) from error
        return Regex(pattern)

    def negated(self, inner: Expression) -> Expression:
        # Undone rather than nested, so that '!!!!...' is not as deep as it is long.
        return inner.expression if isinstance(inner, Not) else Not(inner)

    def list(self, *items: Expression) -> AnyOf:
        return AnyOf(items)

    def either(self, *items: Expression) -> AnyOf:
        return AnyOf(items)

    def both(self, *items: Expression) -> AllOf:
        return AllOf(items)


class _Rejected(Exception):
    def __init__(self, error: PatternError, token: lark.Token) -> None:
        super().__init__(str(error))
        self.token = token


_parser = lark.Lark(GRAMMAR, parser="lalr", transformer=_Builder(), propagate_positions=False)
SIGNS = signs(_parser, {"WORD": "a quoted word", "PATTERN": "/a pattern/"})


@lru_cache(maxsize=256)
def parse(text: str) -> Expression:
    """The filter in ``text``. Raises ``FilterError`` with places counted within the filter."""
    if len(text) > MAX_FILTER:
        message = f"a filter has at most {MAX_FILTER} characters (got {len(text)})"
        raise FilterError(message, token=text[:16])
    if text.lstrip().startswith("$"):
        return _jsonpath(text.strip())
    try:
        return _parser.parse(text)  # type: ignore[return-value]
    except lark.UnexpectedInput as error:
        raise report(error, text, _parser, SIGNS, FilterError, "filter") from error
    except _Rejected as error:
        raise FilterError(
            f"filter: {error}",
            token=str(error.token),
            place=Place(error.token.line or 1, error.token.column or 1),
            expected=("/a pattern/",),
        ) from error


def _jsonpath(text: str) -> JsonPath:
    try:
        jsonpath_filter.parse(text)
    except jsonpath_filter.JsonPathError as error:
        raise FilterError(f"filter {text!r} is no JSONPath: {error}", token=text) from error
    return JsonPath(text)


def matches(expression: Expression, node: Node) -> bool:
    """Whether ``node`` passes. A filter that costs more than ``MAX_STEPS`` on a node, which takes
    a pattern made for it, is passed by no such node.
    """
    try:
        return _holds(expression, node, node.words, Steps())
    except TooManySteps:
        return False


def filtered(text: str, nodes: Iterable[Node]) -> tuple[Node, ...]:
    """The ``nodes`` that pass the filter in ``text``. Raises ``FilterError``."""
    parse(text)
    return tuple(node for node in nodes if _decided(text, _encode(node)))


# Once for each node: the leader of metastorage asks with every event, and for all nodes at once
# costly filters would keep it from its groups.
@lru_cache(maxsize=8192)
def _decided(text: str, node: bytes) -> bool:
    return matches(parse(text), _decode(node))


def _holds(expression: Expression, node: Node, words: tuple[str, ...], steps: Steps) -> bool:
    steps.spend(len(words))
    match expression:
        case Word(text=text):
            return text in words
        case Part(text=text):
            return any(text in word for word in words)
        case Regex(pattern=pattern):
            return any(compiled(pattern).search(word, steps) for word in words)
        case Not(expression=inner):
            return not _holds(inner, node, words, steps)
        case AnyOf(expressions=inners):
            return any(_holds(inner, node, words, steps) for inner in inners)
        case AllOf(expressions=inners):
            return all(_holds(inner, node, words, steps) for inner in inners)
        case JsonPath(text=text):
            return jsonpath_filter.passes(text, node)
