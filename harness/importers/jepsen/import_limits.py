"""The limits of an imported history. Its file may come from an untrusted sender."""

from __future__ import annotations

from harness.history.records import INT64_MIN

# Read at once. Larger blocks are no faster and hold more operations as objects.
BLOCK_BYTES = 1 << 20

# One operation's text. A read of a list of a million elements fits.
MAX_OPERATION_BYTES = 8 << 20

# Of these, other than digits, commas and blanks: a list of integers takes little time and memory
# for its size, all else takes much. The plan of a run fits, which is one text in an exported one.
MAX_OPERATION_TEXT_BYTES = 2 << 20

# Of EDN in one operation, a run of integers being a few. An operation of Jepsen's has some dozens.
MAX_TOKENS = 300_000

# Brackets within brackets. An operation of Jepsen's has four.
MAX_DEPTH = 64

MAX_EXPANDED_BYTES = 64 << 30
# Bytes of text for each compressed byte; real histories have 10 to 40.
MAX_EXPANSION = 200
# Up to here any ratio will do.
FREE_EXPANSION_BYTES = 4 << 20

# Of blanks, comments and discarded forms between operations, beyond the bytes of the operations
# themselves. Compressed they cost nothing to send, and as much as operations to read.
MAX_FILLER_BYTES = 1 << 20

# ``#_`` in one operation.
MAX_DISCARDS = 1000

# Operations of no client, beyond the number of those of clients. A nemesis acts every few seconds.
MAX_REMARKS = 10_000

FREE_READING_S = 5.0
# Processor time that reading may take: some seconds, and more for each byte. The slowest layout is
# read twenty times as fast on an ordinary machine; a slower file was crafted to be slow.
LEAST_BYTES_PER_S = 50_000

# Of a balance or an amount: thousands of them can be added up in 64 bits.
MAX_MONEY = 1 << 52

# Keys that are no integers; each costs an entry in a side table.
MAX_NAMED_KEYS = 1 << 20

# Of an error, a note or the name of a key; longer texts are cut, longer keys refused.
MAX_TEXT_CHARS = 300

# Integer keys below are refused: their numbers stand for named keys while a file is read.
LOWEST_KEY = INT64_MIN + MAX_NAMED_KEYS

# Beyond it (146 years) there is no room for keeping the order of operations.
TIME_LIMIT_NS = 1 << 62
