"""The layout of a run directory: every file that a run writes and that later commands read."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import attrs
import msgspec

from harness.errors import MalformedHistory
from harness.history.regular_files import what_it_is
from harness.protocols.fault_kinds import RecordedFaultKind
from harness.protocols.promise import Declaration

SCHEMA_VERSION = 1

# Names that one directory of a run may hold: as many chunks are 800 GB of history.
ENTRIES_MAX = 100_000
DIAGRAM = "trace.svg"
USAGE_FILE = "usage.parquet"
EXPLAINING = frozenset({USAGE_FILE})  # of the files that are summed those that decide nothing
_NODES = "nodes"


class BankRules(msgspec.Struct, frozen=True, kw_only=True):
    """The total of a bank (that of its first read, where it is not given), and whether its accounts
    may be overdrawn.
    """

    total: int | None = None
    negative_balances: bool = False


class Origin(msgspec.Struct, frozen=True, kw_only=True):
    """The file that an imported history came from.

    ``operations`` counts everything in it, ``remarks`` its operations of no client (a nemesis),
    ``incomplete`` the transactions without a completion; ``real_time``: the times are the file's
    own. ``bank`` holds rules of a bank that the file does not contain.
    """

    file: str
    operations: int
    remarks: int = 0
    incomplete: int = 0
    real_time: bool = True
    bank: BankRules = BankRules()


class LogSum(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The first ``size_bytes`` of a log and their SHA-256."""

    size_bytes: int
    sha256: str


class RecordCounts(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How many transactions, and how many micro-operations in them, the records of a run came to,
    counted before its tables were made: a table that lost some has fewer.
    """

    transactions: int
    micro_ops: int


class Manifest(msgspec.Struct, frozen=True, kw_only=True):
    """``manifest.json``. ``state`` is ``running``, ``sealed`` or ``prefix``.

    ``phases`` are (name, start in ns) pairs; ``checksums`` map relative paths to SHA-256, ``sizes``
    the same paths to bytes.
    ``explaining`` maps the relative paths of files that explain the run and decide nothing to their
    SHA-256: damage of one is reported, and changes no verdict; it is unset where there are none.
    ``interrupted``: the user ended the run early; ``trouble`` lists failures around the store (a
    fault unproven, a quiesce that timed out), each a sentence: any of them makes the run
    inconclusive. ``out_of_room`` is set where the disk of the run was full: writes of any file on
    it, also of a node's data and logs, may have failed for that reason alone. ``origin`` is unset
    for a history recorded here, ``arsenal`` (the faults that were possible) for one recorded
    elsewhere. ``mix`` are the kinds that the faults were drawn from, where they were drawn.
    ``streams`` counts the writers of chunks, ``logs`` maps the relative paths of the
    nodes' logs to their sums; these, ``sizes`` and ``recorded`` are unset in runs of versions that
    did not record them.
    ``logs_left_out`` counts the bytes before the beginning of a log that were not collected, by the
    log's relative path; it is unset where there are none.
    ``recovered`` is set where the controller died before it sealed the run: the sums of its logs
    are of what the recovery found. ``unread`` is set where chunks hold more than could be read.
    """

    schema_version: int
    run_id: str
    state: str
    versions: dict[str, str]
    machine: dict[str, Any]
    declaration: Declaration
    workload: str
    checkers: tuple[str, ...]
    splits: int = 0
    key_hash: str = "fibonacci-64"
    phases: tuple[tuple[str, int], ...] = ()
    cut_ns: int | None = None
    interrupted: bool = False
    trouble: tuple[str, ...] = ()
    checksums: dict[str, str] = {}
    # Not ``None``: an unset field is not written, so that the digests of older manifests hold.
    origin: Origin | msgspec.UnsetType = msgspec.UNSET
    arsenal: tuple[RecordedFaultKind, ...] | msgspec.UnsetType = msgspec.UNSET
    mix: tuple[str, ...] | msgspec.UnsetType = msgspec.UNSET
    out_of_room: bool | msgspec.UnsetType = msgspec.UNSET
    streams: int | msgspec.UnsetType = msgspec.UNSET
    logs: dict[str, LogSum] | msgspec.UnsetType = msgspec.UNSET
    recovered: bool | msgspec.UnsetType = msgspec.UNSET
    unread: bool | msgspec.UnsetType = msgspec.UNSET
    sizes: dict[str, int] | msgspec.UnsetType = msgspec.UNSET
    log_remarks: tuple[str, ...] | msgspec.UnsetType = msgspec.UNSET
    logs_left_out: dict[str, int] | msgspec.UnsetType = msgspec.UNSET
    explaining: dict[str, str] | msgspec.UnsetType = msgspec.UNSET
    recorded: RecordCounts | msgspec.UnsetType = msgspec.UNSET


def directory_mark(root: Path) -> str:
    """An identifier that distinguishes the run directory ``root`` from its copies: device and
    inode, which stay when it is moved, and its path. Resources that a run makes outside of the
    directory carry it. Raises ``OSError``.
    """
    found = root.stat()
    return f"{found.st_dev}:{found.st_ino}:{root.resolve()}"


def same_directory(one: str, other: str) -> bool:
    """Whether two marks are of one directory, possibly moved since or restored in its place."""
    parts, others = one.split(":", 2), other.split(":", 2)  # a path may have colons, too
    if len(parts) != 3 or len(others) != 3:
        return False
    return parts[:2] == others[:2] or parts[2] == others[2]


@attrs.frozen
class RunDirectory:
    """Paths inside a run directory. Making one touches no file.

    ``output`` is the directory for an analysis and its report, where the run itself can only be
    read.
    """

    root: Path
    output: Path | None = None

    @property
    def plan(self) -> Path:
        """The resolved plan: written before anything starts."""
        return self.root / "plan.toml"

    @property
    def settled_plan(self) -> Path:
        """The plan with the moments at which its aimed faults came, until it is the plan: from the
        end of a run to its sealing.
        """
        return self.root / ".plan.toml.settled"

    @property
    def manifest(self) -> Path:
        """Versions, machine, checksums, state."""
        return self.root / "manifest.json"

    @property
    def chunks(self) -> Path:
        """The write-ahead chunks; removed once sealed, or put away where not all was read."""
        return self.root / "chunks"

    @property
    def unread(self) -> Path:
        """The chunks of a run that could not be read whole: no later command reads them."""
        return self.root / "unread"

    @property
    def history(self) -> Path:
        """``transactions.parquet`` and ``micro_ops-NNNN.parquet``, split by key hash."""
        return self.root / "history"

    @property
    def faults(self) -> Path:
        """One row a fault."""
        return self.root / "faults.parquet"

    @property
    def events(self) -> Path:
        """One row an event of the store."""
        return self.root / "events.parquet"

    @property
    def controller(self) -> Path:
        """How late the controller's loop ran, and how much CPU it used, second by second."""
        return self.root / "controller.parquet"

    @property
    def tags(self) -> Path:
        """Words that people and campaigns attached to the run, as a list in JSON; no evidence."""
        return self.root / "tags.json"

    @property
    def undo(self) -> Path:
        """The list of the run's resources outside this directory."""
        return self.root / "undo"

    @property
    def kept(self) -> Path:
        """Exists while the run's cluster is left up on purpose."""
        return self.undo / "kept"

    @property
    def addresses(self) -> Path:
        """How this machine reaches the nodes of a run whose system takes statements."""
        return self.undo / "addresses.json"

    @property
    def analysis(self) -> Path:
        """``verdict.json`` and the tables behind it."""
        return (self.output or self.root) / "analysis"

    @property
    def verdict(self) -> Path:
        """The verdict; written last, so its absence means that there is none."""
        return self.analysis / "verdict.json"

    @property
    def verdict_seal(self) -> Path:
        """The sums that tie the verdict to its run."""
        return self.analysis / "verdict.seal.json"

    @property
    def report(self) -> Path:
        """The report page."""
        return (self.output or self.root) / "report.html"

    @property
    def diagram(self) -> Path:
        """The picture of a simulated run's trace, where one was asked for."""
        return self.root / DIAGRAM

    def node(self, name: str) -> Path:
        """Logs and final state of node ``name``."""
        return self.root / _NODES / name


def require_plain(run: RunDirectory) -> None:
    """Refuse a run directory in which a name that firedrill uses is neither a file nor a directory
    of its own, or a file in the place of a directory: a link from an untrusted sender may lead to
    other files of this machine.

    Every reader of a run calls it first, or is told that its caller did (``plain``);
    ``harness.history.regular_files`` opens the files of these directories. The run itself may be
    named by a link. Files that programs of nodes made below their own directories are not checked,
    since no reader opens them. Raises ``MalformedHistory``.
    """
    directories = {path.name for path in (run.history, run.chunks, run.undo, run.analysis)}
    for entry in _entries(run.root):
        _require_no_other(entry)
        if entry.name in (*directories, _NODES) and entry.is_file(follow_symlinks=False):
            reason = "it is a file, expected a directory of the run itself"
            raise MalformedHistory(entry.path, "", reason)
    for entry in _entries(run.undo):
        _require_no_other(entry)
    for directory in (run.history, run.chunks, run.analysis):
        for entry in _entries(directory):
            _require_no_other(entry, directory_allowed=False)
    for node in _entries(run.root / _NODES):
        _require_no_other(node)
        for entry in _entries(run.root / _NODES / node.name):
            if entry.name.endswith(".log"):
                _require_no_other(entry, directory_allowed=False)


def _entries(directory: Path) -> Iterator[os.DirEntry[str]]:
    """The entries of ``directory``; none where there is no such directory."""
    try:
        with os.scandir(directory) as found:
            # Counted while it is read: a list of millions would fill the memory first.
            for number, entry in enumerate(found):
                if number >= ENTRIES_MAX:
                    reason = f"expected at most {ENTRIES_MAX} names in it, found more"
                    raise MalformedHistory(str(directory), "", reason)
                yield entry
    except (FileNotFoundError, NotADirectoryError):
        return
    except OSError as error:
        reason = f"it can't be read: {error.strerror}"
        raise MalformedHistory(str(directory), "", reason) from error


def _require_no_other(entry: os.DirEntry[str], *, directory_allowed: bool = True) -> None:
    if not entry.name.isascii():
        shown = os.fsencode(entry.path).decode("utf-8", "backslashreplace")
        if shown != entry.path:
            raise MalformedHistory(shown, "", "expected a name in UTF-8 in a run, found another")
    # Mostly the directory says what it is: calls of the system for each of forty names would be
    # half of the time that an index of runs takes.
    if entry.is_file(follow_symlinks=False):
        return
    try:
        mode = entry.stat(follow_symlinks=False).st_mode
    except OSError:
        return  # it is gone: a run that lives changes
    found = what_it_is(mode)
    if not found and stat.S_ISDIR(mode) and not directory_allowed:
        found = "a directory"
    if found:
        expected = "a file or a directory" if directory_allowed else "a file"
        reason = f"it is {found}, expected {expected} of the run itself"
        raise MalformedHistory(entry.path, "", reason)
