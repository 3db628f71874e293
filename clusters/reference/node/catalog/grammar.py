"""The SQL of zones, tables and partitions: a text to a statement (IEP-101, "Distribution zones
configuration syntax", "Override rules", "Retrieve distribution zones configuration").

Where the seed's grammar is narrower than its examples the grammar here takes both: options are
separated by ``,`` or ``&`` and may be grouped, ``;`` is optional, ``//`` and ``--`` begin comments,
quotes may be typographic, ALTER takes WITH and SET. Keywords and unquoted names are read in any
case.
"""

from __future__ import annotations

from typing import Any, Literal

import lark

from clusters.reference.node.catalog.parsing import report, signs
from clusters.reference.node.catalog.sql_errors import (
    IncompatibleOptions,
    ManualDataNodes,
    OptionValue,
    Place,
    SqlError,
    SqlSyntaxError,
)
from clusters.reference.node.catalog.statements import (
    AlterTable,
    AlterTableGroup,
    AlterZone,
    Column,
    CreateTable,
    CreateZone,
    Describe,
    DropTable,
    DropZone,
    Equal,
    Name,
    Option,
    ResetPartitions,
    RestartPartitions,
    Select,
    Statement,
)

MAX_STATEMENT = 16 * 1024  # characters
MAX_DIGITS = 18  # of a number, so that it fits 64 bits
RESERVED = "APPLY"  # for data nodes that are set by hand ("Risks and Assumptions")

GRAMMAR = r"""
?start: statement ";"?
?statement: create_zone | alter_zone | drop_zone
          | create_table | alter_table | drop_table | alter_group
          | describe_zone | describe_table | describe_group | select
          | reset | restart

create_zone: "CREATE"i "ZONE"i absent name ["WITH"i options]
alter_zone: "ALTER"i "ZONE"i present name _assigning options
drop_zone: "DROP"i "ZONE"i present name
create_table: "CREATE"i "TABLE"i absent name ["(" columns ")"] "WITH"i options
alter_table: "ALTER"i "TABLE"i present name _assigning options
drop_table: "DROP"i "TABLE"i present name
alter_group: "ALTER"i "TABLE"i "GROUP"i present name _assigning options
describe_zone: "DESCRIBE"i "ZONE"i name
describe_table: "DESCRIBE"i "TABLE"i name
describe_group: "DESCRIBE"i "TABLE"i "GROUP"i name
select: "SELECT"i selected "FROM"i name ["WHERE"i conditions]

reset: "RESET"i "PARTITIONS"i [numbers] "OF"i kind name
restart: "RESTART"i "PARTITIONS"i [numbers] "OF"i kind name ["ON"i nodes] [cleanup]
!kind: "ZONE"i | "TABLE"i
cleanup: "WITH"i CLEANUP
CLEANUP: "CLEANUP"i
numbers: "(" NUMBER ("," NUMBER)* ")"
nodes: STRING ("," STRING)*

_assigning: "WITH"i | "SET"i
absent: ["IF"i "NOT"i EXISTS]
present: ["IF"i EXISTS]
EXISTS: "EXISTS"i

options: _item (_separator _item)*
_separator: "," | "&"
_item: option | "(" options ")"
option: NAME "=" value
?value: NUMBER | STRING | name

columns: column ("," column)*
column: identifier NAME ["(" NUMBER ")"] [key]
key: "PRIMARY"i "KEY"i

selected: "*" | identifier ("," identifier)*
conditions: condition ("AND"i condition)*
condition: NAME "=" (NUMBER | STRING)

name: identifier ["." identifier ["." identifier]]
?identifier: NAME | QUOTED

NAME: /(?!APPLY\b)[A-Z_][A-Z0-9_]*/i
QUOTED: /"(?:[^"]|"")+"/
NUMBER: /-?[0-9]+(?:_[0-9]+)*(?![A-Z0-9_])/i
STRING: /'(?:[^']|'')*'/ | /\u2018[^\u2019]*\u2019/
COMMENT: /(?:--|\/\/)[^\n]*/
%ignore COMMENT
%ignore /\s+/
"""


Kind = Literal["ZONE", "TABLE"]


class _Many(list[Any]):
    """The children of a rule that repeats."""


@lark.v_args(inline=True)
class _Builder(lark.Transformer[lark.Token, Any]):
    """Rules to values, called while the text is read: nesting costs no recursion."""

    def create_zone(self, soft: bool, name: Name, options: _Many | None) -> CreateZone:
        return CreateZone(name=name, if_not_exists=soft, options=tuple(options or ()))

    def alter_zone(self, soft: bool, name: Name, options: _Many) -> AlterZone:
        return AlterZone(name=name, if_exists=soft, options=tuple(options))

    def drop_zone(self, soft: bool, name: Name) -> DropZone:
        return DropZone(name=name, if_exists=soft)

    def create_table(
        self, soft: bool, name: Name, columns: _Many | None, options: _Many
    ) -> CreateTable:
        return CreateTable(
            name=name, if_not_exists=soft, columns=tuple(columns or ()), options=tuple(options)
        )

    def alter_table(self, soft: bool, name: Name, options: _Many) -> AlterTable:
        return AlterTable(name=name, if_exists=soft, options=tuple(options))

    def drop_table(self, soft: bool, name: Name) -> DropTable:
        return DropTable(name=name, if_exists=soft)

    def alter_group(self, soft: bool, name: Name, options: _Many) -> AlterTableGroup:
        return AlterTableGroup(name=name, if_exists=soft, options=tuple(options))

    def describe_zone(self, name: Name) -> Describe:
        return Describe(kind="ZONE", name=name)

    def describe_table(self, name: Name) -> Describe:
        return Describe(kind="TABLE", name=name)

    def describe_group(self, name: Name) -> Describe:
        return Describe(kind="TABLE GROUP", name=name)

    def select(self, columns: _Many, view: Name, where: _Many | None) -> Select:
        return Select(view=view, columns=tuple(columns), where=tuple(where or ()), place=view.place)

    def reset(self, numbers: _Many | None, kind: Kind, name: Name) -> ResetPartitions:
        return ResetPartitions(kind=kind, name=name, numbers=tuple(numbers or ()))

    def restart(
        self,
        numbers: _Many | None,
        kind: Kind,
        name: Name,
        nodes: _Many | None,
        cleanup: lark.Token | None,
    ) -> RestartPartitions:
        on = tuple(nodes or ())
        if cleanup is not None and len(on) != 1:
            message = f"WITH CLEANUP erases the replicas of one node: ON names one (got {len(on)})"
            raise IncompatibleOptions(message, token=str(cleanup), place=_place(cleanup))
        return RestartPartitions(
            kind=kind,
            name=name,
            numbers=tuple(numbers or ()),
            nodes=on,
            cleanup=cleanup is not None,
        )

    def kind(self, word: lark.Token) -> Kind:
        return "ZONE" if word.upper() == "ZONE" else "TABLE"

    def cleanup(self, word: lark.Token) -> lark.Token:
        return word

    def numbers(self, *numbers: lark.Token) -> _Many:
        return _Many(dict.fromkeys(map(_number, numbers)))

    def nodes(self, *names: lark.Token) -> _Many:
        return _Many(dict.fromkeys(map(_string, names)))

    def absent(self, exists: lark.Token | None) -> bool:
        return exists is not None

    present = absent

    def options(self, *items: Option | _Many) -> _Many:
        flat = _Many()
        for item in items:
            flat.extend(item if isinstance(item, _Many) else [item])
        return flat

    def option(self, name: lark.Token, value: lark.Token | Name) -> Option:
        at = value.place if isinstance(value, Name) else _place(value)
        return Option(
            name=name.upper(), value=_value(value), text=_text(value), place=_place(name),
            value_place=at,
        )  # fmt: skip

    def columns(self, *columns: Column) -> _Many:
        return _Many(columns)

    def column(
        self, name: lark.Token, kind: lark.Token, length: lark.Token | None, key: object
    ) -> Column:
        suffix = "" if length is None else f"({_number(length)})"
        return Column(
            name=_identifier(name), type=kind.upper() + suffix, primary_key=key is not None
        )

    def selected(self, *names: lark.Token) -> _Many:
        return _Many(map(_identifier, names))

    def conditions(self, *conditions: Equal) -> _Many:
        return _Many(conditions)

    def condition(self, column: lark.Token, value: lark.Token) -> Equal:
        literal = _number(value) if value.type == "NUMBER" else _string(value)
        return Equal(column=column.upper(), value=literal, place=_place(column))

    def name(self, *parts: lark.Token | None) -> Name:
        said = [part for part in parts if part is not None]
        return Name(parts=tuple(map(_identifier, said)), place=_place(said[0]))


_parser = lark.Lark(GRAMMAR, parser="lalr", transformer=_Builder(), maybe_placeholders=True)
SIGNS = signs(
    _parser,
    {"NAME": "a name", "QUOTED": "a quoted name", "NUMBER": "a number", "STRING": "a quoted text"},
)


def parse(text: str) -> Statement:
    """The one statement in ``text``. Raises ``SqlError``: ``SqlSyntaxError`` names the token, its
    place, and what could have stood there.
    """
    if len(text) > MAX_STATEMENT:
        message = f"a statement has at most {MAX_STATEMENT} characters (got {len(text)})"
        raise SqlSyntaxError(message, token=text[:16], place=Place(1, 1))
    try:
        return _parser.parse(text)  # type: ignore[return-value]
    except lark.UnexpectedInput as error:
        raise _explained(error, text) from error


def _explained(error: lark.UnexpectedInput, text: str) -> SqlError:
    found = report(error, text, _parser, SIGNS, SqlSyntaxError, "statement")
    if found.token.upper().startswith(RESERVED):
        return ManualDataNodes(
            f"{RESERVED}: manual data nodes are not supported",
            token=found.token,
            place=found.place,
            expected=found.expected,
        )
    return found


def _place(token: lark.Token) -> Place:
    return Place(token.line or 1, token.column or 1)


def _identifier(token: lark.Token) -> str:
    if token.type == "QUOTED":
        return token[1:-1].replace('""', '"')
    return token.upper()


def _value(value: lark.Token | Name) -> int | str | Name:
    if isinstance(value, Name):
        return value
    return _number(value) if value.type == "NUMBER" else _string(value)


def _text(value: lark.Token | Name) -> str:
    return ".".join(value.parts) if isinstance(value, Name) else str(value)


def _number(token: lark.Token) -> int:
    digits = token.replace("_", "")
    if len(digits.lstrip("-")) > MAX_DIGITS:
        message = f"a number has at most {MAX_DIGITS} digits (got {len(digits)})"
        raise OptionValue(message, token=str(token), place=_place(token))
    return int(digits)


def _string(token: lark.Token) -> str:
    inner = str(token)[1:-1]
    return inner.replace("''", "'") if token.startswith("'") else inner
