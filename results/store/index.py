"""An index over the runs of a store: SQLite beside them, made from them at any time.

The run directories are the truth. A row holds what ``entry_of`` read, and a stamp of the files that
it was read from: ``refresh`` reads again what has another stamp, and forgets what is gone. A file
that is damaged, or of another version, is made anew. Its name tells the directory that it was made
in: an index that came with a store from elsewhere is never read, since it could say what it likes.
"""

from __future__ import annotations

import contextlib
import hashlib
import math
import os
import re
import sqlite3
import zlib
from collections.abc import Callable, Iterator, Sequence
from datetime import date, datetime
from pathlib import Path
from typing import Any

import attrs
import msgspec

from harness.errors import HarnessError, UsageError
from harness.history.regular_files import is_regular
from harness.history.run_directory import RunDirectory, directory_mark
from harness.plan.planfile import nearest
from results.store.run_entry import RunEntry, entry_of
from results.store.run_figures import figures_path
from results.store.store import RunStore

SizeOf = Callable[[RunDirectory], int]
INDEX = ".index-{}.sqlite"  # filled with a digest of the directory's mark
MARK_CHARS = 16
VERSION = 10  # of the tables, and of what a row holds
BUSY_S = 30.0  # for another command that refreshes the same index
BATCH = 500  # rows of one commit: an interrupted refresh goes on where it was
_COLUMNS = {
    "run": "TEXT",
    "begun": "TEXT",
    "state": "TEXT",
    "outcome": "TEXT",
    "name": "TEXT",
    "system": "TEXT",
    "release": "TEXT",
    "commit": "TEXT",
    "branch": "TEXT",
    "mode": "TEXT",
    "workload": "TEXT",
    "provider": "TEXT",
    "seed": "INTEGER",
    "nodes": "INTEGER",
    "duration_s": "REAL",
    "ok": "INTEGER",
    "conflicts": "INTEGER",
    "fail": "INTEGER",
    "info": "INTEGER",
    "longest_gap_s": "REAL",
    "size_bytes": "INTEGER",
}
_SEVERAL = {"fault": "fault", "tag": "tag", "finding": "fingerprint", "anomaly": "anomaly"}
_MOMENT = re.compile(
    r"\d{4}(-\d{2}(-\d{2}(T\d{2}(:\d{2}(:\d{2}(\.\d{1,6})?(\+00:00)?)?)?)?)?)?", re.ASCII
)
_FIRST_DAY = "0001-01-01"  # whose end completes a year, or a month
_INTEGER = re.compile(r"-?[0-9]{1,19}")
FILTERS = (*_COLUMNS, *_SEVERAL)
"""Names that a filter may give: columns, and what a run may have several of."""
SEARCHED = (
    "run",
    "outcome",
    "system",
    "release",
    "commit",
    "branch",
    "mode",
    "workload",
    "provider",
)
"""Columns that a word is searched in, beside the tags: together in a column of their own."""
ORDERS = tuple(_COLUMNS)
"""Names that a list may be sorted by."""
OPERATORS = {"!=": "IS NOT", "<=": "<=", ">=": ">=", "=": "IS", "<": "<", ">": ">"}
"""Of conditions, longest first."""


@attrs.frozen(kw_only=True)
class Condition:
    """One condition on runs: the value of ``name`` compared with ``value``. Of what a run may have
    several of (``fault``, ``tag``, ``finding``, ``anomaly``) one has to be equal, or, with ``!=``,
    none; of a tag ``value`` may leave out what follows its name. ``begun`` is compared as far as
    ``value`` says it: a run of noon is of its day, and not after it.
    """

    name: str
    operator: str
    value: str

    @classmethod
    def parse(cls, text: str) -> Condition:
        """Read ``NAME=VALUE``, or with ``!=``, ``<``, ``<=``, ``>`` or ``>=``. Raises
        ``UsageError``.
        """
        at, operator = min(
            ((text.find(each), each) for each in OPERATORS if each in text),
            key=lambda found: (found[0], -len(found[1])),
            default=(-1, ""),
        )
        name = text[:at].strip()
        if at < 1:
            raise UsageError(f"condition {text!r}: expected NAME=VALUE, as in outcome=violation")
        if name not in FILTERS:
            hint = nearest(name, FILTERS)
            raise UsageError(f"condition {text!r}: no run has a {name!r}{hint}")
        if name in _SEVERAL and operator not in ("=", "!="):
            raise UsageError(f"condition {text!r}: of a {name} only = and != can be asked")
        value = text[at + len(operator) :].strip()
        _require_number(text, name, value)
        if name == "begun" and value:
            value = _moment(text, value)
        return cls(name=name, operator=operator, value=value)

    def sql(self) -> tuple[str, tuple[object, ...]]:
        """Return the condition as SQL on the table of runs, and its parameters."""
        if self.name in _SEVERAL:
            column = _SEVERAL[self.name]
            table = {"fault": "faults", "tag": "tags"}.get(self.name, "findings")
            equal, values = f"{column} = ?", [self.value]
            if self.name == "tag" and "=" not in self.value:
                equal, values = f"({equal} OR {column} GLOB ?)", [self.value, f"{self.value}=*"]
            negation = "NOT " if self.operator == "!=" else ""
            some = f"SELECT 1 FROM {table} WHERE {table}.run = runs.run AND {equal}"
            return f"{negation}EXISTS ({some})", tuple(values)
        typed: object = self.value
        if _COLUMNS[self.name] != "TEXT":
            typed = _number(self.value)
        elif self.value == "" and self.operator in ("=", "!="):
            # Empty and absent are one to a reader of the list.
            return f"coalesce(\"{self.name}\", '') {OPERATORS[self.operator]} ?", ("",)
        if self.name == "begun":
            told = f"substr(begun, 1, {len(self.value)})"
            return f"{told} {OPERATORS[self.operator]} ?", (self.value,)
        return f'"{self.name}" {OPERATORS[self.operator]} ?', (typed,)


@attrs.frozen(kw_only=True)
class Query:
    """The runs that meet all ``conditions`` and have each of the ``words`` in one of the columns
    ``SEARCHED``, sorted by the column ``order`` (oldest first where it
    is ``run``), at most ``limit`` of them after ``offset``.
    """

    conditions: tuple[Condition, ...] = ()
    words: tuple[str, ...] = ()
    order: str = "run"
    descending: bool = False
    limit: int | None = None
    offset: int = 0


@attrs.frozen
class SeenFinding:
    """A finding over all runs of a store: ``met`` in so many, from ``first_run`` to ``last_run``.
    Its words are those of the first.
    """

    fingerprint: str
    anomaly: str
    fault: str
    role: str
    system: str
    example: str
    met: int
    first_run: str
    last_run: str
    first_seen: datetime | None
    last_seen: datetime | None

    @property
    def cause(self) -> str:
        """The fault and the role of its target."""
        return f"{self.fault} of {self.role}" if self.role else self.fault


@attrs.frozen
class RunIndex:
    """The index of a store, open; ``opened`` makes one."""

    _database: sqlite3.Connection

    def refresh(self, runs: Sequence[RunDirectory]) -> int:
        """Make the index true to ``runs``, which are all there are; return how many were read."""
        return _refresh(self._database, runs)

    def entries(self, query: Query) -> list[RunEntry]:
        """Return the runs that ``query`` asks for. Raises ``UsageError``."""
        if query.order not in ORDERS:
            hint = nearest(query.order, ORDERS)
            raise UsageError(f"order {query.order!r}: expected one of {', '.join(ORDERS)}{hint}")
        where, values = _where(query.conditions, query.words)
        direction = "DESC" if query.descending else "ASC"
        limit = -1 if query.limit is None else query.limit
        # The run last: rows that are equal in what is sorted by stay in one order.
        chosen = (
            f'SELECT run, "{query.order}" AS place FROM runs{where} '
            f"ORDER BY place {direction}, run {direction} LIMIT ? OFFSET ?"
        )
        text = (
            f"SELECT entry FROM ({chosen}) JOIN entries USING (run) "
            f"ORDER BY place {direction}, run {direction}"
        )
        rows = self._database.execute(text, (*values, limit, query.offset))
        return [_decoder.decode(row[0]) for row in rows]

    def count(self, conditions: Sequence[Condition] = (), words: Sequence[str] = ()) -> int:
        """Return how many runs meet ``conditions`` and have the ``words``."""
        where, values = _where(conditions, words)
        found = self._database.execute(f"SELECT count(*) FROM runs{where}", values).fetchone()
        return int(found[0])

    def outcomes(
        self, conditions: Sequence[Condition] = (), words: Sequence[str] = ()
    ) -> dict[str, int]:
        """Return how many of these runs came to which outcome; those without one under ``""``."""
        where, values = _where(conditions, words)
        text = f"SELECT coalesce(outcome, ''), count(*) FROM runs{where} GROUP BY 1 ORDER BY 1"
        return dict(self._database.execute(text, values).fetchall())

    def findings(self, fingerprint: str | None = None) -> list[SeenFinding]:
        """Return the findings over all runs, the last seen first; or the one of ``fingerprint``."""
        where = "" if fingerprint is None else "WHERE fingerprint = ?"
        text = f"""
            WITH seen AS (
                SELECT fingerprint, count(DISTINCT run) AS met, min(run) AS first, max(run) AS last,
                    min(begun) AS since, max(begun) AS until
                FROM findings JOIN runs USING (run) {where} GROUP BY fingerprint)
            SELECT fingerprint, anomaly, fault, role, system, example, met, first, last,
                since, until
            FROM seen JOIN findings AS one USING (fingerprint) JOIN runs USING (run)
            WHERE one.run = seen.first GROUP BY fingerprint ORDER BY last DESC, fingerprint DESC
        """
        given = () if fingerprint is None else (fingerprint,)
        return [_seen(*row) for row in self._database.execute(text, given)]

    def months(self, finding: SeenFinding) -> list[tuple[str, int, int]]:
        """Return month, runs with ``finding`` and runs of its system, from its first month on."""
        text = """
            SELECT substr(coalesce(begun, ''), 1, 7) AS month, sum(run IN (
                SELECT run FROM findings WHERE fingerprint = ?)), count(*)
            FROM runs WHERE system = ? GROUP BY month ORDER BY month
        """
        rows = self._database.execute(text, (finding.fingerprint, finding.system)).fetchall()
        since = min((month for month, met, _ in rows if met), default="")
        return [row for row in rows if row[0] >= since]

    def in_memory(self) -> RunIndex:
        """Return a copy as it is now, in memory: any thread may read it, one at a time."""
        copy = sqlite3.connect(":memory:", isolation_level=None, check_same_thread=False)
        self._database.backup(copy)
        return RunIndex(copy)

    def mark(self) -> str:
        """Return what is another one as soon as any run is."""
        digest = hashlib.sha256()
        for row in self._database.execute("SELECT run, stamp FROM runs ORDER BY run"):
            digest.update("\0".join(row).encode("utf-8", "surrogateescape"))
        return digest.hexdigest()


def _seen(*row: Any) -> SeenFinding:  # noqa: ANN401 (what the database holds)
    *fields, since, until = row
    times = (datetime.fromisoformat(each) if each else None for each in (since, until))
    return SeenFinding(*fields, *times)


def index_path(store: RunStore) -> Path:
    """Return the file of the index of ``store``, which need not exist."""
    try:
        mark = directory_mark(store.root)
    except OSError:
        mark = ""
    digest = hashlib.sha256(mark.encode("utf-8", "surrogateescape")).hexdigest()
    return store.root / INDEX.format(digest[:MARK_CHARS])


@contextlib.contextmanager
def opened(
    store: RunStore, *, rebuild: bool = False, size_of: SizeOf | None = None
) -> Iterator[RunIndex]:
    """Open the index of ``store``, true to the runs that are there now. Where the store can't be
    written, or its disk is full, the index is made in memory; with ``rebuild`` nothing of an
    earlier one is used. With ``size_of``, of runs of which only parts are here, it is always made
    in memory. Raises ``HarnessError``.
    """
    path, runs = index_path(store), store.runs()
    try:
        # Nothing is written into a directory that may be no store at all.
        if runs and size_of is None:
            database = _connected(path, runs, rebuild=rebuild)
        else:
            database = _in_memory(runs, size_of)
        with contextlib.closing(database):
            yield RunIndex(database)
    except sqlite3.Error as error:
        raise HarnessError(f"index {path}: {error}") from error


def _connected(path: Path, runs: Sequence[RunDirectory], *, rebuild: bool) -> sqlite3.Connection:
    """Return the database of ``runs``, made anew where it is damaged or of another version."""
    if not os.access(path.parent, os.W_OK):
        return _in_memory(runs)
    try:
        # A link in its place would have its target written, a pipe would never answer.
        if rebuild or not is_regular(path):
            _remove(path)
        try:
            return _refreshed(_connection(path), runs)
        except sqlite3.DatabaseError as error:
            if isinstance(error, sqlite3.OperationalError) and "locked" in str(error):
                raise
            _remove(path)
            return _anew(path, runs)
    except OSError as error:
        raise HarnessError(f"index {path}: {error.strerror or error}") from error


def _anew(path: Path, runs: Sequence[RunDirectory]) -> sqlite3.Connection:
    try:
        return _refreshed(_connection(path), runs)
    except sqlite3.OperationalError as error:
        if error.sqlite_errorcode & _PRIMARY_CODE not in _OF_THE_DISK:
            raise
        # Where the disk is full, what makes room on it asks the index first.
        _remove(path)
        return _in_memory(runs)


def _in_memory(runs: Sequence[RunDirectory], size_of: SizeOf | None = None) -> sqlite3.Connection:
    return _refreshed(sqlite3.connect(":memory:", isolation_level=None), runs, size_of)


def _connection(path: Path) -> sqlite3.Connection:
    return sqlite3.connect(path, timeout=BUSY_S, isolation_level=None)


def _refreshed(
    database: sqlite3.Connection, runs: Sequence[RunDirectory], size_of: SizeOf | None = None
) -> sqlite3.Connection:
    try:
        (version,) = database.execute("PRAGMA user_version").fetchone()
        if version != VERSION:
            _make_tables(database)
        _require_sound(database)
        _refresh(database, runs, size_of)
    except sqlite3.Error:
        database.close()
        raise
    return database


def _require_sound(database: sqlite3.Connection) -> None:
    """Raises ``sqlite3.DatabaseError`` for damage: what an index says of a run decides whether it
    is kept.
    """
    text = f"SELECT {_OF_SUM}, entry, checksum FROM runs LEFT JOIN entries USING (run)"
    try:
        (found,) = database.execute("PRAGMA integrity_check(1)").fetchone()
        if found != "ok":
            raise sqlite3.DatabaseError(found)
        for *row, entry, checksum in database.execute(text):
            if _checksum(row, entry) != checksum:
                raise sqlite3.DatabaseError("a row is not what was written")
    except UnicodeDecodeError as error:  # of the sentence, or of a name in the tables
        raise sqlite3.DatabaseError(str(error)) from error


def _checksum(row: Sequence[object], entry: object) -> int:
    content = entry if isinstance(entry, bytes) else b""
    return zlib.crc32(repr(row).encode("utf-8", "backslashreplace"), zlib.crc32(content))


def _remove(path: Path) -> None:
    # Those of a store that was moved, too: they are read no more.
    for each in (path, *path.parent.glob(INDEX.format("*") + "*")):
        if each.is_dir() and not each.is_symlink():
            raise HarnessError(f"index {each}: it is a directory, expected a file or nothing")
        each.unlink(missing_ok=True)


_OF_THE_DISK = (sqlite3.SQLITE_FULL, sqlite3.SQLITE_IOERR, sqlite3.SQLITE_CANTOPEN)
_PRIMARY_CODE = 0xFF
_OF_SUM = ", ".join(f'"{name}"' for name in (*_COLUMNS, "stamp", "searched"))
_decoder = msgspec.json.Decoder(RunEntry)
_TABLES = ("runs", "entries", "faults", "tags", "findings")
_HERE = RunDirectory(Path())
# As texts, made once: a store has some ten thousand runs, and all are looked at each time.
_READ = tuple(
    map(
        str,
        (_HERE.plan, _HERE.manifest, _HERE.verdict, figures_path(_HERE), _HERE.tags, _HERE.report),
    )
)


def _make_tables(database: sqlite3.Connection) -> None:
    columns = ", ".join(
        f'"{name}" {kind}{" PRIMARY KEY" if name == "run" else ""}'
        for name, kind in _COLUMNS.items()
    )
    database.execute("BEGIN IMMEDIATE")
    for table in _TABLES:
        database.execute(f"DROP TABLE IF EXISTS {table}")
    database.execute(f"CREATE TABLE runs ({columns}, stamp TEXT, searched TEXT, checksum INTEGER)")
    # Apart: a search or a sort of all runs would read every entry.
    database.execute("CREATE TABLE entries (run TEXT PRIMARY KEY, entry BLOB)")
    database.execute("CREATE TABLE faults (run TEXT, fault TEXT)")
    database.execute("CREATE TABLE tags (run TEXT, tag TEXT)")
    database.execute(
        "CREATE TABLE findings "
        "(run TEXT, fingerprint TEXT, anomaly TEXT, fault TEXT, role TEXT, example TEXT)"
    )
    for table in ("faults", "tags", "findings"):
        database.execute(f"CREATE INDEX {table}_run ON {table} (run)")
    database.execute("CREATE INDEX findings_fingerprint ON findings (fingerprint, run)")
    database.execute(f"PRAGMA user_version = {VERSION}")
    database.execute("COMMIT")


def _refresh(
    database: sqlite3.Connection, runs: Sequence[RunDirectory], size_of: SizeOf | None = None
) -> int:
    known = dict(database.execute("SELECT run, stamp FROM runs"))
    there = {run.root.name for run in runs}
    stamps = {run.root.name: _stamp(run) for run in runs}
    changed = [run for run in runs if known.get(run.root.name) != stamps[run.root.name]]
    # One that is not among ``runs`` may have been made, and read by another process, since these
    # were listed: a list of that process would lack it.
    stores = {run.root.parent for run in runs}
    gone = [
        name
        for name in known.keys() - there
        if not any(_is_directory(store / name) for store in stores)
    ]
    database.execute("BEGIN IMMEDIATE")
    for name in gone:
        _forget(database, name)
    database.execute("COMMIT")
    for begin in range(0, len(changed), BATCH):
        batch = changed[begin : begin + BATCH]
        rows = [(_entry(run, size_of), stamps[run.root.name]) for run in batch]
        database.execute("BEGIN IMMEDIATE")
        for entry, stamp in rows:
            _forget(database, entry.run)
            _add(database, entry, stamp)
        database.execute("COMMIT")
    return len(changed)


def _entry(run: RunDirectory, size_of: SizeOf | None) -> RunEntry:
    if size_of is None:
        return entry_of(run)
    return msgspec.structs.replace(entry_of(run, sized=False), size_bytes=size_of(run))


def _is_directory(path: Path) -> bool:
    return path.is_dir() and not path.is_symlink()


def _forget(database: sqlite3.Connection, run: str) -> None:
    for table in _TABLES:
        database.execute(f"DELETE FROM {table} WHERE run = ?", (run,))


def _add(database: sqlite3.Connection, entry: RunEntry, stamp: str) -> None:
    values = [_column(name, getattr(entry, name)) for name in _COLUMNS]
    marks = ", ".join("?" * (len(values) + 3))
    run = entry.run
    words = (*(getattr(entry, name) or "" for name in SEARCHED), *entry.tags)
    summed = [*values, stamp, "\n".join(words).lower()]
    encoded = msgspec.json.encode(entry)
    checksum = _checksum(summed, encoded)
    database.execute(f"INSERT INTO runs VALUES ({marks})", (*summed, checksum))
    database.execute("INSERT INTO entries VALUES (?, ?)", (run, encoded))
    for each in entry.faults:
        database.execute("INSERT INTO faults VALUES (?, ?)", (run, each))
    for tag in entry.tags:
        database.execute("INSERT INTO tags VALUES (?, ?)", (run, tag))
    for finding in entry.findings:
        row = (run, finding.fingerprint, finding.anomaly)
        cause = (finding.fault, finding.role, finding.example)
        database.execute("INSERT INTO findings VALUES (?, ?, ?, ?, ?, ?)", (*row, *cause))


def _column(name: str, value: object) -> object:
    """Return ``value`` as the database gives it back."""
    if _COLUMNS[name] == "REAL" and isinstance(value, int):
        return float(value)
    return value.isoformat() if isinstance(value, datetime) else value


def _stamp(run: RunDirectory) -> str:
    """Return what changes whenever a file that an entry is read from does."""
    parts = []
    root = str(run.root)
    for path in (root, *(f"{root}/{name}" for name in _READ)):
        try:
            found = os.lstat(path)
        except OSError:
            parts.append("-")
            continue
        parts.append(f"{found.st_mtime_ns}:{found.st_size}:{found.st_ino}")
    return " ".join(parts)


def _where(
    conditions: Sequence[Condition], words: Sequence[str] = ()
) -> tuple[str, tuple[object, ...]]:
    asked = [*(condition.sql() for condition in conditions), *map(_containing, words)]
    if not asked:
        return "", ()
    texts, values = zip(*asked, strict=True)
    return " WHERE " + " AND ".join(texts), tuple(value for some in values for value in some)


def _containing(word: str) -> tuple[str, tuple[object, ...]]:
    """Return the condition that a searched column, or a tag, has ``word`` in it."""
    return "instr(searched, ?) > 0", (word.lower(),)


def _number(text: str) -> int | float:
    """Return the number that ``text`` says: a seed has more digits than a float holds."""
    if _INTEGER.fullmatch(text):
        whole = int(text)
        if abs(whole) >= 1 << 63:
            raise ValueError(text)
        return whole
    number = float(text)
    if not math.isfinite(number):  # nothing compares with it as a reader would expect
        raise ValueError(text)
    return number


def _require_number(text: str, name: str, value: str) -> None:
    if _COLUMNS.get(name, "TEXT") == "TEXT":
        return
    try:
        _number(value)
    except ValueError:
        raise UsageError(f"condition {text!r}: {name} is a number (got {value!r})") from None


def _moment(text: str, value: str) -> str:
    """Return the beginning of a moment in UTC as the index holds it. Raises ``UsageError``."""
    moment = value.removesuffix("Z").replace(" ", "T")
    try:
        if not _MOMENT.fullmatch(moment):
            raise ValueError(moment)
        date.fromisoformat(moment[:10] + _FIRST_DAY[len(moment[:10]) :])
    except ValueError:
        raise UsageError(
            f"condition {text!r}: begun is a moment in UTC, or its beginning: 2026, 2026-11, "
            f"2026-11-23, 2026-11-23T14:05 (got {value!r})"
        ) from None
    return moment
