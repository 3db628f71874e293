"""Strings from nodes, stores and files, made safe to show to a person.

A node's error text may hold anything: escape sequences that repaint a terminal, characters that
turn the reading direction round, ten megabytes. Shown as they are they could forge a line of a
verdict.
"""

from __future__ import annotations

LIMIT_CHARS = 400  # a line that a person reads; longer texts end in a count of what was cut


def inert(text: str, limit: int = LIMIT_CHARS) -> str:
    """``text`` on one line, at most ``limit`` characters of it, nothing in it active or invisible.

    Control, format (bidirectional too), surrogate, private and unassigned characters become
    ``\\x1b``-like escapes; tabs and line ends become a blank each.
    """
    cut = len(text) - limit
    shown = "".join(_visible(char) for char in text[:limit])
    return f"{shown}… ({cut} more characters)" if cut > 0 else shown


def _visible(char: str) -> str:
    if char in "\t\n\r":
        return " "
    if char.isprintable():
        return char
    code = ord(char)
    if code <= 0xFF:
        return f"\\x{code:02x}"
    return f"\\u{code:04x}" if code <= 0xFFFF else f"\\U{code:08x}"
