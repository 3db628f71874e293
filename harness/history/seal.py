"""Sealing: from write-ahead chunks to the Parquet tables that all later commands read.

Sealing can be killed at any moment and repeated: tables are written under other names first, the
manifest says ``sealed`` only once every table is on the disk under its own name, and the chunks are
removed last. Chunks that could not be read whole are kept instead, as ``unread/``.
"""

from __future__ import annotations

import contextlib
import gc
import shutil
from collections.abc import Iterator

import attrs
import msgspec

from harness.errors import HarnessBug, InvariantError, MalformedHistory, UsageError
from harness.history import durable_files, regular_files, schema
from harness.history.directory_locks import locked
from harness.history.evidence import require_checksums, sizes, sum_logs
from harness.history.manifest import PREFIX, RUNNING, SEALED, read_manifest, write_manifest
from harness.history.parquet import ParquetSink, rows_of
from harness.history.run_directory import Manifest, RecordCounts, RunDirectory
from harness.history.scan import Scan, Stream, TornChunk, scan
from harness.history.tables import InconsistentRecords, PartitionOf, Tabulator
from harness.text import seconds

# A task a core on the machine of most people; a run of a million operations has 10 MB a file.
SPLITS = 4
UNREAD = "the chunks are kept in unread/: what they hold beyond that place is in no table"


def seal(run: RunDirectory, *, partition_of: PartitionOf | None, splits: int = SPLITS) -> Manifest:
    """Turn the chunks of a run whose writers are closed into its tables; returns the manifest.

    The manifest's state becomes ``sealed``, or ``prefix`` with a sentence in ``trouble`` where the
    chunks are torn. ``partition_of`` returns the partition of a key, where the store reports it. A
    run that is sealed already stays as it is.

    Raises ``UsageError`` while a writer is open, ``HarnessError`` where the disk or the system
    refuses (the chunks stay, and sealing can be repeated), ``MalformedHistory`` where ``run`` is no
    run.
    """
    schema.check_splits(splits)
    return seal_chunks(run, partition_of=partition_of, splits=splits, ended=True)


def seal_chunks(
    run: RunDirectory, *, partition_of: PartitionOf | None, splits: int, ended: bool
) -> Manifest:
    """As ``seal``. Where the run has not ``ended`` by itself, its records count as a prefix."""
    with _alone(run):
        manifest = read_manifest(run)
        if manifest.state == RUNNING:
            _adopt_settled_plan(run, manifest)
            if not ended:  # a damaged plan or state must not become a table
                require_checksums(run, manifest)
            manifest = _tabulate(run, manifest, partition_of, splits, ended)
            write_manifest(run, manifest)
        # Also of a sealed run: the sealer before may have died between the two.
        _put_away(run, manifest)
        return manifest


def _put_away(run: RunDirectory, manifest: Manifest) -> None:
    """Remove the chunks, which are in the tables now; what was not read of them is kept."""
    if manifest.unread is True:
        with contextlib.suppress(OSError):  # there already, or gone
            run.chunks.rename(run.unread)
    else:
        shutil.rmtree(run.chunks, ignore_errors=True)


@contextlib.contextmanager
def _alone(run: RunDirectory) -> Iterator[None]:
    """Lock the run's chunks, where there are any, against writers and other sealers."""
    if not run.chunks.is_dir():
        yield
        return
    with locked(run.chunks) as alone:
        if not alone:
            reason = "the run is still going on, or somebody else is sealing it"
            raise UsageError(f"{run.root}: {reason}")
        yield


def _adopt_settled_plan(run: RunDirectory, manifest: Manifest) -> None:
    """Put the plan with settled offsets into the place of the plan, where the manifest names it: a
    controller may die before that, and after. Raises ``HarnessError``.
    """
    settled = run.settled_plan
    try:
        if not regular_files.is_regular(settled):
            return
        if regular_files.sha256(settled) == manifest.checksums.get(run.plan.name):
            durable_files.publish(settled, run.plan)
        else:
            settled.unlink()
    except OSError as error:
        missing = "its plan lacks the moments at which faults came"
        raise durable_files.disk_failure("write", run.plan, error, missing) from error


def _tabulate(
    run: RunDirectory,
    manifest: Manifest,
    partition_of: PartitionOf | None,
    splits: int,
    ended: bool,
) -> Manifest:
    """Write the tables; returns the manifest with their entries."""
    try:
        # The tables of a run on a full disk need this room.
        if run.chunks.is_dir():
            with durable_files.held(run.chunks) as chunks:
                for reserve in sorted(chunks.glob("reserve-*")):
                    reserve.unlink()
        scanned, tables = _written(run, manifest, partition_of, splits, None)
        if tables is None:
            cut_ns = _end_ns(scanned)
            scanned, tables = _written(run, manifest, partition_of, splits, cut_ns)
        if tables is None:
            raise InvariantError("a history that is cut still has no cut")
        sums = manifest.checksums | tables.checksums
        sized, logs = sizes(run, sums), sum_logs(run)
    except OSError as error:
        missing = "the tables are missing, the chunks are kept"
        raise durable_files.disk_failure("seal", run.history, error, missing) from error
    trouble = _trouble(scanned, ended)
    return msgspec.structs.replace(
        manifest,
        state=PREFIX if trouble else SEALED,
        cut_ns=_end_ns(scanned) if trouble else None,
        splits=splits,
        key_hash=schema.KEY_HASH,
        phases=tables.phases or manifest.phases,
        trouble=manifest.trouble + trouble,
        checksums=sums,
        sizes=sized,
        logs=logs,
        recovered=msgspec.UNSET if ended else True,
        unread=True if _has_unread(scanned) else msgspec.UNSET,
        recorded=tables.recorded,
    )


@attrs.frozen(kw_only=True)
class _Tables:
    """The tables of a run on the disk: their sums, and the phases and counts of its records."""

    checksums: dict[str, str]
    phases: tuple[tuple[str, int], ...]
    recorded: RecordCounts


def _written(
    run: RunDirectory,
    manifest: Manifest,
    partition_of: PartitionOf | None,
    splits: int,
    cut_ns: int | None,
) -> tuple[Scan, _Tables | None]:
    """The scan, and the tables that were made of it.

    Where the first of several writers stopped short, the others must stop too: its later operations
    are unknown, so later observations of the others can't be judged. Without that cut no tables are
    made (``None``). A single writer needs no cut: it sent no operation that it did not record.
    """
    if isinstance(manifest.streams, msgspec.UnsetType):
        scanned = scan(run.chunks)
    else:
        scanned = scan(run.chunks, count=manifest.streams, run_id=manifest.run_id)
    several = len(scanned.streams) > 1
    sink = ParquetSink(run, splits)
    try:
        tabulator = Tabulator(
            sink, partition_of=partition_of, splits=splits, cut_ns=cut_ns, reindex=several
        )
        with no_search_for_cycles():
            _feed(tabulator, scanned)
            # Where the cut lies is known only now: once more, with it.
            if several and scanned.torn and cut_ns is None:
                return scanned, None
            tabulator.finish(_end_ns(scanned))
        checksums = sink.publish()
    finally:
        sink.abandon()
    recorded = RecordCounts(transactions=tabulator.transactions, micro_ops=tabulator.micro_ops)
    _require_all(run, splits, recorded)
    return scanned, _Tables(checksums=checksums, phases=tuple(tabulator.phases), recorded=recorded)


def _require_all(run: RunDirectory, splits: int, recorded: RecordCounts) -> None:
    """Every record is in the tables. Raises ``HarnessBug``, before the chunks are removed."""
    transactions, micro_ops = rows_of(run, splits)
    if (transactions, micro_ops) != (recorded.transactions, recorded.micro_ops):
        raise HarnessBug(
            f"{run.root}: expected tables of {recorded.transactions} transactions and "
            f"{recorded.micro_ops} micro-operations, found {transactions} and {micro_ops}: it is "
            "not sealed, and keeps its chunks"
        )


@contextlib.contextmanager
def no_search_for_cycles() -> Iterator[None]:
    """Suspend the garbage collector: records have no cycles, and searching them takes a third of
    the time of sealing, a tenth of that of importing.
    """
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


def _feed(tabulator: Tabulator, scanned: Scan) -> None:
    for stream, record in scanned.placed():
        try:
            tabulator.add(record, writer=stream.writer)
        except InconsistentRecords as error:
            place = f"byte {stream.offset}"
            raise MalformedHistory(str(stream.file), place, str(error)) from error
    for torn in scanned.torn:
        # Missing, damaged or another run's from its first byte on: there is no prefix to read.
        if torn.first and torn.offset == 0 and not torn.cut_off:
            raise MalformedHistory(str(torn.file), "byte 0", torn.reason)


def _end_ns(scanned: Scan) -> int:
    """The last time up to which every stream is whole: a stream that stopped short, for any reason,
    may lack invocations and faults after its last record, and from the start where it has none.
    Later observations of other writers can't be judged.
    """
    stopped_short = [
        stream.last_ns
        for stream in scanned.streams
        if stream.torn is not None and _may_lack(stream, stream.torn, scanned)
    ]
    if stopped_short:
        # Beyond the first of them another may have seen writes that are in no record.
        return min(stopped_short)
    return max(stream.last_ns for stream in scanned.streams)


def _may_lack(stream: Stream, torn: TornChunk, scanned: Scan) -> bool:
    """Whether a stream that was ``torn`` may lack a record that a verdict depends on.

    Before the drive phase nothing was invoked. Runs of versions without heartbeats have so few
    records of the controller beside its driver processes that only damage in its stream counts.
    """
    if stream.drove or not (stream.absent or torn.cut_off):
        return True
    return scanned.driven and (stream.writer > 0 or scanned.counted)


def _trouble(scanned: Scan, ended: bool) -> tuple[str, ...]:
    """Why the history is incomplete, each reason a sentence; empty where it is whole."""
    end = seconds(_end_ns(scanned))
    found = [f"the history is readable up to {end} of the run: {torn}" for torn in scanned.torn]
    if _has_unread(scanned):
        found.append(UNREAD)
    if not ended:
        found.insert(0, f"the run ended at about {end} without being sealed")
    return tuple(found)


def _has_unread(scanned: Scan) -> bool:
    """Whether the chunks hold, or may hold, what no table does: behind damage, and of other writers
    beyond the cut.
    """
    torn = scanned.torn
    return any(each.unread for each in torn) or (bool(torn) and len(scanned.streams) > 1)


def recover(run: RunDirectory, *, partition_of: PartitionOf | None = None) -> Manifest:
    """Seal the readable prefix of a run that was never sealed; returns the manifest.

    The manifest's state becomes ``prefix``, ``cut_ns`` the time up to which the prefix is whole,
    and ``trouble`` says where and why it stops. Operations without a recorded outcome stay info, so
    that a prefix yields no violation from its cut. A run that is sealed, or recovered, stays as it
    is.

    Raises ``MalformedHistory`` where there is no manifest or no chunk to read, or the plan is not
    the one that the run began with, ``UsageError`` while the run is still going on,
    ``HarnessError`` where the disk refuses.
    """
    manifest = read_manifest(run)
    splits = manifest.splits or SPLITS
    return seal_chunks(run, partition_of=partition_of, splits=splits, ended=False)
