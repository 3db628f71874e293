"""Which executor judges a run: what the user asks for, what the plan says, or by its size."""

from __future__ import annotations

import msgspec

from harness.errors import MalformedHistory, PlanError
from harness.history.manifest import plan_drove, read_manifest
from harness.history.run_directory import RunDirectory

DEFAULT_EXECUTOR = "auto"
# A history of at most this many is judged in process before Spark has started and judged it.
SMALL_TRANSACTIONS = 2_000_000


def planned_executor(run: RunDirectory) -> str:
    """Return the executor of the run's plan; a history that no readable plan drove takes the
    default.
    """
    from harness.plan import plan

    if not plan_drove(run, read_manifest(run)):
        return DEFAULT_EXECUTOR
    try:
        return plan.load(run.plan).check.executor
    except PlanError:
        return DEFAULT_EXECUTOR


def chosen_executor(run: RunDirectory, asked: str) -> tuple[str, str]:
    """Return the executor for ``asked``, and the reason for the choice where
    ``auto`` left it open.
    """
    if asked != "auto":
        return asked, ""
    from checkers.engine.spark import java

    count = transaction_count(run)
    if count <= SMALL_TRANSACTIONS:
        return "local", f": {count:,} transactions are few; --executor spark judges on Spark"
    if java.find_java().home is None:
        return "local", f": there is no Java {java.JAVA_MIN} for Spark"
    return "spark", f": {count:,} transactions are more than {SMALL_TRANSACTIONS:,}"


def transaction_count(run: RunDirectory) -> int:
    """Return the number of transactions that the sealed run in ``run`` claims; 0 without such a
    table, or with another than was sealed, which its analysis will refuse. No byte of a table is
    interpreted before its sum is compared.
    """
    from pyarrow import ArrowException, parquet

    from harness.history.evidence import require_checksum
    from harness.history.layout import TRANSACTIONS, table_path
    from harness.history.parquet import require_plausible

    manifest = read_manifest(run)
    if not isinstance(manifest.recorded, msgspec.UnsetType):
        return manifest.recorded.transactions
    path = table_path(run, TRANSACTIONS)
    try:
        name = path.relative_to(run.root).as_posix()
        require_checksum(path, manifest.checksums.get(name, ""))
        require_plausible(path)
        return int(parquet.read_metadata(path).num_rows)
    except (OSError, ArrowException, MalformedHistory):
        return 0
