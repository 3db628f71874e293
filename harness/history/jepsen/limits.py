"""What an imported history may be at most. It may come from anybody."""

from __future__ import annotations

INT64_MIN, INT64_MAX = -(1 << 63), (1 << 63) - 1

BLOCK_BYTES = 1 << 20
"""Read at once. Larger blocks are no faster and hold more operations as objects."""

MAX_OPERATION_BYTES = 8 << 20
"""One operation's text. A read of a list of a million elements fits."""

MAX_DEPTH = 64
"""Brackets within brackets. An operation of Jepsen's has four."""

MAX_EXPANDED_BYTES = 64 << 30
MAX_EXPANSION = 200
"""Bytes of text for each compressed byte; real histories have 10 to 40."""
FREE_EXPANSION_BYTES = 64 << 20
"""Up to here any ratio will do."""

MAX_NAMED_KEYS = 1 << 20
"""Keys that are no integers; each costs an entry in a side table."""

MAX_TEXT_CHARS = 300
"""Of an error, a note or the name of a key; longer texts are cut, longer keys refused."""

LOWEST_KEY = INT64_MIN + MAX_NAMED_KEYS
"""Integer keys below are refused: their numbers stand for named keys while a file is read."""

TIME_LIMIT_NS = 1 << 62
"""Beyond it (146 years) there is no room for keeping the order of operations."""
