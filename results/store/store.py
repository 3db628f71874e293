"""The run store: a directory of run directories, named so that a listing is a history.

A run is named by its identifier, any unique beginning of it, ``latest``, or a path; a path may lie
anywhere, since a run directory stands alone.
"""

from __future__ import annotations

import contextlib
import errno
import os
import re
import secrets
import shutil
import time
from collections.abc import Collection, Iterator
from datetime import UTC, datetime
from pathlib import Path

import attrs

from harness.errors import FiredrillError, HarnessError, UsageError
from harness.history.directory_locks import lock_new_directory, locked
from harness.history.manifest import RUNNING, read_manifest
from harness.history.regular_files import what_it_is
from harness.history.run_directory import RunDirectory, require_plain

DEFAULT_ROOT = Path("runs")
# Where Jepsen leaves the history of a test; the others are its exports.
OF_JEPSEN = ("history.edn", "history.edn.gz", "history.json", "history.jsonl")
LATEST = "latest"
NAME_LIMIT = 40  # identifiers become labels, network and file names
SHOWN_LIMIT = 5  # candidates named in an error
CREATE_TRIES = 16  # identifiers made in the same second that already exist
LOCK_PAUSE_S = 0.01
LOCK_LIMIT_S = 5.0  # for a look of others at a new run
MEND_TRIES = 8  # removals beside each other, each of which mends in its turn
_RUN_ID = re.compile(r"\d{8}-\d{6}-(?P<slug>[a-z0-9-]+)-[0-9a-f]{4}")
_NOT_NAME = re.compile(r"[^a-z0-9]+")


class UnknownRun(UsageError):
    """No run has the name that was given, or several do."""


def run_id(name: str, wall_ns: int, entropy: bytes) -> str:
    """Return ``YYYYMMDD-HHMMSS-name-xxxx`` (UTC) from wall time in ns and two bytes of entropy."""
    moment = datetime.fromtimestamp(wall_ns // 1_000_000_000, tz=UTC)
    return f"{moment:%Y%m%d-%H%M%S}-{slug(name)}-{entropy[:2].hex():0>4}"


def is_run_id(name: str) -> bool:
    """Tell whether ``name`` is what ``run_id`` returns."""
    return _RUN_ID.fullmatch(name) is not None


def slug(name: str) -> str:
    """The form of a plan's ``name`` in the names of its runs."""
    return _NOT_NAME.sub("-", name.lower()).strip("-")[:NAME_LIMIT].strip("-") or "run"


@attrs.frozen
class RunStore:
    """The runs below ``root``. Constructing a store touches no file."""

    root: Path = DEFAULT_ROOT

    @contextlib.contextmanager
    def create(self, name: str, wall_ns: int, entropy: bytes) -> Iterator[RunDirectory]:
        """Create an empty run directory, point ``latest`` at it, and hold it within the block:
        until there are chunks nothing else shows that it is in use.

        ``entropy`` (two bytes) distinguishes runs of one second; where it does not, the next free
        identifier is taken. Raises ``HarnessError`` where the store can't be written.
        """
        try:
            path, lock = self._made(name, wall_ns, int.from_bytes(entropy[:2], "big"))
        except OSError as error:
            raise HarnessError(f"run store {self.root}: {error.strerror or error}") from error
        try:
            yield RunDirectory(path)
        finally:
            os.close(lock)

    def _made(self, name: str, wall_ns: int, start: int) -> tuple[Path, int]:
        self.root.mkdir(parents=True, exist_ok=True)
        for step in range(CREATE_TRIES):
            tail = ((start + step) % 0x10000).to_bytes(2, "big")
            path = self.root / run_id(name, wall_ns, tail)
            try:
                path.mkdir()
            except FileExistsError:
                continue
            if (lock := lock_for_a_moment(path)) is not None:
                try:
                    self._point_latest(path)
                except BaseException:
                    with contextlib.suppress(OSError):
                        path.rmdir()
                    os.close(lock)
                    raise
                return path, lock
        raise HarnessError(f"run store {self.root}: no free identifier after {CREATE_TRIES} tries")

    def forget(self, run: RunDirectory) -> None:
        """Undo ``create`` for a run that was refused: its directory is removed where nothing was
        written, and ``latest`` points at the newest run that is left. A directory with content
        stays.
        """
        with contextlib.suppress(OSError):
            # An environment makes it before its plan can be refused, and the run's root is removed
            # only empty.
            run.undo.rmdir()
        with contextlib.suppress(OSError):
            # Fails for a directory with content, before ``latest`` is touched.
            run.root.rmdir()
            self.mend_latest()

    def remove(self, run: RunDirectory, *, held: bool = False) -> None:
        """Delete ``run`` with all its content; ``latest`` then points at the newest run that is
        left. ``held``: this process holds it, as in the block of its ``create``.

        Its name goes first, so that an interrupted deletion leaves no partial run. Raises
        ``HarnessError``, also where another process drives, judges, archives or removes it.
        """
        lock = None
        # No identifier matches this name, so that no listing shows it. Beside it: a run that was
        # named by its path may lie on another file system than this store.
        doomed = run.root.with_name(f".{run.root.name}.removing")
        try:
            lock = None if held else lock_for_a_moment(run.root)
            if not held and lock is None and run.root.exists():
                raise HarnessError(f"cannot remove run {run.root}: another process works on it")
            run.root.rename(doomed)
            shutil.rmtree(doomed, onerror=_unless_gone)
            RunStore(run.root.parent).mend_latest()
        except (OSError, RecursionError) as error:
            raise HarnessError(f"cannot remove run {run.root}: {_why(error)}") from error
        finally:
            if lock is not None:
                os.close(lock)

    def mend_latest(self) -> None:
        """Repair a ``latest`` that leads to no run of the store: point it at the newest run that is
        left, or remove it.

        Other processes may remove that run, or make a newer one, at the same time: each that points
        it looks again after. Raises ``OSError`` and ``HarnessError``.
        """
        link = self.root / LATEST
        if not link.is_symlink() or self._pointed() is not None:
            return
        for _ in range(MEND_TRIES):
            if newest := self.runs()[-1:]:
                self._point_latest(newest[0].root)
            else:
                link.unlink(missing_ok=True)
            # A run made since the listing may have been pointed at before this: its link is undone.
            if self.runs()[-1:] == newest:
                return

    def broken_off(self) -> tuple[RunDirectory, ...]:
        """Return the remains of interrupted deletions; ``finish`` is the only operation on them."""
        return tuple(RunDirectory(path) for path in sorted(self.root.glob(".*.removing")))

    def finish(self, run: RunDirectory) -> None:
        """Delete the rest of one of ``broken_off``. Raises ``HarnessError``."""
        try:
            shutil.rmtree(run.root, onerror=_unless_gone)
        except (OSError, RecursionError) as error:
            raise HarnessError(f"cannot remove {run.root}: {_why(error)}") from error

    def sweep(self, names: Collection[str] | re.Pattern[str], kept: Collection[str]) -> int:
        """Remove the runs of plans of these ``names`` that began and were never sealed, and that no
        process drives any more, but for the paths ``kept``; finish the interrupted deletions of
        their runs; return how many of both. For a campaign, which runs their plans again; one that
        can't list its plans gives a pattern of their slugs. Raises ``HarnessError``.
        """
        slugs = names if isinstance(names, re.Pattern) else frozenset(map(slug, names))

        def of_these(name: str) -> bool:
            match = _RUN_ID.fullmatch(name)
            if match is None:
                return False
            if isinstance(slugs, re.Pattern):
                return slugs.fullmatch(match["slug"]) is not None
            return match["slug"] in slugs

        gone = 0
        for left in self.broken_off():
            if of_these(left.root.name.removeprefix(".").removesuffix(".removing")):
                self.finish(left)
                gone += 1
        for run in self.runs():
            if of_these(run.root.name) and str(run.root) not in kept:
                gone += self._remove_abandoned(run)
        return gone

    def _remove_abandoned(self, run: RunDirectory) -> bool:
        """Remove ``run`` where its process died before it had sealed it; held meanwhile, since a
        process that has just made it holds it from then on.
        """
        with contextlib.ExitStack() as stack:
            try:
                alone = stack.enter_context(locked(run.root))
            except OSError:  # another sweep has removed it
                return False
            # Opened before another sweep removed it, it is locked after: then it is there no more.
            if alone and run.root.exists() and _abandoned(run):
                self.remove(run, held=True)
                return True
        return False

    def runs(self) -> tuple[RunDirectory, ...]:
        """Return every run of the store, oldest first; nothing where there is no store."""
        if not self.root.is_dir():
            return ()
        with os.scandir(self.root) as found:
            names = sorted(each.name for each in found if _is_run(each, each.name))
        return tuple(RunDirectory(self.root / name) for name in names)

    def located(self, path: str) -> Path | None:
        """Return where the run is that was recorded as ``path``: here, if this store has it, which
        may have been moved since, or be named from another directory; else there. ``None`` where it
        is gone.
        """
        here = self.root / Path(path).name
        if _is_run(here, here.name):
            return here
        return Path(path) if path and os.path.isdir(path) else None

    def resolve(self, name: str) -> RunDirectory:
        """Return the run that ``name`` means: a path, an identifier, the beginning of exactly one,
        or ``latest``. Raises ``UnknownRun``, and ``MalformedHistory`` for a directory that leads
        elsewhere (``require_plain``).
        """
        run = self._named(name)
        require_plain(run)
        return run

    def named(self, name: str) -> RunDirectory:
        """Return the run that ``name`` means: as ``resolve``, for what is no path."""
        return self._latest() if name == LATEST else self._by_prefix(name)

    def _named(self, name: str) -> RunDirectory:
        if name == LATEST:
            return self._latest()
        if not name:
            raise UnknownRun("run '': expected a path, an identifier or its beginning, or 'latest'")
        path = Path(name)
        if path.name == LATEST and path.is_symlink():
            return RunStore(path.parent)._latest()
        if os.path.isdir(path):
            if not _RUN_ID.fullmatch(path.resolve().name) and not _holds_a_run(path):
                # What may not be looked into holds nothing that can be seen.
                if not os.access(path, os.R_OK | os.X_OK, effective_ids=True):
                    raise UnknownRun(f"{name}: {os.strerror(errno.EACCES)}")
                expected = "expected the directory of a run, with its manifest, plan or chunks"
                raise UnknownRun(f"run {name!r}: {expected}{_history_in(path)}")
            nameless = path.name in ("", "..") or path.is_symlink()
            return RunDirectory(path.resolve() if nameless else path)
        try:
            mode = os.stat(path).st_mode
        except (OSError, ValueError) as error:
            # No identifier has a dot or a slash: it is the name of a file.
            if len(path.parts) > 1 or "." in name:
                why = error.strerror if isinstance(error, OSError) else str(error)
                raise UnknownRun(f"{name}: {why}") from error
            return self._by_prefix(name)
        found = what_it_is(mode) or "a file"
        raise UnknownRun(f"{name}: it is {found}, expected the directory of a run")

    def _by_prefix(self, name: str) -> RunDirectory:
        every = self.runs()
        # One identifier may be the beginning of another.
        exact = [run for run in every if run.root.name == name]
        found = exact or [run for run in every if name and run.root.name.startswith(name)]
        if len(found) == 1:
            return found[0]
        if found:
            raise UnknownRun(
                f"run {name!r}: means {len(found)} runs of {self.root} ({_some(found)}); say more"
            )
        newest = f"newest: {_some(every[::-1])}" if every else "it holds no runs"
        raise UnknownRun(f"run {name!r}: no such run in {self.root} ({newest})")

    def _latest(self) -> RunDirectory:
        if pointed := self._pointed():
            return pointed
        every = self.runs()  # the link may be gone from a store that was copied
        if not every:
            history = _history_in(self.root / LATEST)
            raise UnknownRun(f"run {LATEST!r}: {self.root} holds no runs{history}")
        return every[-1]

    def _pointed(self) -> RunDirectory | None:
        """Return the run of this store that ``latest`` names; ``None`` where it names none: the
        store may come from elsewhere, and its link lead anywhere.
        """
        try:
            name = os.readlink(self.root / LATEST)
        except OSError:  # there is none, or it is no link
            return None
        return RunDirectory(self.root / name) if _is_run(self.root / name, name) else None

    def _point_latest(self, path: Path) -> None:
        for _ in range(CREATE_TRIES):
            # A random name: others may point it at the same run at this moment.
            temporary = self.root / f".{LATEST}-{secrets.token_hex(8)}"
            with contextlib.suppress(FileExistsError):
                # Relative, so that a store can be moved.
                temporary.symlink_to(path.name)
                break
        link = self.root / LATEST
        try:
            # Replaced in one step, so that it is never missing.
            os.replace(temporary, link)
        except OSError as error:
            temporary.unlink(missing_ok=True)
            if isinstance(error, IsADirectoryError):
                reason = f"{link}: expected a link to a run, found a directory"
                raise HarnessError(f"run store {self.root}: {reason}") from error
            raise


def lock_for_a_moment(path: Path) -> int | None:
    """Lock the directory ``path`` of a run or of a store, until the descriptor is closed. ``None``
    where it is gone, or another process holds it for long. Raises ``OSError``.
    """
    ends_s = time.monotonic() + LOCK_LIMIT_S
    # Others hold it for a moment, to see whether it is driven.
    while (lock := lock_new_directory(path, shared=False)) is None:
        if not path.exists() or time.monotonic() > ends_s:
            return None
        time.sleep(LOCK_PAUSE_S)
    return lock


def _abandoned(run: RunDirectory) -> bool:
    """Tell whether ``run``, which no process holds, was never sealed."""
    try:
        if run.manifest.exists():
            unsealed = read_manifest(run).state == RUNNING
        else:
            # Tables are written before a manifest says so: with any it is damage, and stays.
            require_plain(run)
            unsealed = not run.history.exists()
        return unsealed and (not run.chunks.is_dir() or _unheld(run.chunks))
    # A run that can't be read is not known to be abandoned, and stays.
    except (FiredrillError, OSError):
        return False


def _unheld(directory: Path) -> bool:
    with locked(directory) as alone:
        return alone


def _unless_gone(_: object, __: object, failure: tuple[object, BaseException, object]) -> None:
    """Ignore a missing file: another process may finish the same deletion."""
    if not isinstance(failure[1], FileNotFoundError):
        raise failure[1]


def _why(error: OSError | RecursionError) -> str:
    if isinstance(error, RecursionError):
        return "directories are nested too deeply in it (rm -r removes it)"
    return error.strerror or str(error)


def _holds_a_run(path: Path) -> bool:
    """Whether anything of a run is in the directory; what of it lacks, its readers name."""
    run = RunDirectory(path)
    return any(map(os.path.lexists, (run.manifest, run.plan, run.chunks, run.history)))


def _history_in(path: Path) -> str:
    """What to give in the place of a directory of Jepsen's; empty for any other."""
    histories = (path / name for name in OF_JEPSEN)
    found = next((each for each in histories if os.path.lexists(each)), None)
    return "" if found is None else f" (firedrill check takes the history in it: {found})"


def _is_run(path: Path | os.DirEntry[str], name: str) -> bool:
    return is_run_id(name) and not path.is_symlink() and path.is_dir()


def _some(runs: tuple[RunDirectory, ...] | list[RunDirectory]) -> str:
    names = ", ".join(run.root.name for run in runs[:SHOWN_LIMIT])
    rest = len(runs) - SHOWN_LIMIT
    return f"{names} and {rest} more" if rest > 0 else names
