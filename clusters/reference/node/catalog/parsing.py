"""What the grammars of statements and of filters share: quotes, and errors that name what is wrong,
where, and what could have stood there.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

import lark
import lark.lexer

from clusters.reference.node.catalog.sql_errors import Place, SqlError

__all__ = ["Place", "report", "signs", "unquoted"]

_ESCAPED = re.compile(r"\\(.)", re.DOTALL)


def unquoted(token: str) -> str:
    """The text of a quoted word, ``\\`` before a character standing for the character."""
    return _ESCAPED.sub(r"\1", token[1:-1])


def signs(parser: lark.Lark, named: Mapping[str, str]) -> dict[str, str]:
    """What an error calls each terminal of ``parser``: as ``named`` does, a keyword as it is, a
    sign in quotes.
    """
    fixed = (t for t in parser.terminals if isinstance(t.pattern, lark.lexer.PatternStr))
    written = {t.name: t.pattern.value for t in fixed}
    return {
        **{name: v.upper() if v.isalpha() else f"'{v}'" for name, v in written.items()},
        "$END": "the end",
        **named,
    }


def report(
    error: lark.UnexpectedInput,
    text: str,
    parser: lark.Lark,
    signs: Mapping[str, str],
    kind: type[SqlError],
    what: str,
) -> SqlError:
    """``error``, which ``parser`` has met in ``text``, in our words. ``signs``: a terminal's name
    to what to call it.
    """
    if isinstance(error, lark.UnexpectedToken):
        names, ended = error.accepts or error.expected, error.token.type == "$END"
        token = "" if ended else str(error.token)
        place = _end(text) if ended else Place(error.line, error.column)
    elif isinstance(error, lark.UnexpectedCharacters):
        # What the error itself allows are terminals that may be read there, fitting or not.
        before = parser.parse_interactive(text[: error.pos_in_stream])
        before.exhaust_lexer()
        names, ended = before.accepts(), False  # type: ignore[no-untyped-call]
        place = Place(error.line, error.column)
        token = re.split(r"\s", text[error.pos_in_stream :], maxsplit=1)[0][:32] or " "
    else:
        names, ended, token, place = set(), True, "", _end(text)
    expected = tuple(sorted({signs[name] for name in names}))
    found = "it ends here" if ended else f"{token!r} is not expected here"
    message = f"{what}: {found}; expected {_listed(expected)}"
    return kind(message, token=token, place=place, expected=expected)


def _end(text: str) -> Place:
    lines = text.splitlines() or [""]
    return Place(len(lines), len(lines[-1]) + 1)


def _listed(words: tuple[str, ...]) -> str:
    if len(words) < 2:
        return "".join(words)
    return f"{', '.join(words[:-1])} or {words[-1]}"
